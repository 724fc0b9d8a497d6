"""Bands: what a mask shows to row q_idx, as a union of ranges of keys [first, end).

A mask is solved for the key, brought to a sum of products, and each product becomes a band. Both
bounds of a band are expressions of q_idx that never fall as q_idx grows, so for the rows m0..m1 of
a tile the band touches the keys [first(m0), end(m1)) and shows all rows [first(m1), end(m0)).

Bands are joined where the union of two is one range again, so that a tile that both of them
together show is fully visible in one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

from fmhagen.expr import build
from fmhagen.expr.linear import never_less
from fmhagen.expr.nodes import Node
from fmhagen.expr.products import (
    FAR,
    NEAR,
    START,
    STOP,
    Product,
    joined,
    largest_of,
    smallest_of,
)
from fmhagen.expr.solving import Formula, Junction, Kind, Literal, both, solve
from fmhagen.expr.substitution import substitute

MOST_BANDS = 4
_MOST_PRODUCTS = 64
_ROW = build.leaf("q_idx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One range of keys for each row; bounds are not clamped to [0, seqlen_k).

    Attributes:
        first: the first key that row q_idx sees.
        end: one past the last.
    """

    first: Node
    end: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is known of a mask in closed form.

    Attributes:
        bands: row q_idx sees at most the keys of their union.
        rest: what must hold besides for a key to be visible, or None if the bands are the mask.
    """

    bands: tuple[Band, ...]
    rest: Node | None

    @property
    def exact(self) -> bool:
        """Whether the mask is one band and nothing else."""
        return self.rest is None and len(self.bands) == 1

    @property
    def right_only(self) -> bool:
        """Whether the mask is one band that begins with the first key."""
        return self.exact and self.bands[0].first is START


def bounds_of(mask: Node | None) -> Bounds:
    """Return the bands of a mask and what they do not say."""
    if mask is None:
        return Bounds(bands=(Band(first=START, end=STOP),), rest=None)
    parts = [(part, solve(part)) for part in _conjuncts(mask)]
    unsolved = [part for part, formula in parts if _has_rest(formula)]
    rest = reduce(build.and_, unsolved) if unsolved else None
    products = _products(both(*(formula for _, formula in parts)))
    if products is None or len(products) > MOST_BANDS:
        return Bounds(bands=(Band(first=START, end=STOP),), rest=mask)
    bands = tuple(_band(product) for product in products)
    return Bounds(bands=bands or (Band(first=FAR, end=NEAR),), rest=rest)


def _conjuncts(mask: Node) -> Iterator[Node]:
    if mask.op == "and":
        for arg in mask.args:
            yield from _conjuncts(arg)
    else:
        yield mask


def _has_rest(formula: Formula) -> bool:
    if isinstance(formula, Junction):
        return any(_has_rest(part) for part in formula.parts)
    return formula.kind == Kind.REST


def _products(formula: Formula) -> list[Product] | None:
    """Return a formula as a sum of products, joined as far as it goes; None if it is too long."""
    conjunctions = _distribute(formula)
    if conjunctions is None:
        return None
    products: list[Product] = []
    for conjunction in conjunctions:
        product = _product(conjunction)
        if product is not None and product not in products:
            products.append(product)
    return joined(products)


def _distribute(formula: Formula) -> list[tuple[Literal, ...]] | None:
    if isinstance(formula, Literal):
        return [(formula,)]
    parts = [_distribute(part) for part in formula.parts]
    sums: list[tuple[Literal, ...]] = [()] if formula.op == "and" else []
    for part in parts:
        if part is None:
            return None
        sums = [a + b for a in sums for b in part] if formula.op == "and" else sums + part
        if len(sums) > _MOST_PRODUCTS:
            return None
    return sums


def _product(conjunction: tuple[Literal, ...]) -> Product | None:
    """Sort literals by kind; None if they contradict one another."""

    def of(kind: Kind) -> list[Node]:
        return [literal.bound for literal in conjunction if literal.kind == kind]

    conditions = []
    for condition in dict.fromkeys(of(Kind.UNIFORM)):
        if condition is build.FALSE or build.not_(condition) in conditions:
            return None
        if condition is not build.TRUE:
            conditions.append(condition)
    firsts = _strongest([*of(Kind.KEY_FROM), START], largest=True)
    ends = _strongest([*of(Kind.KEY_BELOW), STOP], largest=False)
    row_firsts = _strongest([*of(Kind.ROW_FROM), START], largest=True)
    row_ends = _strongest([*of(Kind.ROW_BELOW), build.leaf("seqlen_q")], largest=False)
    if any(never_less(a, b) for a in firsts for b in ends):
        return None
    if any(never_less(a, b) for a in row_firsts for b in row_ends):
        return None
    return Product(
        firsts=tuple(node for node in firsts if node is not START),
        ends=tuple(node for node in ends if node is not STOP),
        row_firsts=tuple(node for node in row_firsts if node is not START),
        row_ends=tuple(node for node in row_ends if node is not build.leaf("seqlen_q")),
        conditions=tuple(conditions),
    )


def _strongest(nodes: list[Node], *, largest: bool) -> list[Node]:
    """Leave out every bound that another one implies."""
    kept: list[Node] = []
    for node in dict.fromkeys(nodes):

        def implied(by: Node, node: Node = node) -> bool:
            return never_less(by, node) if largest else never_less(node, by)

        if any(implied(other) for other in kept):
            continue
        kept = [
            other
            for other in kept
            if not (never_less(node, other) if largest else never_less(other, node))
        ]
        kept.append(node)
    return kept


def _band(product: Product) -> Band:
    first = largest_of(product.firsts) if product.firsts else START
    end = smallest_of(product.ends) if product.ends else STOP
    low = largest_of(product.row_firsts) if product.row_firsts else None
    high = smallest_of(product.row_ends) if product.row_ends else None
    # Rows before `low` and from `high` on see nothing: their ranges are empty, and bounds that are
    # taken of the nearest row that sees something keep the range of a tile's rows tight.
    if low is not None:
        first = substitute(first, {_ROW: build.maximum(_ROW, low)})
        end = build.where(build.le(low, _ROW), end, NEAR)
    if high is not None:
        end = substitute(end, {_ROW: build.minimum(_ROW, build.sub(high, build.const(1)))})
        first = build.where(build.lt(_ROW, high), first, FAR)
    for condition in product.conditions:
        first = build.where(condition, first, FAR)
        end = build.where(condition, end, NEAR)
    return Band(first=first, end=end)
