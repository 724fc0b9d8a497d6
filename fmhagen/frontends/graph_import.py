"""Import of PyTorch's operators when a front end is met in a compiled region."""

from __future__ import annotations

import sys
from typing import Any


def import_in_graphs() -> None:
    """Import `fmhagen.frontends.torch_ops` where PyTorch's compiler traces a graph.

    NOTE: not with the front ends, since it takes a second, which callers without a compiler save.
    """
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "compiler") and torch.compiler.is_dynamo_compiling():
        import fmhagen.frontends.torch_ops  # noqa: F401
