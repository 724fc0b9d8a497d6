"""Score functions that are a line in score and key: gain * score + slope * kv_idx + rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fmhagen.expr import build
from fmhagen.expr.linear import linear
from fmhagen.expr.nodes import Node, Type

MOST_KEYS = 2**16  # by which a converted whole number grows from one key to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What one score and one key more add to a score function, the same for all keys of a row.

    Attributes:
        gain: by how much it grows with the score.
        slope: by how much it grows from one key to the next, or None if it does not.
    """

    gain: Node
    slope: Node | None

    @property
    def is_level(self) -> bool:
        """Whether it grows with the key, and with key and score alike in all rows."""
        return self.slope is not None and not (
            self.gain.reads("q_idx") or self.slope.reads("q_idx")
        )


_Grows = tuple[Node | None, Node | None]
"""By how much an expression grows with the score and with the key; None is not at all."""


def line_of(score: Node | None) -> Line | None:
    """Return a score function as a line, or None if it is none."""
    if score is None or score.type != Type.F32:
        return None
    grows = _grows(score)
    if grows is None or grows[0] is None:
        return None
    return Line(gain=grows[0], slope=grows[1])


def _is_free(node: Node) -> bool:
    return not node.reads("score", "kv_idx")


def _grows(node: Node) -> _Grows | None:
    """Return how an fp32 expression grows, or None if unevenly."""
    if _is_free(node):
        return None, None
    match node.op, node.args:
        case "leaf", _:
            return build.const(1.0), None
        case "neg", [a]:
            return _each(_grows(a), build.neg)
        case "add" | "sub", [a, b]:
            return _sum(_grows(a), _grows(b), build.add if node.op == "add" else build.sub)
        case "mul", [a, b] if _is_free(a):
            return _each(_grows(b), lambda x: build.mul(a, x))
        case "mul", [a, b] if _is_free(b):
            return _each(_grows(a), lambda x: build.mul(x, b))
        case "div", [a, b] if _is_free(b):
            return _each(_grows(a), lambda x: build.div(x, b))
        case "where", [c, a, b] if _is_free(c):
            return _sum(_grows(a), _grows(b), lambda x, y: build.where(c, x, y))
        case "cast", [a] if a.type == Type.I32:
            return _step(a)
    return None


def _step(node: Node) -> _Grows | None:
    """Return how a whole number grows with the key."""
    form = linear(node)
    slope = 0
    for term, count in form.terms.items():
        if _is_free(term):
            continue
        if term.op != "leaf" or term.value != "kv_idx" or abs(count) >= MOST_KEYS:
            return None
        slope = count
    return None, build.const(float(slope))


def _each(grows: _Grows | None, change: Callable[[Node], Node]) -> _Grows | None:
    if grows is None:
        return None
    gain, slope = grows
    return None if gain is None else change(gain), None if slope is None else change(slope)


def _sum(
    left: _Grows | None, right: _Grows | None, join: Callable[[Node, Node], Node]
) -> _Grows | None:
    if left is None or right is None:
        return None
    zero = build.const(0.0)
    joined = [
        None if a is None and b is None else join(a or zero, b or zero)
        for a, b in zip(left, right, strict=True)
    ]
    return joined[0], joined[1]
