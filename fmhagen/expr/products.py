"""Products of bounds: one range of keys each, and how the union of two becomes one range again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

from fmhagen.expr import build
from fmhagen.expr.linear import never_less
from fmhagen.expr.nodes import Node

FAR = build.const(2**30)
NEAR = build.const(-(2**30))
START, STOP = build.const(0), build.leaf("seqlen_k")


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A conjunction of literals, by kind; a bound that another one implies is left out."""

    firsts: tuple[Node, ...] = ()
    ends: tuple[Node, ...] = ()
    row_firsts: tuple[Node, ...] = ()
    row_ends: tuple[Node, ...] = ()
    conditions: tuple[Node, ...] = ()

    @property
    def rows(self) -> tuple[tuple[Node, ...], ...]:
        """What it says of anything but the key."""
        return (self.row_firsts, self.row_ends, self.conditions)


def joined(products: list[Product]) -> list[Product]:
    """Join two products for as long as some two are one."""
    changed = True
    while changed:
        changed = False
        for i, a in enumerate(products):
            for b in products[i + 1 :]:
                pair = _pair(a, b)
                if pair is not None:
                    others = [p for p in products if p is not a and p is not b]
                    products = [*others, *pair]
                    changed = True
                    break
            if changed:
                break
    return products


def _pair(a: Product, b: Product) -> list[Product] | None:
    """Return what the union of two products is instead, or None if they stay as they are."""
    for x, y in ((a, b), (b, a)):
        if _implies(x, y):
            return [y]
    if a.rows == b.rows:
        if set(a.firsts) == set(b.firsts):
            return [replace(a, ends=_united(a.ends, b.ends, smallest_of, build.maximum))]
        if set(a.ends) == set(b.ends):
            return [replace(a, firsts=_united(a.firsts, b.firsts, largest_of, build.minimum))]
        for x, y in ((a, b), (b, a)):
            closed = _closed(x, y)
            if closed is not None:
                return closed
        return None
    return _cases(a, b)


def _implies(a: Product, b: Product) -> bool:
    """Return whether whatever a shows b is known to show, too."""
    return (
        all(any(never_less(other, node) for other in (*a.firsts, START)) for node in b.firsts)
        and all(any(never_less(node, other) for other in (*a.ends, STOP)) for node in b.ends)
        and all(set(theirs) <= set(ours) for theirs, ours in zip(b.rows, a.rows, strict=True))
    )


def largest_of(nodes: tuple[Node, ...]) -> Node:
    """Return the largest of some bounds."""
    return reduce(build.maximum, nodes)


def smallest_of(nodes: tuple[Node, ...]) -> Node:
    """Return the smallest of some bounds."""
    return reduce(build.minimum, nodes)


def _united(
    a: tuple[Node, ...],
    b: tuple[Node, ...],
    one: Callable[[tuple[Node, ...]], Node],
    other: Callable[[Node, Node], Node],
) -> tuple[Node, ...]:
    """Return the bounds of a union of ranges that share the bounds at their other end."""
    common = tuple(node for node in a if node in b)
    only_a = tuple(node for node in a if node not in common)
    only_b = tuple(node for node in b if node not in common)
    if not only_a or not only_b:
        return common
    x, y = one(only_a), one(only_b)
    # max of two ends, min of two firsts; the one that is known to be that
    larger = x if never_less(x, y) else y if never_less(y, x) else None
    if larger is not None:
        smaller = y if larger is x else x
        return (*common, larger if other is build.maximum else smaller)
    return (*common, other(x, y))


def _closed(a: Product, b: Product) -> list[Product] | None:
    """Close the gap between two ranges where there is none.

    With a = [D, min(C, e)) and b = [max(D, f), C): where f <= e their union is [D, C). If e does
    not depend on the row, b begins with D there; if f does not, a ends with C there. Either way
    the bounds still never fall.
    """
    common_ends = set(a.ends) & set(b.ends)
    common_firsts = set(a.firsts) & set(b.firsts)
    if set(b.ends) != common_ends or set(a.firsts) != common_firsts:
        return None
    ends = tuple(node for node in a.ends if node not in common_ends)
    firsts = tuple(node for node in b.firsts if node not in common_firsts)
    if not ends or not firsts:
        return None
    end, first = smallest_of(ends), largest_of(firsts)
    meet = build.le(first, end)
    if meet is build.FALSE or any(_is_closed(node) for node in (*ends, *firsts)):
        return None
    if meet is build.TRUE or never_less(end, first):
        return [replace(a, ends=tuple(node for node in a.ends if node in common_ends))]
    if not end.reads("q_idx"):
        begin = build.where(meet, START, first)
        kept = tuple(node for node in b.firsts if node in common_firsts)
        return [a, replace(b, firsts=(*kept, begin))]
    if not first.reads("q_idx"):
        stop = build.where(meet, FAR, end)
        kept = tuple(node for node in a.ends if node in common_ends)
        return [replace(a, ends=(*kept, stop)), b]
    return None


def _is_closed(node: Node) -> bool:
    """Return whether a bound has been through `_closed` before."""
    return node.op == "where" and (node.args[1] is START or node.args[1] is FAR)


def _cases(a: Product, b: Product) -> list[Product] | None:
    """Make one range of two that hold under opposite conditions."""
    if (a.row_firsts, a.row_ends) != (b.row_firsts, b.row_ends):
        return None
    for condition in a.conditions:
        opposite = build.not_(condition)
        rest_a = tuple(c for c in a.conditions if c is not condition)
        rest_b = tuple(c for c in b.conditions if c is not opposite)
        if opposite in b.conditions and rest_a == rest_b:
            first_a, first_b = (largest_of((*p.firsts,)) if p.firsts else START for p in (a, b))
            end_a, end_b = (smallest_of((*p.ends,)) if p.ends else STOP for p in (a, b))
            first = build.where(condition, first_a, first_b)
            end = build.where(condition, end_a, end_b)
            return [
                replace(
                    a,
                    firsts=() if first is START else (first,),
                    ends=() if end is STOP else (end,),
                    conditions=rest_a,
                )
            ]
    return None
