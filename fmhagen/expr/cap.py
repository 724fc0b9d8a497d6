"""Score functions that are a soft cap alone: outer * tanh(inner * score)."""

from __future__ import annotations

from dataclasses import dataclass

from fmhagen.expr.nodes import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """The two factors of a soft cap; neither is 0.

    Attributes:
        outer: of the hyperbolic tangent.
        inner: of the score in it.
    """

    outer: float
    inner: float


def cap_of(score: Node | None) -> Cap | None:
    """Return a score function as a soft cap, or None if it is none."""
    if score is None:
        return None
    outer, tanh = _factor_of(score)
    if tanh.op != "tanh":
        return None
    inner, leaf = _factor_of(tanh.args[0])
    if leaf.op != "leaf" or leaf.value != "score" or not outer or not inner:
        return None
    return Cap(outer=outer, inner=inner)


def _factor_of(node: Node) -> tuple[float, Node]:
    """Split off the constants that an expression is multiplied or divided by."""
    factor = 1.0
    while True:
        match node.op, node.args:
            case "mul", [a, b] if a.is_const:
                factor, node = factor * a.value, b
            case "mul", [a, b] if b.is_const:
                factor, node = factor * b.value, a
            case "div", [a, b] if b.is_const and b.value:
                factor, node = factor / b.value, a
            case "neg", [a]:
                factor, node = -factor, a
            case _:
                return factor, node
