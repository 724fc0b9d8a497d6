"""What a score function reads by the key: fetched while a wave multiplies, ahead of its use."""

from __future__ import annotations

from collections.abc import Collection

from fmhagen.expr.cxx import text_of, wrapped
from fmhagen.expr.naming import names_of
from fmhagen.expr.nodes import Node, Parameter, walk
from fmhagen.lowering.score_terms import is_paired
from fmhagen.plan.score_pair import Fetch

# By the element type of a tensor: the type of what is fetched, the function that fetches it as it
# is, and what its use makes of it. NOTE: a conversion at once would wait for the element.
_RAW = {
    "f32": ("f32", "f32", "{}"),
    "f16": ("i32", "u16", "widened_f16({})"),
    "bf16": ("i32", "u16", "widened_bf16({})"),
    "i32": ("i32", "i32", "{}"),
    "i64": ("i32", "i64", "{}"),
    "u8": ("i32", "u8", "{}"),
    "bool": ("i32", "u8", "({} != 0)"),
}


def fetched_nodes(root: Node) -> tuple[Node, ...]:
    """Return the elements that a score function reads by the key alone or with what it knows.

    Those that index others are read with them.
    """
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "load" and is_paired(node) and not node.reads("score"):
            found[node] = None
        else:
            stack.extend(reversed(node.args))
    return tuple(found)


def nodes_outside(root: Node, fetched: Collection[Node]) -> tuple[Node, ...]:
    """Return what is left of a score function, operands first; what is fetched has no operands."""
    reached: set[Node] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node not in reached:
            reached.add(node)
            if node not in fetched:
                stack.extend(node.args)
    return tuple(node for node in walk(root) if node in reached)


def make_fetches(
    nodes: tuple[Node, ...], members: dict[Node, str], taken: Collection[str]
) -> dict[Node, Fetch]:
    """Print how elements are read, given the names that a place of work has for expressions."""
    fetches = {}
    for node, name in names_of(nodes, taken).items():
        parameter: Parameter = node.value
        ctype, raw, use = _RAW[parameter.dtype]
        text = text_of(node, members)[0].removesuffix(" != 0")
        call = text.replace(f"load_param_{parameter.dtype}(", f"load_param_{raw}(", 1)
        if parameter.dtype == "bool":
            call = text
        below = [inner for inner in walk(node) if inner.op == "load"]
        is_direct = any(
            arg.op == "leaf" and arg.value == "kv_idx" for inner in below for arg in inner.args
        )
        fetches[node] = Fetch(
            name=name,
            ctype=ctype,
            lines=tuple(wrapped(f"    keys.{name}[at + i] = {call};", " " * 8)),
            use=use,
            loads=len([inner for inner in below if is_paired(inner)]),
            clamps_key=is_direct,
        )
    return fetches
