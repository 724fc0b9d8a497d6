"""Tiles: what an expression can be for the rows m_first..m_last and the keys n_first..n_last.

Interval arithmetic on expressions: the bounds are expressions again, so that the same printer and
evaluator serve. A bound of None is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fmhagen.expr import build
from fmhagen.expr.nodes import Node, Type, walk
from fmhagen.expr.ranges import range_of
from fmhagen.expr.substitution import rebuilt

_SPAN = {
    "q_idx": (build.leaf("m_first"), build.leaf("m_last")),
    "kv_idx": (build.leaf("n_first"), build.leaf("n_last")),
}
_ZERO, _ONE = build.const(0), build.const(1)
HIDDEN, PARTLY, FULLY = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Span:
    """Bounds of a number over a tile, or (must hold, may hold) of a condition."""

    low: Node | None
    high: Node | None


_UNKNOWN = Span(None, None)
_MAYBE = Span(build.FALSE, build.TRUE)


def tile_class(condition: Node) -> Node:
    """Return an i32 expression of a tile: 0 where the condition holds nowhere in it, 2 where it
    holds everywhere, 1 where neither is known."""
    span = spans(condition)[condition]
    must, may = span.low, span.high
    assert must is not None
    assert may is not None
    visible = build.where(must, build.const(FULLY), build.const(PARTLY))
    return build.where(may, visible, build.const(HIDDEN))


def is_unknown(condition: Node) -> bool:
    """Return whether a condition reads an element of a tensor of which a tile has no bounds."""
    return any(
        node.op == "load" and found in (_UNKNOWN, _MAYBE)
        for node, found in spans(condition).items()
    )


def spans(root: Node) -> dict[Node, Span]:
    """Return the bounds of an expression and of everything below it."""
    found: dict[Node, Span] = {}
    for node in walk(root):
        if not node.reads(*_SPAN):
            found[node] = Span(node, node)
        elif node.type == Type.BOOL:
            found[node] = _condition(node, found)
        else:
            found[node] = _number(node, found)
    return found


def _number(node: Node, found: dict[Node, Span]) -> Span:
    if node.op == "leaf":
        return Span(*_SPAN[node.value])
    args = [found[arg] for arg in node.args]
    match node.op, args:
        case "load", _:
            return _element(node, args)
        case "where", [condition, a, b]:
            return _chosen(condition, a, b)
        case "add", [a, b]:
            return Span(_apply(build.add, a.low, b.low), _apply(build.add, a.high, b.high))
        case "sub", [a, b]:
            return Span(_apply(build.sub, a.low, b.high), _apply(build.sub, a.high, b.low))
        case "neg", [a]:
            return Span(_apply(build.neg, a.high), _apply(build.neg, a.low))
        case "min", [a, b]:
            return Span(
                _apply(build.minimum, a.low, b.low),
                _apply(build.minimum, a.high, b.high) or a.high or b.high,
            )
        case "max", [a, b]:
            return Span(
                _apply(build.maximum, a.low, b.low) or a.low or b.low,
                _apply(build.maximum, a.high, b.high),
            )
        case "abs", [a]:
            return _absolute(a)
        case "mul", [a, b]:
            return _product(node, a, b)
        case "floor_div", [a, b] if b.low is b.high and range_of(node.args[1])[0] >= 1:
            return Span(
                _apply(build.floor_div, a.low, b.low), _apply(build.floor_div, a.high, b.low)
            )
        case "floor_mod", [a, b] if b.low is b.high and range_of(node.args[1])[0] >= 1:
            return _remainder(a, node.args[1])
        case "div" | "quotient", [a, b] if b.low is b.high and range_of(node.args[1])[0] > 0:
            return Span(_like(node, a.low, b.low), _like(node, a.high, b.low))
        case "root", [a]:
            return Span(_like(node, a.low), _like(node, a.high))
        case "shr" | "shl", [a, b] if b.low is b.high:
            shift = build.shr if node.op == "shr" else build.shl
            return Span(_apply(shift, a.low, b.low), _apply(shift, a.high, b.low))
        case "cast" | "floor", [a] if node.args[0].type != Type.BOOL:
            if node.op == "floor":
                return Span(_apply(build.floor, a.low), _apply(build.floor, a.high))
            return Span(_cast(a.low, node.type), _cast(a.high, node.type))
        case "cast", [a]:
            return Span(_cast(a.low, node.type), _cast(a.high, node.type))
    return _UNKNOWN


def _like(node: Node, *args: Node | None) -> Node | None:
    """Return the operation of a node on other operands, as exact as it is."""
    return _apply(lambda *known: rebuilt(node, known), *args)


def _apply(function: Callable[..., Node], *nodes: Node | None) -> Node | None:
    return None if any(node is None for node in nodes) else function(*nodes)


def _cast(node: Node | None, type: Type) -> Node | None:
    return None if node is None else build.cast(node, type)


def _absolute(a: Span) -> Span:
    if a.low is None or a.high is None:
        return Span(_ZERO, None)
    negative = build.neg(a.high)
    zero = build.cast(_ZERO, a.low.type)
    return Span(
        build.maximum(zero, build.maximum(a.low, negative)),
        build.maximum(a.high, build.neg(a.low)),
    )


def _product(node: Node, a: Span, b: Span) -> Span:
    for x, y, factor in ((a, b, node.args[1]), (b, a, node.args[0])):
        if y.low is not y.high:
            continue
        low, high = range_of(factor)
        if low >= 0:
            return Span(_apply(build.mul, x.low, y.low), _apply(build.mul, x.high, y.low))
        if high <= 0:
            return Span(_apply(build.mul, x.high, y.low), _apply(build.mul, x.low, y.low))
    return _UNKNOWN


def _remainder(a: Span, divisor: Node) -> Span:
    last = build.sub(divisor, _ONE)
    if a.low is None or a.high is None:
        return Span(_ZERO, last)
    one_period = build.eq(build.floor_div(a.low, divisor), build.floor_div(a.high, divisor))
    return Span(
        build.where(one_period, build.floor_mod(a.low, divisor), _ZERO),
        build.where(one_period, build.floor_mod(a.high, divisor), last),
    )


def _element(node: Node, args: list[Span]) -> Span:
    """A row of a tensor that never falls has its bounds at the bounds of its last index."""
    *others, last = args
    is_one_row = all(arg.low is arg.high for arg in others)
    if not node.value.non_decreasing or not is_one_row or last.low is None or last.high is None:
        return _UNKNOWN
    before = node.args[:-1]
    return Span(
        build.load(node.value, *before, last.low), build.load(node.value, *before, last.high)
    )


def _chosen(condition: Span, a: Span, b: Span) -> Span:
    if condition.low is condition.high:
        return Span(
            _apply(build.where, condition.low, a.low, b.low),
            _apply(build.where, condition.low, a.high, b.high),
        )
    return Span(_apply(build.minimum, a.low, b.low), _apply(build.maximum, a.high, b.high))


def _condition(node: Node, found: dict[Node, Span]) -> Span:
    args = [found[arg] for arg in node.args]
    match node.op, args:
        case "and", [a, b]:
            return Span(_apply(build.and_, a.low, b.low), _apply(build.and_, a.high, b.high))
        case "or", [a, b]:
            return Span(_apply(build.or_, a.low, b.low), _apply(build.or_, a.high, b.high))
        case "not", [a]:
            return Span(_apply(build.not_, a.high), _apply(build.not_, a.low))
        case "le" | "lt", [a, b]:
            test = build.le if node.op == "le" else build.lt
            return Span(
                _apply(test, a.high, b.low) or build.FALSE,
                _apply(test, a.low, b.high) or build.TRUE,
            )
        case "eq", [a, b]:
            return _equality(a, b)
        case "ne", [a, b]:
            equal = _equality(a, b)
            return Span(_apply(build.not_, equal.high), _apply(build.not_, equal.low))
        case "xor", [a, b]:
            differ = build.xor(*(build.cast(x, Type.BOOL) for x in (a.low, b.low) if x is not None))
            known = build.and_(_is_known(a), _is_known(b))
            return Span(build.and_(known, differ), build.or_(build.not_(known), differ))
        case "where", [c, a, b]:
            if c.low is c.high and c.low is not None:
                return _chosen(c, a, b)
            must = _apply(build.and_, a.low, b.low)
            return Span(must, _apply(build.or_, a.high, b.high))
        case "load", _:
            return _element(node, args) if _element(node, args).low is not None else _MAYBE
    return _MAYBE


def _is_known(span: Span) -> Node:
    assert span.low is not None
    assert span.high is not None
    return build.not_(build.xor(span.low, span.high))


def _equality(a: Span, b: Span) -> Span:
    if a.low is None or a.high is None or b.low is None or b.high is None:
        # Half known: they differ at least where the known halves lie apart.
        apart = [
            build.lt(high, low)
            for high, low in ((a.high, b.low), (b.high, a.low))
            if high is not None and low is not None
        ]
        may = build.not_(apart[0]) if apart else build.TRUE
        return Span(build.FALSE, may)
    may = build.and_(build.le(a.low, b.high), build.le(b.low, a.high))
    must = build.and_(build.le(a.high, b.low), build.le(b.high, a.low))
    return Span(must, may)
