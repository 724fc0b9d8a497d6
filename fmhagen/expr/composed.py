"""Functions that are made of others: erf, gelu, softplus, sin, round, and their like.

They take operands as expressions, options as expressions of numbers, and give an expression.
"""

from __future__ import annotations

import math
from functools import reduce

from fmhagen.expr import build
from fmhagen.expr.nodes import Node, Type

ZERO, ONE, HALF = build.const(0.0), build.const(1.0), build.const(0.5)
MINUS_ONE, _SLOPE = build.const(-1.0), build.const(0.01)


def _f32(x: Node) -> Node:
    return build.cast(x, Type.F32)


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


def nearest(x: Node) -> Node:
    """The nearest whole number, of two the even one; an int stays."""
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


def truncated_mod(x: Node, y: Node) -> Node:
    """x - y * trunc(x / y): the sign of x, as in C."""
    size = build.floor_mod(build.absolute(x), build.absolute(y))
    return build.where(build.lt(x, build.const(0)), build.neg(size), size)


def sign(x: Node) -> Node:
    """-1, 0 or 1."""
    zero, one = build.const(0), build.const(1)
    below = build.where(build.lt(x, zero), build.const(-1), zero)
    return build.cast(build.where(build.lt(zero, x), one, below), x.type)


def masked_fill(x: Node, mask: Node, value: Node) -> Node:
    """value where the mask holds, else x."""
    return build.where(mask, value, x)


def lerp(x: Node, y: Node, weight: Node) -> Node:
    """x + weight * (y - x)."""
    return build.add(x, build.mul(weight, build.sub(y, x)))


def hypot(x: Node, y: Node) -> Node:
    """sqrt(x^2 + y^2)."""
    return build.unary("sqrt", build.add(square(_f32(x)), square(_f32(y))))


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
    x, y = _f32(x), _f32(y)
    distance = build.absolute(build.sub(x, y))
    return build.add(build.maximum(x, y), log1p(build.unary("exp", build.neg(distance))))


def softplus(x: Node, beta: Node = ONE, threshold: Node | None = None) -> Node:
    """log(1 + e^(beta x)) / beta. A threshold is of PyTorch's rounding, and not needed here."""
    del threshold
    return build.div(logaddexp(build.mul(beta, x), ZERO), beta)


def log_sigmoid(x: Node) -> Node:
    """log(sigmoid(x))."""
    return build.neg(softplus(build.neg(_f32(x))))


def silu(x: Node) -> Node:
    """x * sigmoid(x)."""
    return build.mul(x, build.unary("sigmoid", x))


def relu(x: Node) -> Node:
    """x, or 0 where it is below."""
    return build.maximum(x, build.const(0))


def hardtanh(x: Node, min_val: Node = MINUS_ONE, max_val: Node = ONE) -> Node:
    """The number in [min_val, max_val] nearest to x."""
    return clip(x, min_val, max_val)


def leaky_relu(x: Node, negative_slope: Node = _SLOPE) -> Node:
    """x, or negative_slope * x where it is below 0."""
    return build.where(build.lt(x, build.const(0)), build.mul(negative_slope, x), _f32(x))


def elu(x: Node, alpha: Node = ONE) -> Node:
    """x, or alpha * (e^x - 1) where it is below 0."""
    low = build.minimum(_f32(x), ZERO)  # of what is not chosen, too, the exponential is finite
    return build.where(build.lt(x, build.const(0)), build.mul(alpha, expm1(low)), _f32(x))


def softsign(x: Node) -> Node:
    """x / (1 + |x|)."""
    return build.div(x, build.add(ONE, build.absolute(x)))


def sinh(x: Node) -> Node:
    """(e^x - e^-x) / 2."""
    return build.mul(HALF, build.sub(build.unary("exp", x), build.unary("exp", build.neg(x))))


def cosh(x: Node) -> Node:
    """(e^x + e^-x) / 2."""
    return build.mul(HALF, build.add(build.unary("exp", x), build.unary("exp", build.neg(x))))


def erf(x: Node) -> Node:
    """erf to 1.5e-7 (Abramowitz and Stegun, 'Handbook of Mathematical Functions', 7.1.26)."""
    size = build.absolute(_f32(x))
    t = build.div(ONE, build.add(ONE, build.mul(build.const(0.3275911), size)))
    series: Node = ZERO
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = build.mul(t, build.add(series, build.const(factor)))
    tail = build.mul(series, build.unary("exp", build.neg(square(size))))
    half = build.sub(ONE, tail)
    return build.where(build.lt(x, ZERO), build.neg(half), half)


def gelu(x: Node, approximate: str = "none") -> Node:
    """x * Phi(x), or with "tanh" what is near to it (Hendrycks and Gimpel, arXiv:1606.08415).

    Raises:
        ExpressionError: the approximation is not known.
    """
    if approximate == "none":
        middle = erf(build.mul(x, build.const(0.5**0.5)))
    elif approximate == "tanh":
        cube = build.mul(build.const(0.044715), build.mul(x, square(x)))
        inner = build.mul(build.const((2 / math.pi) ** 0.5), build.add(x, cube))
        middle = build.unary("tanh", inner)
    else:
        raise build.ExpressionError(f"approximate={approximate!r}: must be none or tanh")
    return build.mul(build.mul(HALF, x), build.add(ONE, middle))


_PI = (3.140625, 9.676535897932e-4)
"""pi as a number of 8 bits, whose multiples by whole numbers up to 2^16 are exact, and the rest."""


def _from_half_turn(x: Node, turns: Node) -> Node:
    for part in _PI:
        x = build.sub(x, build.mul(turns, build.const(part)))
    return x


def _half_wave(r: Node) -> Node:
    """sin(r) for |r| <= pi / 2, by its series: to 1e-7."""
    factors = [(-1) ** i / math.factorial(2 * i + 1) for i in range(6)]
    square_of = square(r)
    start: Node = build.const(factors[-1])
    series = reduce(
        lambda sum_, factor: build.add(build.mul(sum_, square_of), build.const(factor)),
        factors[-2::-1],
        start,
    )
    return build.mul(r, series)


def _alternate(turns: Node) -> Node:
    """1 of an even number of half turns, -1 of an odd one."""
    return build.sub(ONE, build.mul(build.const(2.0), build.floor_mod(turns, build.const(2.0))))


def sin(x: Node) -> Node:
    """The sine: to 1e-7, and to the rounding of x in fp32, for |x| up to 1e5."""
    x = _f32(x)
    turns = build.floor(build.add(build.mul(x, build.const(1 / math.pi)), HALF))
    return build.mul(_alternate(turns), _half_wave(_from_half_turn(x, turns)))


def cos(x: Node) -> Node:
    """The cosine, as the sine."""
    x = _f32(x)
    turns = build.floor(build.mul(x, build.const(1 / math.pi)))
    rest = _from_half_turn(x, build.add(turns, HALF))
    return build.mul(build.neg(_alternate(turns)), _half_wave(rest))


def tan(x: Node) -> Node:
    """sin(x) / cos(x)."""
    return build.div(sin(x), cos(x))


def is_infinite(x: Node) -> Node:
    """Whether it is inf or -inf."""
    return build.eq(build.absolute(_f32(x)), build.const(math.inf))


def is_finite(x: Node) -> Node:
    """Whether it is neither infinite nor NaN."""
    return build.lt(build.absolute(_f32(x)), build.const(math.inf))


def is_nan(x: Node) -> Node:
    """Whether it is NaN."""
    return build.not_(build.le(build.absolute(_f32(x)), build.const(math.inf)))
