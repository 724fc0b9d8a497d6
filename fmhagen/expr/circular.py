"""The functions of circles, the angles that they are of, and the functions of hyperbolas."""

from __future__ import annotations

import math
from functools import reduce

from fmhagen.expr import build
from fmhagen.expr.basics import f32
from fmhagen.expr.composed import HALF, ONE, ZERO, square
from fmhagen.expr.nodes import Node
from fmhagen.expr.predicates import is_nan

_PI = (3.140625, 9.676535897932e-4)
"""pi as a number of 8 bits, whose multiples by whole numbers up to 2^16 are exact, and the rest."""


def _from_half_turn(x: Node, turns: Node) -> Node:
    for part in _PI:
        x = build.sub(x, build.mul(turns, build.const(part)))
    return x


def _half_wave(r: Node) -> Node:
    """sin(r) for |r| <= pi / 2, by its series: to 1e-7."""
    factors = [(-1) ** i / math.factorial(2 * i + 1) for i in range(6)]
    return build.mul(r, _polynomial(square(r), factors))


def _polynomial(x: Node, factors: list[float]) -> Node:
    """factors[0] + factors[1] * x + factors[2] * x^2 + ..."""
    start: Node = build.const(factors[-1])
    return reduce(
        lambda sum_, factor: build.add(build.mul(sum_, x), build.const(factor)),
        factors[-2::-1],
        start,
    )


def _alternate(turns: Node) -> Node:
    """1 of an even number of half turns, -1 of an odd one."""
    return build.sub(ONE, build.mul(build.const(2.0), build.floor_mod(turns, build.const(2.0))))


def sin(x: Node) -> Node:
    """The sine: to 1e-7, and to the rounding of x in fp32, for |x| up to 1e5."""
    x = f32(x)
    turns = build.floor(build.add(build.mul(x, build.const(1 / math.pi)), HALF))
    return build.mul(_alternate(turns), _half_wave(_from_half_turn(x, turns)))


def cos(x: Node) -> Node:
    """The cosine, as the sine."""
    x = f32(x)
    turns = build.floor(build.mul(x, build.const(1 / math.pi)))
    rest = _from_half_turn(x, build.add(turns, HALF))
    return build.mul(build.neg(_alternate(turns)), _half_wave(rest))


def tan(x: Node) -> Node:
    """sin(x) / cos(x)."""
    return build.div(sin(x), cos(x))


def sinc(x: Node) -> Node:
    """sin(pi x) / (pi x), 1 at 0."""
    is_zero = build.eq(x, build.const(0))
    angle = build.mul(build.where(is_zero, ONE, f32(x)), build.const(math.pi))
    return build.where(is_zero, ONE, build.div(sin(angle), angle))


_ATAN = [
    *(-0.333329871, 0.199903967, -0.141859756, 0.105739329),
    *(-0.0736670754, 0.0411218744, -0.0151325439, 0.00262224625),
]
"""(atan(t) - t) / t^3 in powers of t^2 for t in [0, 1], fitted: atan(t) to 7.4e-9."""
_TINY = build.const(2.0**-120)


def _angle_of(low: Node, high: Node) -> Node:
    """atan(low / high) for 0 <= low <= high."""
    t = build.div(low, build.maximum(high, _TINY))
    z = square(t)
    return build.add(t, build.mul(build.mul(t, z), _polynomial(z, _ATAN)))


def _of_quarter(y: Node, x: Node) -> Node:
    """The angle of a point with x, y >= 0."""
    angle = _angle_of(build.minimum(x, y), build.maximum(x, y))
    return build.where(build.lt(x, y), build.sub(build.const(math.pi / 2), angle), angle)


def _with_sign_of(x: Node, size: Node) -> Node:
    return build.where(build.lt(x, ZERO), build.neg(size), size)


def atan(x: Node) -> Node:
    """The angle in [-pi/2, pi/2] whose tangent is x, to 1e-7."""
    x = f32(x)
    return _known(_with_sign_of(x, _of_quarter(build.absolute(x), ONE)), x)


def atan2(y: Node, x: Node) -> Node:
    """The angle of the point (x, y) in [-pi, pi], to 2e-7; that of (0, 0) is 0."""
    y, x = f32(y), f32(x)
    angle = _of_quarter(build.absolute(y), build.absolute(x))
    angle = build.where(build.lt(x, ZERO), build.sub(build.const(math.pi), angle), angle)
    return _known(_known(_with_sign_of(y, angle), x), y)


def _known(angle: Node, of: Node) -> Node:
    """An angle, or NaN of NaN, which minimum and maximum do not keep."""
    return build.where(is_nan(of), of, angle)


def asin(x: Node) -> Node:
    """The angle in [-pi/2, pi/2] whose sine is x, to 2e-7; NaN beyond [-1, 1]."""
    x, other, is_one = _on_circle(x)
    angle = _with_sign_of(x, _of_quarter(build.absolute(x), other))
    return build.where(is_one, angle, other)


def acos(x: Node) -> Node:
    """The angle in [0, pi] whose cosine is x, to 3e-7; NaN beyond [-1, 1]."""
    x, other, is_one = _on_circle(x)
    angle = _of_quarter(other, build.absolute(x))
    angle = build.where(build.lt(x, ZERO), build.sub(build.const(math.pi), angle), angle)
    return build.where(is_one, angle, other)


def _on_circle(x: Node) -> tuple[Node, Node, Node]:
    """x, the other place of its point on the circle (NaN if there is none), whether it has one."""
    x = f32(x)
    other = build.unary("sqrt", build.mul(build.sub(ONE, x), build.add(ONE, x)))
    return x, other, build.le(build.absolute(x), ONE)


def sinh(x: Node) -> Node:
    """(e^x - e^-x) / 2."""
    return build.mul(HALF, build.sub(build.unary("exp", x), build.unary("exp", build.neg(x))))


def cosh(x: Node) -> Node:
    """(e^x + e^-x) / 2."""
    return build.mul(HALF, build.add(build.unary("exp", x), build.unary("exp", build.neg(x))))


def asinh(x: Node) -> Node:
    """The number whose sinh is x."""
    x = f32(x)
    size = build.absolute(x)
    root = build.unary("sqrt", build.add(square(x), ONE))
    return _with_sign_of(x, build.unary("log", build.add(size, root)))


def acosh(x: Node) -> Node:
    """The number of at least 0 whose cosh is x; NaN below 1."""
    x = f32(x)
    root = build.unary("sqrt", build.mul(build.sub(x, ONE), build.add(x, ONE)))
    return build.unary("log", build.add(x, root))


def atanh(x: Node) -> Node:
    """The number whose tanh is x."""
    ratio = build.div(build.add(ONE, f32(x)), build.sub(ONE, f32(x)))
    return build.mul(HALF, build.unary("log", ratio))
