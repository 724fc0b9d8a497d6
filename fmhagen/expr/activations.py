"""Activations of networks, by PyTorch's names and with its options."""

from __future__ import annotations

import math

from fmhagen.expr import build
from fmhagen.expr.basics import f32
from fmhagen.expr.composed import (
    HALF,
    MINUS_ONE,
    ONE,
    ZERO,
    clip,
    erf,
    expm1,
    logaddexp,
    square,
)
from fmhagen.expr.nodes import Node

_SLOPE = build.const(0.01)
_SELU_SCALE, _SELU_ALPHA = build.const(1.0507009873554805), build.const(1.6732632423543772)
"""Klambauer et al., 'Self-Normalizing Neural Networks'."""


def softplus(x: Node, beta: Node = ONE, threshold: Node | None = None) -> Node:
    """log(1 + e^(beta x)) / beta. A threshold is of PyTorch's rounding, and not needed here."""
    del threshold
    return build.div(logaddexp(build.mul(beta, x), ZERO), beta)


def log_sigmoid(x: Node) -> Node:
    """log(sigmoid(x))."""
    return build.neg(softplus(build.neg(f32(x))))


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
    return build.where(build.lt(x, build.const(0)), build.mul(negative_slope, x), f32(x))


def elu(x: Node, alpha: Node = ONE) -> Node:
    """x, or alpha * (e^x - 1) where it is below 0."""
    low = build.minimum(f32(x), ZERO)  # of what is not chosen, too, the exponential is finite
    return build.where(build.lt(x, build.const(0)), build.mul(alpha, expm1(low)), f32(x))


def softsign(x: Node) -> Node:
    """x / (1 + |x|)."""
    return build.div(x, build.add(ONE, build.absolute(x)))


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


def selu(x: Node) -> Node:
    """elu of one alpha, scaled so that it keeps mean and variance."""
    return build.mul(_SELU_SCALE, elu(x, _SELU_ALPHA))


def celu(x: Node, alpha: Node = ONE) -> Node:
    """x, or alpha * (e^(x / alpha) - 1) where it is below 0."""
    low = build.minimum(f32(x), ZERO)
    bent = build.mul(alpha, expm1(build.div(low, alpha)))
    return build.where(build.lt(x, build.const(0)), bent, f32(x))


def mish(x: Node) -> Node:
    """x * tanh(softplus(x))."""
    return build.mul(f32(x), build.unary("tanh", softplus(x)))


def hard_sigmoid(x: Node) -> Node:
    """x / 6 + 1 / 2 within [0, 1]."""
    return clip(build.add(build.div(x, build.const(6.0)), HALF), ZERO, ONE)


def hard_swish(x: Node) -> Node:
    """x * hardsigmoid(x)."""
    return build.mul(f32(x), hard_sigmoid(x))


def tanh_shrink(x: Node) -> Node:
    """x - tanh(x)."""
    return build.sub(f32(x), build.unary("tanh", x))


def soft_shrink(x: Node, lambd: Node = HALF) -> Node:
    """x moved towards 0 by lambd, at most to 0."""
    return build.sub(f32(x), clip(f32(x), build.neg(lambd), lambd))


def hard_shrink(x: Node, lambd: Node = HALF) -> Node:
    """x, or 0 where it is within lambd of 0."""
    return build.where(build.le(build.absolute(x), lambd), ZERO, f32(x))


def threshold(x: Node, least: Node, value: Node) -> Node:
    """x, or a value where it is not above the least one."""
    return build.where(build.lt(least, x), x, value)
