"""C++ text of expressions: one function for each, in the words of the preludes.

Both targets get the same text. Everything is i32 or f32 arithmetic and calls of
`templates/prelude/language.h` and of the isa layer.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass

from fmhagen.expr.naming import names_of, shared
from fmhagen.expr.nodes import Node, Parameter, Type
from fmhagen.expr.ranges import range_of

_LINE = 108
_JOINT = "\0"  # a space at which no line is broken
_BINARY = {
    "add": ("+", 12),
    "sub": ("-", 12),
    "mul": ("*", 13),
    "quotient": ("/", 13),
    "shl": ("<<", 11),
    "shr": (">>", 11),
    "lt": ("<", 9),
    "le": ("<=", 9),
    "eq": ("==", 8),
    "ne": ("!=", 8),
}
_BITS = {"and": ("&", 7), "xor": ("^", 6), "or": ("|", 5)}
_LOGIC = {"and": ("&&", 4), "xor": ("!=", 8), "or": ("||", 3)}
_I32_CALLS = {"min": "minimum_i32", "max": "maximum_i32", "abs": "absolute_i32"}
_F32_CALLS = {
    "min": "minimum",
    "max": "maximum",
    "abs": "absolute",
    "exp2": "exp2_approx",
    "log2": "log2_approx",
    "tanh": "tanh_approx",
    "sqrt": "sqrt_approx",
    "root": "sqrt_exact",
    "floor": "floor_f32",
}
_PRIMARY, _UNARY, _MUL, _TERNARY = 16, 15, 13, 2
PLACE = ("b", "h", "seqlen_q", "seqlen_k")
TILE = ("m_first", "m_last", "n_first", "n_last")
LOG2_E, LN_2 = math.log2(math.e), math.log(2.0)
Text = tuple[str, int]
"""An expression's text and how tightly its outermost operator binds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CxxFunction:
    """One function of an emitted file.

    Attributes:
        name: its identifier.
        text: comment and definition, as the definitions of a prelude are written.
        uses_params: whether it reads the parameter block.
        uses_place: whether it reads the place of a tile of work.
    """

    name: str
    text: str
    uses_params: bool
    uses_place: bool


def function(
    name: str,
    summary: str,
    result: str,
    arguments: tuple[str, ...],
    root: Node,
    members: dict[Node, str],
) -> CxxFunction:
    """Print an expression as a function of (params, place, arguments).

    Args:
        name: of the function.
        summary: its comment, a sentence without slashes.
        result: its C type.
        arguments: leaves that are arguments, in order; those that it does not read have no name.
        root: the expression.
        members: what is read from the place, by `place_names`.
    """
    needed = _needed(root, members)
    uses_params = any(node.op in ("param", "load") for node in needed - members.keys())
    uses_place = any(node in members or node.value in PLACE for node in needed)
    given = [
        "const Params&" + (" params" if uses_params else ""),
        "const Place&" + (" place" if uses_place else ""),
        *(
            ("f32" if leaf == "score" else "i32") + (f" {leaf}" if root.reads(leaf) else "")
            for leaf in arguments
        ),
    ]
    listed = ", ".join(part.replace(" ", _JOINT) for part in given)
    head = f"FMHAGEN_DEVICE {result} {name}({listed}){_JOINT}{{"
    lines_of_head = wrapped(head, " " * (head.index("(") + 1))
    lines = [f"// {summary}", *(line.replace(_JOINT, " ") for line in lines_of_head)]
    # NOTE: a load is a local even if it is used once, so that && and ?: never stand before it:
    # an unconditional load can be moved out of a loop and shared.
    nodes = tuple(
        node
        for node in shared(root, always=lambda node: node.op == "load")
        if node in needed and node not in members
    )
    names = names_of(nodes, {*arguments, "params", "place", *PLACE, "clamp"})
    done = dict(members)
    for node in nodes:
        lines += wrapped(f"  const {node.type} {names[node]} = {text_of(node, done)[0]};", " " * 6)
        done[node] = names[node]
    lines += wrapped(f"  return {text_of(root, done)[0]};", " " * 6)
    return CxxFunction(
        name=name,
        text="\n".join([*lines, "}"]),
        uses_params=uses_params,
        uses_place=uses_place,
    )


def _needed(root: Node, members: dict[Node, str]) -> set[Node]:
    """Return what has to be printed for an expression: nothing below a member of the place."""
    needed: set[Node] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(() if node in members else node.args)
    return needed


def wrapped(line: str, indent: str) -> list[str]:
    """Break a line at spaces: C++ text here holds no string, so any space will do."""
    lead = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line.lstrip(),
        _LINE,
        initial_indent=lead,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def text_of(node: Node, names: dict[Node, str]) -> Text:
    """Print an expression; nodes that have a name are printed as it."""
    if node in names:
        return names[node], _PRIMARY
    if node.op == "const":
        return _constant(node)
    if node.op == "leaf":
        return (f"place.{node.value}" if node.value in PLACE else str(node.value)), _PRIMARY
    if node.op == "param":
        return f"params.arg_{node.value.name}", _PRIMARY
    if node.op == "load":
        return _load(node, names)
    args = [text_of(arg, names) for arg in node.args]
    is_float = bool(node.args) and node.args[-1].type == Type.F32
    is_bool = bool(node.args) and node.args[-1].type == Type.BOOL
    if node.op in _BITS:
        sign, level = (_LOGIC if is_bool else _BITS)[node.op]
        return _joined(args, sign, level)
    if node.op in _BINARY:
        return _joined(args, *_BINARY[node.op])
    match node.op:
        case "neg":
            return "-" + _within(args[0], _UNARY + 1), _UNARY
        case "not":
            return ("!" if is_bool else "~") + _within(args[0], _UNARY + 1), _UNARY
        case "where":
            tests = [_within(arg, _TERNARY + 2) for arg in args]
            return f"{tests[0]} ? {tests[1]} : {tests[2]}", _TERNARY
        case "cast":
            return _cast(node, args[0])
        case "floor_div" | "floor_mod":
            return _division(node, args)
        case "div":
            return _ratio(node, args)
        case "exp":
            scaled = f"{_float(LOG2_E)} * {_within(args[0], _MUL + 1)}"
            return f"exp2_approx({scaled})", _PRIMARY
        case "log":
            return f"{_float(LN_2)} * log2_approx({args[0][0]})", _MUL
        case "sigmoid":
            scaled = f"{_float(-LOG2_E)} * {_within(args[0], _MUL + 1)}"
            return f"reciprocal_approx(1.0f + exp2_approx({scaled}))", _PRIMARY
        case "rsqrt":
            return f"reciprocal_approx(sqrt_approx({args[0][0]}))", _PRIMARY
    call = (_F32_CALLS if is_float else _I32_CALLS)[node.op]
    return f"{call}({', '.join(text for text, _ in args)})", _PRIMARY


def _within(text: Text, level: int) -> str:
    return text[0] if text[1] >= level else f"({text[0]})"


def _joined(args: list[Text], sign: str, level: int) -> Text:
    # NOTE: compilers warn of && within ||, of arithmetic within shifts and bits, and of
    # comparisons of comparisons: what is not arithmetic within arithmetic stands in parentheses.
    strict = level <= 11 and sign not in ("&&", "||", "<", "<=", "==", "!=")
    lowest = {"&&": 8, "||": 8, "==": 10, "!=": 10, "<": 10, "<=": 10}.get(sign, level)
    left = _within(args[0], _UNARY if strict else lowest)
    if sign in ("&&", "||") and args[0][1] == level:
        left = args[0][0]  # a && b && c
    return f"{left} {sign} {_within(args[1], _UNARY if strict else max(lowest, level + 1))}", level


def _float(value: float) -> str:
    if math.isinf(value):
        return "infinity()" if value > 0 else "-infinity()"
    return f"{value!r}f"


def _constant(node: Node) -> Text:
    if node.type == Type.BOOL:
        return ("true" if node.value else "false"), _PRIMARY
    if node.type == Type.F32:
        return _float(node.value), _UNARY if node.value < 0 else _PRIMARY
    if node.value == -(2**31):
        return "-2147483647 - 1", 12
    return str(node.value), _UNARY if node.value < 0 else _PRIMARY


def _cast(node: Node, arg: Text) -> Text:
    if node.args[0].type == Type.BOOL:
        one, zero = ("1.0f", "0.0f") if node.type == Type.F32 else ("1", "0")
        return f"{_within(arg, _TERNARY + 2)} ? {one} : {zero}", _TERNARY
    return f"static_cast<{node.type}>({arg[0]})", _PRIMARY


def _division(node: Node, args: list[Text]) -> Text:
    """Print Python's // and %, which are C++'s where nothing is negative."""
    (low, _), (divisor, _) = (range_of(arg) for arg in node.args)
    if low >= 0 and divisor > 0:
        sign = "/" if node.op == "floor_div" else "%"
        return f"{_within(args[0], _MUL)} {sign} {_within(args[1], _MUL + 1)}", _MUL
    return f"{node.op}({args[0][0]}, {args[1][0]})", _PRIMARY


def _ratio(node: Node, args: list[Text]) -> Text:
    """Print a division of floats as a product: a true division takes a dozen instructions."""
    divisor = node.args[1]
    if divisor.is_const and divisor.value and math.isfinite(1 / divisor.value):
        inverse = 1 / divisor.value
        if node.args[0].is_const and node.args[0].value == 1:
            return _float(inverse), _UNARY
        return f"{_within(args[0], _MUL)} * {_float(inverse)}", _MUL
    inverse_text = f"reciprocal_approx({args[1][0]})"
    if node.args[0].is_const and node.args[0].value == 1:
        return inverse_text, _PRIMARY
    return f"{_within(args[0], _MUL)} * {inverse_text}", _MUL


def _load(node: Node, names: dict[Node, str]) -> Text:
    parameter: Parameter = node.value
    name = f"params.arg_{parameter.name}"
    terms = []
    for axis, index in enumerate(node.args):
        text = text_of(index, names)
        if is_clamped(index):
            text = f"clamp({text[0]}, 0, {name}_size_{axis} - 1)", _PRIMARY
        terms.append(f"{_within(text, _MUL)} * {name}_stride_{axis}")
    dtype = "u8" if parameter.dtype == "bool" else parameter.dtype
    call = f"load_param_{dtype}({name}, {' + '.join(terms)})"
    return (f"{call} != 0", 8) if parameter.dtype == "bool" else (call, _PRIMARY)


def is_clamped(index: Node) -> bool:
    """Return whether an index is clamped; for the others the host checks the size of the axis."""
    return not (index.is_const or index.op == "leaf")
