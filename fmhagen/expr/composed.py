"""Functions that are made of others: round, fmod, log1p, erf, and their like.

They take operands as expressions, options as expressions of numbers, and give an expression.
"""

from __future__ import annotations

import math
from functools import reduce

from fmhagen.expr import build
from fmhagen.expr.basics import f32, is_number
from fmhagen.expr.nodes import Node, Type
from fmhagen.expr.predicates import is_nan, is_negative_infinite, is_positive_infinite

ZERO, ONE, HALF = build.const(0.0), build.const(1.0), build.const(0.5)
MINUS_ONE = build.const(-1.0)
_LARGEST = (2 - 2.0**-23) * 2.0**127
"""The largest number of fp32."""


def clip(x: Node, low: Node | None = None, high: Node | None = None) -> Node:
    """The number in [low, high] nearest to x."""
    if low is not None:
        x = build.maximum(x, low)
    return x if high is None else build.minimum(x, high)


def square(x: Node) -> Node:
    """x * x."""
    return build.mul(x, x)


def reciprocal(x: Node) -> Node:
    """1 / x."""
    return build.div(ONE, x)


def truncate(x: Node) -> Node:
    """The whole number between x and 0 that is nearest to x; an int stays."""
    if x.type != Type.F32:
        return x
    return build.where(build.lt(x, ZERO), build.ceil(x), build.floor(x))


def nearest(x: Node, decimals: Node | None = None) -> Node:
    """The nearest whole number, of two the even one, or multiple of 10^-decimals; an int stays.

    Raises:
        ExpressionError: the number of decimals is not known.
    """
    if decimals is not None and not is_number(decimals, 0):
        unit = build.const(10.0 ** _known("decimals", decimals))
        return build.div(nearest(build.mul(f32(x), unit)), unit)
    if x.type != Type.F32:
        return x
    above = build.floor(build.add(x, HALF))
    is_odd = build.ne(build.floor_mod(above, build.const(2.0)), ZERO)
    is_tie = build.eq(build.sub(above, x), HALF)
    return build.where(build.and_(is_tie, is_odd), build.sub(above, ONE), above)


def fraction(x: Node) -> Node:
    """x - trunc(x)."""
    return build.sub(x, truncate(x))


def divide(x: Node, y: Node, rounding_mode: str | None = None) -> Node:
    """x / y in f32, or rounded down ("floor") or towards zero ("trunc"): of ints an int.

    Raises:
        ExpressionError: the rounding is not known.
    """
    if rounding_mode is None:
        return build.div(x, y)
    if rounding_mode == "floor":
        return build.floor_div(x, y)
    if rounding_mode != "trunc":
        limit = "must be None, floor or trunc"
        raise build.ExpressionError(f"rounding_mode={rounding_mode!r}: {limit}")
    if Type.F32 in (x.type, y.type):
        return truncate(build.div(x, y))
    zero = build.const(0)
    size = build.floor_div(build.absolute(x), build.absolute(y))
    return build.where(build.xor(build.lt(x, zero), build.lt(y, zero)), build.neg(size), size)


def _known(name: str, option: Node) -> float:
    if not option.is_const:
        raise build.ExpressionError(f"{name} must be a number that is known when it is traced")
    return float(option.value)


def truncated_mod(x: Node, y: Node) -> Node:
    """x - y * trunc(x / y): the sign of x, as in C."""
    size = build.floor_mod(build.absolute(x), build.absolute(y))
    return build.where(build.lt(x, build.const(0)), build.neg(size), size)


def sign(x: Node) -> Node:
    """-1, 0 or 1."""
    zero, one = build.const(0), build.const(1)
    below = build.where(build.lt(x, zero), build.const(-1), zero)
    return build.cast(build.where(build.lt(zero, x), one, below), x.type)


def copy_sign(x: Node, y: Node) -> Node:
    """|x| with the sign of y; that of a 0 counts as +."""
    size = build.absolute(x)
    return build.where(build.lt(y, build.const(0)), build.neg(size), size)


def heaviside(x: Node, at_zero: Node) -> Node:
    """0 below 0, 1 above it, and a number of its own there."""
    above = build.where(build.eq(x, build.const(0)), f32(at_zero), ONE)
    return build.where(build.lt(x, build.const(0)), ZERO, above)


def masked_fill(x: Node, mask: Node, value: Node) -> Node:
    """value where the mask holds, else x."""
    return build.where(mask, value, x)


def lerp(x: Node, y: Node, weight: Node) -> Node:
    """x + weight * (y - x)."""
    return build.add(x, build.mul(weight, build.sub(y, x)))


def add_product(x: Node, a: Node, b: Node, value: Node = ONE) -> Node:
    """x + value * a * b."""
    return build.add(x, build.mul(value, build.mul(a, b)))


def add_quotient(x: Node, a: Node, b: Node, value: Node = ONE) -> Node:
    """x + value * a / b."""
    return build.add(x, build.mul(value, build.div(a, b)))


def scaled_by_power(x: Node, exponent: Node) -> Node:
    """x * 2^exponent."""
    return build.mul(f32(x), build.unary("exp2", exponent))


def cube_root(x: Node) -> Node:
    """The cube root, with the sign of x."""
    logarithm = build.unary("log2", build.absolute(f32(x)))
    return copy_sign(build.unary("exp2", build.div(logarithm, build.const(3.0))), x)


def hypot(x: Node, y: Node) -> Node:
    """sqrt(x^2 + y^2)."""
    return build.unary("sqrt", build.add(square(f32(x)), square(f32(y))))


def log1p(x: Node) -> Node:
    """log(1 + x)."""
    return build.unary("log", build.add(ONE, x))


def log10(x: Node) -> Node:
    """The logarithm to base 10."""
    return build.mul(build.unary("log2", x), build.const(math.log10(2.0)))


def expm1(x: Node) -> Node:
    """e^x - 1."""
    return build.sub(build.unary("exp", x), ONE)


def logaddexp(x: Node, y: Node) -> Node:
    """log(e^x + e^y), where e^x may be beyond fp32."""
    x, y = f32(x), f32(y)
    distance = build.absolute(build.sub(x, y))
    return build.add(build.maximum(x, y), log1p(build.unary("exp", build.neg(distance))))


def logaddexp2(x: Node, y: Node) -> Node:
    """log2(2^x + 2^y), where 2^x may be beyond fp32."""
    x, y = f32(x), f32(y)
    power = build.unary("exp2", build.neg(build.absolute(build.sub(x, y))))
    return build.add(build.maximum(x, y), build.unary("log2", build.add(ONE, power)))


def xlogy(x: Node, y: Node) -> Node:
    """x * log(y), and 0 where x is 0."""
    is_zero = build.eq(x, build.const(0))
    # NOTE: of what is not chosen the logarithm, and its derivative, are finite.
    return build.where(
        is_zero, ZERO, build.mul(x, build.unary("log", build.where(is_zero, ONE, y)))
    )


def entropy(x: Node) -> Node:
    """-x * log(x), 0 of 0, and -inf below it."""
    below = build.lt(x, build.const(0))
    return build.where(below, build.const(-math.inf), build.neg(xlogy(x, build.absolute(x))))


def logit(x: Node, eps: Node | None = None) -> Node:
    """log(x / (1 - x)), of x in [eps, 1 - eps]."""
    if eps is not None:
        x = clip(x, eps, build.sub(ONE, eps))
    return build.unary("log", build.div(x, build.sub(ONE, x)))


def _erf_tail(x: Node) -> Node:
    """1 - erf(|x|) to 1.5e-7.

    Abramowitz and Stegun, 'Handbook of Mathematical Functions', 7.1.26.
    """
    size = build.absolute(f32(x))
    t = build.div(ONE, build.add(ONE, build.mul(build.const(0.3275911), size)))
    series: Node = ZERO
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = build.mul(t, build.add(series, build.const(factor)))
    return build.mul(series, build.unary("exp", build.neg(square(size))))


def erf(x: Node) -> Node:
    """erf to 1.5e-7."""
    half = build.sub(ONE, _erf_tail(x))
    return build.where(build.lt(x, ZERO), build.neg(half), half)


def erfc(x: Node) -> Node:
    """1 - erf(x), to 1.5e-7."""
    tail = _erf_tail(x)
    return build.where(build.lt(x, ZERO), build.sub(build.const(2.0), tail), tail)


def normal_below(x: Node) -> Node:
    """How much of the normal distribution lies below x (PyTorch's ndtr), to 1e-7."""
    return build.mul(HALF, erfc(build.mul(f32(x), build.const(-(0.5**0.5)))))


def numbers_for(
    x: Node, nan: Node = ZERO, posinf: Node | None = None, neginf: Node | None = None
) -> Node:
    """x, or numbers in the place of NaN and the infinities (the largest of fp32 by default)."""
    if x.type != Type.F32:
        return x
    largest = build.const(_LARGEST)
    above = largest if posinf is None else posinf
    below = build.neg(largest) if neginf is None else neginf
    x = build.where(is_nan(x), f32(nan), x)
    x = build.where(is_positive_infinite(x), f32(above), x)
    return build.where(is_negative_infinite(x), f32(below), x)


def choice(default: Node, *pairs: tuple[Node, Node]) -> Node:
    """The value of the first condition that holds."""
    return reduce(lambda rest, pair: build.where(pair[0], pair[1], rest), reversed(pairs), default)
