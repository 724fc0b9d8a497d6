"""Whether a score function can hide a key: give -inf, or NaN, or as good as -inf for a score."""

from __future__ import annotations

import math

from fmhagen.expr.nodes import Node, Type, walk
from fmhagen.expr.ranges import range_of

_FINITE = frozenset(
    ("leaf", "param", "add", "sub", "mul", "neg", "abs", "min", "max", "where", "tanh", "sigmoid")
) | {"floor", "cast"}
LEAST_SCORE = -(2.0**27) * math.log(2.0)
"""A row whose scores are all below this has seen no key, if its score function may hide."""
_LARGE = 2.0**23  # a number that stands for infinity: sums with it lose what a score was
_JOINED = ("add", "sub", "where", "min", "max")
_LARGEST_EXPONENT = {"exp": 88.0, "exp2": 127.0}


def may_hide(score: Node | None) -> bool:
    """Return whether a score function may give what is not finite, or -1e30 to the same end.

    Other sums and products of finite numbers count as finite: a score near the end of fp32 is no
    score.
    Scalars are checked by the host. A tensor is finite only if it is declared to be.
    """
    if score is None:
        return False
    return any(node.type == Type.F32 and not _is_finite(node) for node in walk(score))


def _is_finite(node: Node) -> bool:
    if node.op in _JOINED and any(a.op == "const" and abs(a.value) >= _LARGE for a in node.args):
        return False
    if node.op == "const":
        return math.isfinite(node.value)
    if node.op == "load":
        return bool(node.value.finite)
    if node.op in _LARGEST_EXPONENT:
        return range_of(node.args[0])[1] <= _LARGEST_EXPONENT[node.op]
    if node.op in ("sqrt", "root"):
        return range_of(node.args[0])[0] >= 0
    if node.op in ("log", "log2", "rsqrt"):
        return range_of(node.args[0])[0] > 0
    if node.op in ("div", "quotient"):
        low, high = range_of(node.args[1])
        return low > 0 or high < 0
    return node.op in _FINITE
