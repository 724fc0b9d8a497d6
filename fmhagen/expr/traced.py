"""Traced: what stands for a value while a user's function is traced.

It answers Python's operators, NumPy's protocols and torch's, so that a function that was written
for arrays builds an expression instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

from fmhagen.expr import build
from fmhagen.expr import composed as made
from fmhagen.expr.build import ExpressionError
from fmhagen.expr.nodes import Node, Parameter, Type
from fmhagen.expr.userline import fail

DTYPES: dict[str, Type] = {
    "bool": Type.BOOL,
    "bool_": Type.BOOL,
    "int": Type.I32,
    "uint8": Type.I32,
    "int8": Type.I32,
    "int16": Type.I32,
    "int32": Type.I32,
    "int64": Type.I32,
    "long": Type.I32,
    "i32": Type.I32,
    "float": Type.F32,
    "float16": Type.F32,
    "half": Type.F32,
    "bfloat16": Type.F32,
    "float32": Type.F32,
    "float64": Type.F32,
    "f32": Type.F32,
}
"""Type of an expression by the name of a dtype of Python, NumPy or torch."""


class Scope(Protocol):
    """What a trace knows of the tensors that a function captures."""

    def scalar(self, value: Any) -> Node | None:
        """Return the parameter of a captured 0-d tensor, or None if the value is none."""

    def element(self, tensor: Any, indices: tuple[Node, ...]) -> Node | None:
        """Return an element of a captured tensor, or None if the value is none."""

    def include(self, bound: Mapping[str, Any]) -> None:
        """Take over the tensors of a mask or score function that is called within."""


class Traced:
    """A value of a traced function.

    Attributes:
        node: its expression.
        scope: the trace that it belongs to, or None for a declared parameter.
    """

    __slots__ = ("node", "scope")
    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 1000

    def __init__(self, node: Node, scope: Scope | None = None) -> None:
        """Wrap an expression."""
        self.node = node
        self.scope = scope

    def __repr__(self) -> str:
        """Return the expression as text."""
        return f"Traced({self.node!r})"

    # What needs a value that exists only in the kernel.

    def __bool__(self) -> bool:
        """Refuse: a value known only in the kernel decides nothing here."""
        fail(
            "`if`, `while`, `and`, `or`, `not`, `min`, `max` and chained comparisons need a value"
            " that is known only in the kernel",
            "use fmhagen.where, &, |, ~, fmhagen.minimum and fmhagen.maximum",
        )

    def _no_number(self) -> NoReturn:
        fail(
            "a Python number is needed, but this value is known only in the kernel",
            "use functions of fmhagen, numpy or torch instead of those of math, and index"
            " captured tensors, not lists, nor NumPy's arrays of a class or made in the function",
        )

    def __index__(self) -> int:
        """Refuse."""
        self._no_number()

    __int__ = __float__ = __index__

    def __len__(self) -> int:
        """Refuse."""
        fail("a position or a score is one number, without a length")

    def __iter__(self) -> NoReturn:
        """Refuse."""
        fail("a position or a score is one number and cannot be iterated over")

    def __getitem__(self, index: Any) -> Traced:
        """Refuse, except for the indices of a scalar."""
        if index is Ellipsis or index == ():
            return self
        return fail("a position or a score is one number and has no elements")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: NumPy asks for this where it has no protocol."""
        self._no_number()

    def __divmod__(self, other: Any) -> tuple[Traced, Traced]:
        """Return the floor of the quotient, and the remainder."""
        return apply(build.floor_div, self, other), apply(build.floor_mod, self, other)

    def __rdivmod__(self, other: Any) -> tuple[Traced, Traced]:
        """Return the same of the other operand by this one."""
        return apply(build.floor_div, other, self), apply(build.floor_mod, other, self)

    def __round__(self, digits: int | None = None) -> Traced:
        """Return the nearest whole number, of two the even one."""
        if digits:
            fail(f"round to {digits} digits", "scale the value, round it, and scale it back")
        return apply(made.nearest, self)

    def __trunc__(self) -> Traced:
        """Return the whole number towards zero."""
        return apply(made.truncate, self)

    # Protocols and methods of arrays.

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Answer a NumPy function of elements."""
        from fmhagen.expr.functions import call_named

        if method != "__call__" or kwargs:
            fail(f"numpy.{ufunc.__name__}.{method} with {', '.join(kwargs) or 'this method'}")
        return call_named(ufunc.__name__, f"numpy.{ufunc.__name__}", inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Answer a NumPy function of arrays."""
        from fmhagen.expr.functions import call_named

        return call_named(func.__name__, f"numpy.{func.__name__}", args, kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a torch function."""
        from fmhagen.expr.torch_functions import call_torch

        return call_torch(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        """Return a method of arrays, such as `score.tanh()` or `q_idx.to(torch.float32)`."""
        from fmhagen.expr.methods import method_of

        if name.startswith("__"):
            raise AttributeError(name)
        return method_of(self, name)


def lift(value: Any, scope: Scope | None) -> Node:
    """Return the expression of an operand: a traced value, a number, or a captured scalar.

    Raises:
        TraceError: it has none.
    """
    if isinstance(value, Traced):
        return value.node
    if isinstance(value, bool | int | float):
        return build.const(value)
    if scope is not None:
        found = scope.scalar(value)
        if found is not None:
            return found
    kind = type(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        number = value.item()  # a NumPy scalar such as np.float32(2)
        if isinstance(number, bool | int | float):
            return build.const(number)
    if getattr(value, "shape", None):
        fail(
            f"a tensor of shape {tuple(value.shape)} stands where one number is needed",
            "index it by b, h, q_idx, kv_idx or values made of them",
        )
    return fail(f"a {kind.__module__}.{kind.__qualname__} is no value of a mask or score function")


def scope_of(*values: Any) -> Scope | None:
    """Return the trace that some operands belong to."""
    for value in values:
        if isinstance(value, Traced) and value.scope is not None:
            return value.scope
    return None


def apply(function: Callable[..., Node], *operands: Any) -> Traced:
    """Build an expression of some operands.

    Raises:
        TraceError: they have no such operation; names the user's line.
    """
    scope = scope_of(*operands)
    try:
        return Traced(function(*(lift(operand, scope) for operand in operands)), scope)
    except ExpressionError as error:
        fail(str(error))


def _operator(function: Callable[..., Node], *, is_reversed: bool) -> Callable[[Any, Any], Traced]:
    def of_two(self: Any, other: Any) -> Traced:
        if type(other).__name__ == "Row":  # a row knows what to do with a single value
            return NotImplemented  # type: ignore[no-any-return]
        return apply(function, other, self) if is_reversed else apply(function, self, other)

    return of_two


def _operator_of_one(function: Callable[..., Node]) -> Callable[[Any], Traced]:
    return lambda self: apply(function, self)


BINARY: dict[str, Callable[..., Node]] = {
    "add": build.add,
    "sub": build.sub,
    "mul": build.mul,
    "truediv": build.div,
    "floordiv": build.floor_div,
    "mod": build.floor_mod,
    "pow": build.power,
    "and": build.and_,
    "or": build.or_,
    "xor": build.xor,
    "lshift": build.shl,
    "rshift": build.shr,
}
COMPARISONS: dict[str, Callable[..., Node]] = {
    "lt": build.lt,
    "le": build.le,
    "gt": lambda a, b: build.lt(b, a),
    "ge": lambda a, b: build.le(b, a),
    "eq": build.eq,
    "ne": build.ne,
}
UNARY: dict[str, Callable[..., Node]] = {
    "neg": build.neg,
    "pos": lambda a: a,
    "abs": build.absolute,
    "invert": build.not_,
    "floor": build.floor,
    "ceil": build.ceil,
}

for _name, _function in {**BINARY, **COMPARISONS}.items():
    setattr(Traced, f"__{_name}__", _operator(_function, is_reversed=False))
for _name, _function in BINARY.items():
    setattr(Traced, f"__r{_name}__", _operator(_function, is_reversed=True))
for _name, _function in UNARY.items():
    setattr(Traced, f"__{_name}__", _operator_of_one(_function))


class TensorHandle:
    """A declared tensor parameter; indexing it reads an element.

    Attributes:
        parameter: what was declared.
    """

    __slots__ = ("parameter",)

    def __init__(self, parameter: Parameter) -> None:
        """Wrap a parameter."""
        self.parameter = parameter

    def __repr__(self) -> str:
        """Return the declaration as text."""
        return f"<tensor {self.parameter.declaration}>"

    def __getitem__(self, index: Any) -> Traced:
        """Read one element."""
        indices = index if isinstance(index, tuple) else (index,)
        return apply(lambda *nodes: build.load(self.parameter, *nodes), *indices)
