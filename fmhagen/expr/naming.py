"""Names for shared subexpressions, from what they are: the same expression has the same names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from fmhagen.expr.nodes import Node, Type, walk

_NOUNS = {
    "add": "sum",
    "sub": "difference",
    "mul": "product",
    "div": "ratio",
    "quotient": "ratio",
    "floor_div": "quotient",
    "floor_mod": "remainder",
    "neg": "negated",
    "abs": "distance",
    "min": "smaller",
    "max": "larger",
    "shl": "shifted",
    "shr": "shifted",
    "lt": "is_below",
    "le": "is_within",
    "eq": "is_equal",
    "ne": "differs",
    "where": "chosen",
    "exp": "exponential",
    "exp2": "power",
    "log": "logarithm",
    "log2": "logarithm",
    "sqrt": "root",
    "root": "root",
    "rsqrt": "inverse_root",
    "cast": "converted",
}


def _noun(node: Node) -> str:
    if node.op in ("and", "or", "xor", "not"):
        return "holds" if node.type == Type.BOOL else "bits"
    if node.op == "load":
        return str(node.value.name) + "_value"
    if node.op == "sub" and all(arg.op == "leaf" for arg in node.args):
        return "_minus_".join(str(arg.value).removesuffix("_idx") for arg in node.args)
    return _NOUNS.get(node.op, node.op)


def is_atom(node: Node) -> bool:
    """Return whether a node has a name or is a number of its own."""
    return node.op in ("leaf", "const", "param")


def shared(*roots: Node, always: Callable[[Node], bool] = lambda node: False) -> tuple[Node, ...]:
    """Return the nodes that are used more than once, operands before what uses them.

    Args:
        roots: the expressions.
        always: whether a node gets a name though it is used once.
    """
    uses = Counter(arg for node in walk(*roots) for arg in node.args)
    uses.update(roots)
    return tuple(
        node
        for node in walk(*roots)
        if not is_atom(node) and (uses[node] > 1 or (always(node) and node not in roots))
    )


def names_of(nodes: tuple[Node, ...], taken: Collection[str]) -> dict[Node, str]:
    """Return a name for each node, different from one another and from those taken."""
    names: dict[Node, str] = {}
    used = set(taken)
    for node in nodes:
        noun = _noun(node)
        name, number = noun, 1
        while name in used:
            number += 1
            name = f"{noun}_{number}"
        used.add(name)
        names[node] = name
    return names
