"""Terms of a score function: what kind of expression they are, and how their texts go together."""

from __future__ import annotations

from collections.abc import Iterator

from fmhagen.expr.linear import linear
from fmhagen.expr.nodes import Node, Type

SUM, PRODUCT, WHOLE = 12, 13, 20  # how tightly a text binds

Text = tuple[str, int]

_PACKED = ("add", "sub", "mul", "neg")


def without_factor(score: Node) -> tuple[float, Node]:
    """Split off the constant factors above 0 that a score ends with."""
    factor, inner = 1.0, score
    while inner.op == "mul":
        constants = [arg for arg in inner.args if arg.is_const and 1e-6 < arg.value < 1e6]
        if not constants:
            break
        factor *= constants[0].value
        inner = inner.args[1] if inner.args[0] is constants[0] else inner.args[0]
    return factor, inner


def is_paired(node: Node) -> bool:
    """Return whether an expression differs from key to key."""
    return node.reads("score", "kv_idx")


def is_score(node: Node) -> bool:
    """Return whether an expression is the score itself."""
    return node.op == "leaf" and node.value == "score"


def is_packed(node: Node) -> bool:
    """Return whether an expression is arithmetic of pairs; some divisions are products."""
    return node.type == Type.F32 and (
        node.op in _PACKED or (node.op == "div" and not is_paired(node.args[1]))
    )


def numbers_of(node: Node) -> Iterator[Node]:
    """Yield the fp32 pairs that an expression takes apart: its operands, below whole numbers."""
    for arg in node.args:
        if not is_paired(arg):
            continue
        if arg.type == Type.F32:
            yield arg
        else:
            yield from numbers_of(arg)


def slope_of(node: Node) -> int | None:
    """Return by how much a converted whole number grows with the key, or None if unevenly."""
    if node.op != "cast" or node.type != Type.F32 or node.args[0].type != Type.I32:
        return None
    form = linear(node.args[0])
    slopes = [count for term, count in form.terms.items() if is_paired(term)]
    is_even = all(term.op == "leaf" or not is_paired(term) for term in form.terms)
    return slopes[0] if len(slopes) == 1 and is_even and abs(slopes[0]) < 2**16 else None


def product_of(others: list[str], factor: float) -> str:
    """Return a product of numbers as one factor, or "" for 1."""
    factors = others + ([f"{factor!r}f"] if factor != 1.0 else [])
    return factors[0] if len(factors) == 1 else f"({' * '.join(factors)})" if factors else ""


def is_product(node: Node) -> bool:
    """Return whether an expression is printed as a product: the score is scaled."""
    return is_score(node) or node.op in ("mul", "div")


def as_factor(text: Text) -> str:
    """Return a text as a factor of a product."""
    return text[0] if text[1] >= PRODUCT else f"({text[0]})"


def as_whole(text: Text) -> str:
    """Return a text that nothing can take apart."""
    return text[0] if text[1] >= WHOLE else f"({text[0]})"
