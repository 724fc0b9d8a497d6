"""The text form of an expression: a few Python statements that give the same nodes again.

    prefix: i32[1]; difference = q_idx - kv_idx; (difference >= 0) | (kv_idx < prefix[b])

Declarations of parameters come first, then names of what is used more than once, then the value.
Reading it back folds nothing, because the nodes are folded already, so it is the same object.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from fmhagen.errors import InvalidSpecError
from fmhagen.expr import build
from fmhagen.expr.build import ExpressionError
from fmhagen.expr.naming import names_of, shared
from fmhagen.expr.nodes import LEAVES, Node, Parameter, Type, parameters_of

_BINARY = {
    "add": ("+", 12),
    "sub": ("-", 12),
    "mul": ("*", 13),
    "div": ("/", 13),
    "quotient": ("/", 13),  # what reads it back tells them apart by what they stand in
    "floor_div": ("//", 13),
    "floor_mod": ("%", 13),
    "shl": ("<<", 11),
    "shr": (">>", 11),
    "and": ("&", 10),
    "xor": ("^", 9),
    "or": ("|", 8),
    "lt": ("<", 7),
    "le": ("<=", 7),
    "eq": ("==", 7),
    "ne": ("!=", 7),
}
_UNARY = {"neg": "-", "not": "~"}
_CALLS = {"min": "minimum", "max": "maximum", "root": "sqrt"}
_FUNCTIONS: dict[str, Callable[..., Node]] = {
    "abs": build.absolute,
    "minimum": build.minimum,
    "maximum": build.maximum,
    "where": build.where,
    "i32": lambda x: build.cast(x, Type.I32),
    "f32": lambda x: build.cast(x, Type.F32),
}
_OPERATORS: dict[type[ast.AST], Callable[..., Node]] = {
    ast.Add: build.add,
    ast.Sub: build.sub,
    ast.Mult: build.mul,
    ast.Div: build.div,
    ast.FloorDiv: build.floor_div,
    ast.Mod: build.floor_mod,
    ast.LShift: build.shl,
    ast.RShift: build.shr,
    ast.BitAnd: build.and_,
    ast.BitXor: build.xor,
    ast.BitOr: build.or_,
    ast.USub: build.neg,
    ast.Invert: build.not_,
    ast.Lt: build.lt,
    ast.LtE: build.le,
    ast.Gt: lambda a, b: build.lt(b, a),
    ast.GtE: lambda a, b: build.le(b, a),
    ast.Eq: build.eq,
    ast.NotEq: build.ne,
}


def to_text(root: Node) -> str:
    """Return an expression as text."""
    declared = parameters_of(root)
    nodes = shared(root)
    names = names_of(nodes, {*LEAVES, *_FUNCTIONS, *build.UNARY, *(p.name for p in declared)})
    statements = [parameter.declaration for parameter in declared]
    done: dict[Node, str] = {}
    for node in nodes:
        statements.append(f"{names[node]} = {_text(node, done)[0]}")
        done[node] = names[node]
    return "; ".join([*statements, _text(root, done)[0]])


def _text(node: Node, names: dict[Node, str]) -> tuple[str, int]:
    """Return an expression and how tightly its outermost operator binds."""
    if node in names:
        return names[node], 16
    if node.op == "const":
        if node.value == -(2**31) and node.type == Type.I32:
            return "-2147483647 - 1", 12
        return repr(node.value), 14 if node.type != Type.BOOL and node.value < 0 else 16
    if node.op == "leaf":
        return str(node.value), 16
    if node.op == "param":
        return str(node.value.name), 16
    args = [_text(arg, names) for arg in node.args]
    if node.op == "load":
        return f"{node.value.name}[{', '.join(text for text, _ in args)}]", 16
    if node.op in _BINARY:
        sign, level = _BINARY[node.op]
        # Comparisons do not chain, and bits and shifts are always set apart.
        strict = level < 12
        is_chain = node.args[0].op == node.op and node.args[0] not in names and level in (8, 9, 10)
        left = args[0][0] if is_chain else _set_apart(args[0], level + strict)
        return f"{left} {sign} {_set_apart(args[1], level + 1)}", level
    if node.op in _UNARY:
        return _UNARY[node.op] + _set_apart(args[0], 15), 14
    name = str(node.type) if node.op == "cast" else _CALLS.get(node.op, node.op)
    return f"{name}({', '.join(text for text, _ in args)})", 16


def _set_apart(text: tuple[str, int], level: int) -> str:
    # NOTE: below a bit operation whatever is not an atom stands in parentheses: readers do not
    # know how & and == bind in Python.
    needs = text[1] < level or (level <= 11 and text[1] < 14)
    return f"({text[0]})" if needs else text[0]


def from_text(text: str, leaves: tuple[str, ...] = tuple(LEAVES)) -> Node:
    """Read an expression.

    Args:
        text: what `to_text` gives, or the like.
        leaves: names that it may read besides its parameters.

    Raises:
        InvalidSpecError: it is no such text.
    """
    names = {name: build.leaf(name) for name in leaves}
    parameters: dict[str, Parameter] = {}
    try:
        statements = ast.parse(text).body
        for statement in statements[:-1]:
            if isinstance(statement, ast.AnnAssign):
                parameter = _declared(statement)
                parameters[parameter.name] = parameter
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                names[statement.targets[0].id] = _read(statement.value, names, parameters)
            else:
                raise ExpressionError(f"{ast.unparse(statement)!r} has no meaning here")
        if not statements or not isinstance(statements[-1], ast.Expr):
            raise ExpressionError("the last statement must be the value")
        return _read(statements[-1].value, names, parameters)
    except (SyntaxError, ExpressionError, TypeError) as error:
        raise InvalidSpecError("expression", text, str(error)) from error


def _declared(statement: ast.AnnAssign) -> Parameter:
    annotation = ast.unparse(statement.annotation)
    dtype, _, inside = annotation.removesuffix("]").partition("[")
    words = inside.replace("(", "").replace(")", "").replace(" ", "").split(",") if inside else []
    flags = [word for word in words if not word.isdigit()]
    for flag in flags:
        if flag not in ("non_decreasing", "finite"):
            raise ExpressionError(f"{flag!r} is no property of a parameter")
    sizes = [int(word) for word in words if word.isdigit()]
    return Parameter(
        name=ast.unparse(statement.target),
        dtype=dtype,
        ndim=sizes[0] if sizes else 0,
        non_decreasing="non_decreasing" in flags,
        finite="finite" in flags,
    )


def _read(tree: ast.AST, names: dict[str, Node], parameters: dict[str, Parameter]) -> Node:
    def read(part: ast.AST) -> Node:
        return _read(part, names, parameters)

    match tree:
        case ast.Constant(value=bool() | int() | float() as value):
            return build.const(value)
        case ast.Name(id="inf"):
            return build.const(float("inf"))
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Name(id=name) if name in parameters:
            return build.param(parameters[name])
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=indices)):
            return build.load(_known(name, parameters), *map(read, indices))
        case ast.Subscript(value=ast.Name(id=name), slice=index):
            return build.load(_known(name, parameters), read(index))
        case ast.BinOp(left=left, op=operator, right=right):
            return _operator(operator)(read(left), read(right))
        case ast.UnaryOp(op=operator, operand=operand):
            return _operator(operator)(read(operand))
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            return _operator(operator)(read(left), read(right))
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*map(read, args))
        case ast.Call(func=ast.Name(id=name), args=[arg]) if name in build.UNARY:
            return build.unary(name, read(arg))
    raise ExpressionError(f"{ast.unparse(tree)!r} has no meaning here")


def _operator(operator: ast.AST) -> Callable[..., Node]:
    try:
        return _OPERATORS[type(operator)]
    except KeyError:
        raise ExpressionError(f"the operator {type(operator).__name__} has no meaning") from None


def _known(name: str, parameters: dict[str, Parameter]) -> Parameter:
    try:
        return parameters[name]
    except KeyError:
        raise ExpressionError(f"the tensor {name!r} is not declared") from None
