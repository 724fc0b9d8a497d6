"""What is true of a number: its sign, whether it is finite, near to another, one of some."""

from __future__ import annotations

import math

from fmhagen.expr import build
from fmhagen.expr.basics import f32
from fmhagen.expr.nodes import Node

_RTOL, _ATOL = build.const(1e-5), build.const(1e-8)


def is_negative(x: Node) -> Node:
    """Whether it is below 0; -0 counts as 0."""
    return build.lt(x, build.const(0))


def is_infinite(x: Node) -> Node:
    """Whether it is inf or -inf."""
    return build.eq(build.absolute(f32(x)), build.const(math.inf))


def is_finite(x: Node) -> Node:
    """Whether it is neither infinite nor NaN."""
    return build.lt(build.absolute(f32(x)), build.const(math.inf))


def is_nan(x: Node) -> Node:
    """Whether it is NaN."""
    return build.not_(build.le(build.absolute(f32(x)), build.const(math.inf)))


def is_positive_infinite(x: Node) -> Node:
    """Whether it is inf."""
    return build.eq(f32(x), build.const(math.inf))


def is_negative_infinite(x: Node) -> Node:
    """Whether it is -inf."""
    return build.eq(f32(x), build.const(-math.inf))


def is_close(x: Node, y: Node, rtol: Node = _RTOL, atol: Node = _ATOL) -> Node:
    """Whether |x - y| <= atol + rtol * |y|, or both are one number."""
    limit = build.add(atol, build.mul(rtol, build.absolute(y)))
    is_near = build.le(build.absolute(build.sub(f32(x), f32(y))), limit)
    return build.or_(build.eq(x, y), is_near)


def is_one_of(x: Node, *values: Node) -> Node:
    """Whether it equals any of some numbers."""
    found: Node = build.FALSE
    for value in values:
        found = build.or_(found, build.eq(x, value))
    return found
