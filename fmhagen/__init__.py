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
    from fmhagen.appending import AppendSpec, append_kv, emit_append
    from fmhagen.cascade import CascadeKernel
    from fmhagen.dispatch import attention
    from fmhagen.errors import FmhagenError, TraceError
    from fmhagen.expr.functions import (
        abs,
        ceil,
        clip,
        convert,
        exp,
        exp2,
        floor,
        log,
        log2,
        maximum,
        minimum,
        rsqrt,
        scalar,
        sigmoid,
        sqrt,
        tanh,
        tensor,
        where,
    )
    from fmhagen.expr.mods import MaskMod, ScoreMod
    from fmhagen.expr.nodes import Parameter
    from fmhagen.mapping import MapSpec, emit_map
    from fmhagen.merging import MergeSpec, emit_merge, merge_states
    from fmhagen.paging import PagedKVCache, PageStorage
    from fmhagen.runtime.block_map import BlockMap
    from fmhagen.schedule import Schedule
    from fmhagen.spec import AttentionSpec
    from fmhagen.targets import TARGETS, Target, find_target

_HOMES = {
    "AppendSpec": "fmhagen.appending",
    "AttentionSpec": "fmhagen.spec",
    "CascadeKernel": "fmhagen.cascade",
    "FmhagenError": "fmhagen.errors",
    "BlockMap": "fmhagen.runtime.block_map",
    "MapSpec": "fmhagen.mapping",
    "MergeSpec": "fmhagen.merging",
    "append_kv": "fmhagen.appending",
    "attention": "fmhagen.dispatch",
    "emit_append": "fmhagen.appending",
    "emit_map": "fmhagen.mapping",
    "emit_merge": "fmhagen.merging",
    "merge_states": "fmhagen.merging",
    "Kernel": "fmhagen.api",
    "MaskMod": "fmhagen.expr.mods",
    "PageStorage": "fmhagen.paging",
    "PagedKVCache": "fmhagen.paging",
    "Parameter": "fmhagen.expr.nodes",
    "Schedule": "fmhagen.schedule",
    "ScoreMod": "fmhagen.expr.mods",
    "TARGETS": "fmhagen.targets",
    "Target": "fmhagen.targets",
    "TraceError": "fmhagen.errors",
    "abs": "fmhagen.expr.functions",
    "ceil": "fmhagen.expr.functions",
    "choose_schedule": "fmhagen.api",
    "clip": "fmhagen.expr.functions",
    "compile_kernel": "fmhagen.api",
    "convert": "fmhagen.expr.functions",
    "emit": "fmhagen.api",
    "exp": "fmhagen.expr.functions",
    "exp2": "fmhagen.expr.functions",
    "find_target": "fmhagen.targets",
    "floor": "fmhagen.expr.functions",
    "log": "fmhagen.expr.functions",
    "log2": "fmhagen.expr.functions",
    "lower": "fmhagen.api",
    "maximum": "fmhagen.expr.functions",
    "minimum": "fmhagen.expr.functions",
    "reference": "fmhagen.api",
    "rsqrt": "fmhagen.expr.functions",
    "scalar": "fmhagen.expr.functions",
    "sigmoid": "fmhagen.expr.functions",
    "sqrt": "fmhagen.expr.functions",
    "tanh": "fmhagen.expr.functions",
    "tensor": "fmhagen.expr.functions",
    "where": "fmhagen.expr.functions",
}

__version__ = "0.1.0"
__all__ = [
    "TARGETS",
    "AppendSpec",
    "AttentionSpec",
    "BlockMap",
    "CascadeKernel",
    "FmhagenError",
    "Kernel",
    "MapSpec",
    "MaskMod",
    "MergeSpec",
    "PageStorage",
    "PagedKVCache",
    "Parameter",
    "Schedule",
    "ScoreMod",
    "Target",
    "TraceError",
    "abs",
    "append_kv",
    "attention",
    "ceil",
    "choose_schedule",
    "clip",
    "compile_kernel",
    "convert",
    "emit",
    "emit_append",
    "emit_map",
    "emit_merge",
    "exp",
    "exp2",
    "find_target",
    "floor",
    "log",
    "log2",
    "lower",
    "maximum",
    "merge_states",
    "minimum",
    "reference",
    "rsqrt",
    "scalar",
    "sigmoid",
    "sqrt",
    "tanh",
    "tensor",
    "where",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in ("masks", "scores"):
        return importlib.import_module(f"fmhagen.{name}")
    raise AttributeError(f"module 'fmhagen' has no attribute {name!r}")
