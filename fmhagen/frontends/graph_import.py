"""Import of PyTorch's operators when a front end is met in a compiled region."""

from __future__ import annotations

from fmhagen.expr.basics import is_in_graph


def import_in_graphs() -> None:
    """Import `fmhagen.frontends.torch_ops` where PyTorch's compiler traces a graph.

    NOTE: not with the front ends, since it takes a second, which callers without a compiler save.
    """
    if is_in_graph():
        import fmhagen.frontends.torch_ops  # noqa: F401
