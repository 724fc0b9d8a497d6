"""C++ of the place of a tile of work, with what is read from memory once for all of it."""

from __future__ import annotations

from fmhagen.expr.basics import leaf
from fmhagen.expr.cxx import PLACE, TILE, text_of, wrapped
from fmhagen.expr.naming import names_of
from fmhagen.expr.nodes import Node, walk

_PLACE_HEAD = """\
// Where a tile of work lies: batch and query head, the lengths of its sequence{more}.
struct Place {{
  i32 b;
  i32 h;
  i32 seqlen_q;
  i32 seqlen_k;
{fields}}};"""
_PLACE_OF = """\
// The place of a tile of work.
FMHAGEN_DEVICE Place place_of(const Params&{params}, i32 b, i32 h, i32 seqlen_q, i32 seqlen_k) {{
  Place place = {{}};
  place.b = b;
  place.h = h;
  place.seqlen_q = seqlen_q;
  place.seqlen_k = seqlen_k;
{fields}  return place;
}}"""


def is_of_place(node: Node) -> bool:
    """Return whether an expression reads memory and is the same in all of a tile of work."""
    return node.op == "load" and not node.reads("q_idx", "kv_idx", "score", *TILE)


def place_names(*roots: Node) -> dict[Node, str]:
    """Return the members of Place that hold what some expressions read once a tile of work."""
    nodes = tuple(node for node in walk(*roots) if is_of_place(node))
    return {node: f"place.{name}" for node, name in names_of(nodes, PLACE).items()}


def place_text(members: dict[Node, str]) -> str:
    """Print the struct of a place and the function that fills it."""
    fields, lines = [], []
    done = {leaf(name): name for name in PLACE}  # the function's arguments
    for node, name in members.items():
        fields.append(f"  {node.type} {name.removeprefix('place.')};\n")
        lines += wrapped(f"  {name} = {text_of(node, done)[0]};", " " * 6)
        done[node] = name
    more = ", and what is read for it" if members else ""
    return "\n\n".join(
        (
            _PLACE_HEAD.format(fields="".join(fields), more=more),
            _PLACE_OF.format(
                params=" params" if members else "",
                fields="".join(line + "\n" for line in lines),
            ),
        )
    )
