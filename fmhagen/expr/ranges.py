"""What is known of an int expression without any value: its range, and which way it moves."""

from __future__ import annotations

import math
from functools import lru_cache

from fmhagen.expr.nodes import Node, Type

Range = tuple[float, float]
_ALL: Range = (-math.inf, math.inf)


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


@lru_cache(maxsize=4096)
def range_of(node: Node) -> Range:
    """Return bounds of an expression's value; infinite where none is known."""
    if node.op == "const":
        return (float(node.value), float(node.value))
    if node.type == Type.BOOL:
        return (0.0, 1.0)
    if node.op == "leaf":
        return (0.0, math.inf) if node.type == Type.I32 else _ALL
    if node.op == "load":
        return (0.0, 255.0) if node.value.dtype == "u8" else _ALL
    args = [range_of(arg) for arg in node.args]
    match node.op, args:
        case "add", [(a, b), (c, d)]:
            return (a + c, b + d)
        case "sub", [(a, b), (c, d)]:
            return (a - d, b - c)
        case "neg", [(a, b)]:
            return (-b, -a)
        case "mul", [(a, b), (c, d)]:
            corners = (_times(a, c), _times(a, d), _times(b, c), _times(b, d))
            return (min(corners), max(corners))
        case "abs", [(a, b)]:
            return (a, b) if a >= 0 else (max(0.0, -b), max(-a, b))
        case "min", [(a, b), (c, d)]:
            return (min(a, c), min(b, d))
        case "max", [(a, b), (c, d)]:
            return (max(a, c), max(b, d))
        case "floor_div", [(a, b), (c, d)] if c > 0:
            low = a // d if a >= 0 else a // c
            high = b // c if b >= 0 else b // d
            return (
                low if math.isfinite(a) else (a if a < 0 else 0.0),
                high if math.isfinite(b) else (b if b > 0 else 0.0),
            )
        case "floor_mod", [(a, b), (c, d)] if c > 0:
            return (0.0, min(d - 1, b) if a >= 0 else d - 1)
        case "where", [_, (a, b), (c, d)]:
            return (min(a, c), max(b, d))
        case "div" | "quotient", [(a, b), (c, d)] if c == d and c > 0:
            return (a / c, b / c)
        case "tanh", _:
            return (-1.0, 1.0)
        case "sigmoid", _:
            return (0.0, 1.0)
        case "exp" | "exp2" | "sqrt" | "root" | "rsqrt", _:
            return (0.0, math.inf)
        case "cast", [(a, b)]:
            return (a, b) if node.args[0].type != Type.F32 else _ALL
        case "and", [(a, b), (c, d)] if a >= 0 or c >= 0:
            return (0.0, min(b if a >= 0 else math.inf, d if c >= 0 else math.inf))
        case "shr", [(a, b), _] if a >= 0:
            return (0.0, b)
    return _ALL


FALLS, STAYS, RISES = -1, 0, 1


@lru_cache(maxsize=4096)
def direction(node: Node, leaf: str) -> int | None:
    """Return which way an expression moves when a leaf grows; None where that is not known.

    RISES means that it never falls, FALLS that it never rises, STAYS that it does not depend on it.
    """
    if not node.reads(leaf):
        return STAYS
    if node.op == "leaf":
        return RISES
    ways = [direction(arg, leaf) for arg in node.args]
    match node.op, ways:
        case "add" | "min" | "max", [a, b]:
            return _joined(a, b)
        case "sub", [a, b]:
            return _joined(a, None if b is None else -b)
        case "neg", [a]:
            return None if a is None else -a
        case "cast" | "floor", [a]:
            return a if node.args[0].type != Type.BOOL else None
        case "mul", [a, b]:
            return _scaled(a, node.args[1]) if b == STAYS else _scaled_if(a, b, node)
        case "floor_div" | "div" | "quotient", [a, 0]:
            return _scaled(a, node.args[1])
        case "where", [0, a, b]:
            return _joined(a, b)
        case "shr" | "shl", [a, 0]:
            return a
        case "load", _ if node.value.non_decreasing and set(ways[:-1]) <= {STAYS}:
            return ways[-1]
    return None


def _joined(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return None
    return a or b if STAYS in (a, b) or a == b else None


def _scaled(way: int | None, factor: Node) -> int | None:
    low, high = range_of(factor)
    if way is None:
        return None
    return way if low >= 0 else -way if high <= 0 else None


def _scaled_if(a: int | None, b: int | None, node: Node) -> int | None:
    return _scaled(b, node.args[0]) if a == STAYS else None
