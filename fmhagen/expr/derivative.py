"""Derivative of a score function with respect to the score and to what it reads.

Where a function has a corner the derivative is that of one side: of `abs` at 0 that from the right,
of `minimum` and `maximum` of equal numbers that of the first. What is constant between steps
(floor, comparisons, ints) has derivative 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

from fmhagen.expr import build
from fmhagen.expr.nodes import Node, Parameter, Type, walk

_HALF, _ONE, _ZERO = build.const(0.5), build.const(1.0), build.const(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One place where a score function reads a parameter.

    Attributes:
        parameter: what is read.
        indices: of the element; () for a scalar.
        derivative: of the score function with respect to that element, as it is read here.
    """

    parameter: Parameter
    indices: tuple[Node, ...]
    derivative: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The derivatives of a score function at one position.

    Attributes:
        score: with respect to the score.
        reads: with respect to each element of a float parameter that it reads. An element that is
            read at several positions, or in several places, gets the sum.
    """

    score: Node
    reads: tuple[Read, ...]


def gradient(root: Node) -> Gradient:
    """Return every derivative of a score function; see `Gradient`."""
    variables = [
        node for node in walk(root) if node.op in ("param", "load") and node.type == Type.F32
    ]
    adjoints = _adjoints(root)
    return Gradient(
        score=adjoints.get(build.leaf("score"), _ZERO),
        reads=tuple(
            Read(parameter=node.value, indices=node.args, derivative=adjoints[node])
            for node in variables
            if node in adjoints
        ),
    )


def _adjoints(root: Node) -> dict[Node, Node]:
    """Return the derivative of an expression with respect to each of its float parts."""
    parts: dict[Node, list[Node]] = {root: [_ONE]}
    adjoints: dict[Node, Node] = {}
    for node in reversed(list(walk(root))):
        if node not in parts or node.type != Type.F32:
            continue
        adjoints[node] = reduce(build.add, parts[node])
        for arg, share in _shares(node, adjoints[node]):
            if arg.type == Type.F32 and not arg.is_const:
                parts.setdefault(arg, []).append(share)
    return adjoints


def _shares(node: Node, by: Node) -> list[tuple[Node, Node]]:
    """Return what each operand gets of a node's derivative."""
    args = node.args
    match node.op, args:
        case "add", (a, b):
            return [(a, by), (b, by)]
        case "sub", (a, b):
            return [(a, by), (b, build.neg(by))]
        case "neg", (a,):
            return [(a, build.neg(by))]
        case "mul", (a, b):
            return [(a, build.mul(by, b)), (b, build.mul(by, a))]
        case "div" | "quotient", (a, b):
            return [(a, build.div(by, b)), (b, build.neg(build.div(build.mul(by, node), b)))]
        case "where", (condition, a, b):
            return [
                (a, build.where(condition, by, _ZERO)),
                (b, build.where(condition, _ZERO, by)),
            ]
        case "min" | "max", (a, b):
            first = build.le(a, b) if node.op == "min" else build.le(b, a)
            return [(a, build.where(first, by, _ZERO)), (b, build.where(first, _ZERO, by))]
        case "abs", (a,):
            return [(a, build.where(build.lt(a, _ZERO), build.neg(by), by))]
    slope = _slope(node)
    return [] if slope is None else [(args[0], build.mul(by, slope))]


def _slope(node: Node) -> Node | None:
    """Return the derivative of a function of one float, or None if it is 0 or no such function."""
    match node.op:
        case "exp":
            return node
        case "exp2":
            return build.mul(build.const(math.log(2)), node)
        case "log":
            return build.div(_ONE, node.args[0])
        case "log2":
            return build.div(build.const(1 / math.log(2)), node.args[0])
        case "tanh":
            return build.sub(_ONE, build.mul(node, node))
        case "sigmoid":
            return build.mul(node, build.sub(_ONE, node))
        case "sqrt" | "root":
            return build.div(_HALF, node)
        case "rsqrt":
            return build.mul(build.const(-0.5), build.mul(node, build.mul(node, node)))
    return None
