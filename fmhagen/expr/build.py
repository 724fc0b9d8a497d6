"""Constructors of nodes: they check types, convert operands, and fold constants.

Operations, by type of their operands:
    i32, f32    add sub mul neg abs min max; compared by lt le eq ne
    i32         floor_div floor_mod (Python's), and or xor not shl shr (arithmetic)
    f32         div exp exp2 log log2 tanh sigmoid sqrt rsqrt floor
                quotient and root: div and sqrt without an error, see `fmhagen.expr.exact`
    bool        and or xor not; where(condition, a, b) chooses between values of any type
    cast        between all types: to i32 towards zero, to bool as != 0
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fmhagen.expr.basics import (
    FALSE,
    TRUE,
    ExpressionError,
    Number,
    cast,
    common,
    const,
    folded,
    is_number,
    leaf,
    load,
    param,
)
from fmhagen.expr.exact import exactly
from fmhagen.expr.logic import and_, eq, le, lt, ne, not_, or_, shl, shr, where, xor
from fmhagen.expr.nodes import Node, Type

__all__ = [
    "FALSE",
    "TRUE",
    "UNARY",
    "ExpressionError",
    "Number",
    "absolute",
    "add",
    "and_",
    "cast",
    "ceil",
    "common",
    "const",
    "div",
    "eq",
    "floor",
    "floor_div",
    "floor_mod",
    "le",
    "leaf",
    "load",
    "lt",
    "maximum",
    "minimum",
    "mul",
    "ne",
    "neg",
    "not_",
    "or_",
    "param",
    "power",
    "shl",
    "shr",
    "sub",
    "unary",
    "where",
    "xor",
]


def add(a: Node, b: Node) -> Node:
    """a + b."""
    a, b = common(a, b, least=Type.I32)
    if is_number(a, 0):
        return b
    if is_number(b, 0):
        return a
    if b.is_const and b.value < 0:
        return sub(a, const(-b.value, b.type))
    return folded("add", a.type, lambda x, y: x + y, a, b)


def sub(a: Node, b: Node) -> Node:
    """a - b."""
    a, b = common(a, b, least=Type.I32)
    if is_number(b, 0):
        return a
    if a is b and a.type == Type.I32:
        return const(0)
    if b.is_const and b.value < 0 and b.value != -(2**31):
        return add(a, const(-b.value, b.type))
    if is_number(a, 0) and a.type == Type.I32:
        return neg(b)
    return folded("sub", a.type, lambda x, y: x - y, a, b)


def mul(a: Node, b: Node) -> Node:
    """a * b."""
    a, b = common(a, b, least=Type.I32)
    if is_number(a, 1):
        return b
    if is_number(b, 1):
        return a
    if a.type == Type.I32 and (is_number(a, 0) or is_number(b, 0)):
        return const(0)
    return folded("mul", a.type, lambda x, y: x * y, a, b)


def div(a: Node, b: Node) -> Node:
    """a / b in f32."""
    a, b = common(a, b, least=Type.F32)
    if is_number(b, 1):
        return a
    return folded("div", Type.F32, lambda x, y: x / y, a, b)


def floor_div(a: Node, b: Node) -> Node:
    """a // b, rounded down as in Python."""
    a, b = common(a, b, least=Type.I32)
    if is_number(b, 0):
        raise ExpressionError("division by zero")
    if a.type == Type.F32:
        return floor(div(a, b))
    if is_number(b, 1):
        return a
    return folded("floor_div", Type.I32, lambda x, y: x // y, a, b)


def floor_mod(a: Node, b: Node) -> Node:
    """a % b, with the sign of b as in Python."""
    a, b = common(a, b, least=Type.I32)
    if is_number(b, 0):
        raise ExpressionError("modulo by zero")
    if a.type == Type.F32:
        return sub(a, mul(floor(div(a, b)), b))
    if is_number(b, 1):
        return const(0)
    return folded("floor_mod", Type.I32, lambda x, y: x % y, a, b)


def neg(a: Node) -> Node:
    """-a."""
    (a,) = common(a, least=Type.I32)
    if a.op == "neg":
        return a.args[0]
    return folded("neg", a.type, lambda x: -x, a)


def absolute(a: Node) -> Node:
    """|a|."""
    (a,) = common(a, least=Type.I32)
    return a if a.op == "abs" else folded("abs", a.type, abs, a)


def minimum(a: Node, b: Node) -> Node:
    """The smaller of two; a NaN loses."""
    a, b = common(a, b, least=Type.I32)
    return a if a is b else folded("min", a.type, min, a, b)


def maximum(a: Node, b: Node) -> Node:
    """The larger of two; a NaN loses."""
    a, b = common(a, b, least=Type.I32)
    return a if a is b else folded("max", a.type, max, a, b)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


UNARY: dict[str, Callable[[float], float]] = {
    "exp": math.exp,
    "exp2": lambda x: 2.0**x,
    "log": lambda x: math.log(x) if x else -math.inf,
    "log2": lambda x: math.log2(x) if x else -math.inf,
    "tanh": math.tanh,
    "sigmoid": _sigmoid,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "floor": lambda x: float(math.floor(x)) if math.isfinite(x) else x,
}
"""Functions of one float."""


def unary(op: str, a: Node) -> Node:
    """Return one of `UNARY`."""
    operand = cast(a, Type.F32)
    return folded(op, Type.F32, UNARY[op], exactly(operand) if op == "floor" else operand)


def floor(a: Node) -> Node:
    """The largest whole number that is not above; an int stays."""
    return a if a.type != Type.F32 or a.op == "floor" else unary("floor", a)


def ceil(a: Node) -> Node:
    """The smallest whole number that is not below; an int stays."""
    return a if a.type != Type.F32 else neg(floor(neg(a)))


_LARGEST_PRODUCT = 64


def power(a: Node, b: Node) -> Node:
    """a ** b: products for whole exponents, else exp2(b * log2(a)).

    Whole exponents keep the sign of what is below 0; others give NaN for it, as NumPy's do.
    """
    if b.is_const and float(b.value).is_integer() and abs(b.value) <= _LARGEST_PRODUCT:
        product = _product(a, int(abs(b.value)))
        return product if b.value >= 0 else div(const(1.0), product)
    if is_number(b, 0.5):
        return unary("sqrt", a)
    if is_number(b, -0.5):
        return unary("rsqrt", a)
    if b.type == Type.F32 and not (b.is_const and float(b.value).is_integer()):
        return unary("exp2", mul(b, unary("log2", a)))
    is_odd = ne(floor_mod(b, const(2)), const(0))
    size = absolute(a)
    if not is_number(size, 1):
        size = unary("exp2", mul(cast(b, Type.F32), unary("log2", size)))
    if a.is_const and a.value >= 0:
        return size
    return where(and_(lt(a, const(0)), is_odd), neg(size), size)


def _product(a: Node, count: int) -> Node:
    """a * a * ..., `count` times, by squares."""
    result, square = const(1, Type.F32 if a.type == Type.F32 else Type.I32), a
    while count:
        if count & 1:
            result = mul(result, square)
        count >>= 1
        square = mul(square, square) if count else square
    return result
