"""Exact division and square roots where a small error would change a whole result.

Kernels divide by multiplying with a reciprocal, which is good to a unit in the last place: enough
for a score, but q_idx / 41 of row 41 may be just below 1, and its floor, or a comparison with
whole numbers, is then wrong. What goes into such a step is divided truly, as by NumPy and PyTorch.
"""

from __future__ import annotations

import math

from fmhagen.expr.nodes import Node, Type

_EXACT = {"div": "quotient", "sqrt": "root"}
_LEADS_ON = frozenset(("add", "sub", "mul", "neg", "abs", "min", "max", "where", *_EXACT))


def exactly(node: Node) -> Node:
    """Return an expression with its divisions and square roots exact.

    What reads the score stays: that was rounded before. So does a division by a power of two.
    """
    return _exactly(node, {})


def _exactly(node: Node, done: dict[Node, Node]) -> Node:
    if node.type != Type.F32 or node.op not in _LEADS_ON or node.reads("score"):
        return node
    if node not in done:
        args = tuple(_exactly(arg, done) for arg in node.args)
        op = node.op if node.op == "div" and _is_power_of_two(args[1]) else _EXACT.get(node.op)
        done[node] = Node.of(op or node.op, node.type, args)
    return done[node]


def _is_power_of_two(node: Node) -> bool:
    return node.is_const and abs(math.frexp(node.value)[0]) == 0.5
