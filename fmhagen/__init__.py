"""fmhagen: fused attention kernels for sm90 and gfx942 from one Python description.

    >>> import fmhagen
    >>> spec = fmhagen.AttentionSpec(dtype="bf16", head_dim=128, causal=True)
    >>> print(fmhagen.emit(spec, target="gfx942").text)      # one readable HIP file
    >>> kernel = fmhagen.compile_kernel(spec)                # a callable: o = kernel(q, k, v)

Importing the package touches no driver and no vendor package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fmhagen.api import Kernel, choose_schedule, compile_kernel, emit, lower, reference
    from fmhagen.errors import FmhagenError
    from fmhagen.paging import PagedKVCache, PageStorage
    from fmhagen.schedule import Schedule
    from fmhagen.spec import AttentionSpec
    from fmhagen.targets import TARGETS, Target, find_target

_HOMES = {
    "AttentionSpec": "fmhagen.spec",
    "FmhagenError": "fmhagen.errors",
    "Kernel": "fmhagen.api",
    "PageStorage": "fmhagen.paging",
    "PagedKVCache": "fmhagen.paging",
    "Schedule": "fmhagen.schedule",
    "TARGETS": "fmhagen.targets",
    "Target": "fmhagen.targets",
    "choose_schedule": "fmhagen.api",
    "compile_kernel": "fmhagen.api",
    "emit": "fmhagen.api",
    "find_target": "fmhagen.targets",
    "lower": "fmhagen.api",
    "reference": "fmhagen.api",
}

__version__ = "0.1.0"
__all__ = [
    "TARGETS",
    "AttentionSpec",
    "FmhagenError",
    "Kernel",
    "PageStorage",
    "PagedKVCache",
    "Schedule",
    "Target",
    "choose_schedule",
    "compile_kernel",
    "emit",
    "find_target",
    "lower",
    "reference",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fmhagen' has no attribute {name!r}")
