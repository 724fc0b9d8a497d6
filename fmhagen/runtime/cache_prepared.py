"""One layout of a call over a key/value cache: both launches, and the workspace between them."""

from __future__ import annotations

from dataclasses import dataclass

from fmhagen.errors import TensorError
from fmhagen.runtime.cache_checks import CacheProblem, cache_axes
from fmhagen.runtime.cache_values import (
    Cut,
    cache_operand,
    cache_values,
    workspace_bytes,
)
from fmhagen.runtime.launch_values import Value, operand, scale_log2_of
from fmhagen.runtime.launcher import Launcher, quick_stream, wants_gradients
from fmhagen.runtime.outputs import Allocate, workspace_allocator
from fmhagen.runtime.prepared import Maps, Prepared
from fmhagen.runtime.tensors import TensorView

FILLED = ("block_table", "cache_seqlens", "partial_o", "partial_lse", "k_scale", "v_scale")
"""Fields that a call fills besides the addresses of q, k, v, o and lse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """One layout of a call.

    Attributes:
        first: the kernel that computes.
        second: the one that adds up, or None where nothing can be cut.
        o_bytes: size of the partial O in the workspace.
        new_workspace: makes the workspace of a call; None where there is none.
    """

    first: Prepared
    second: Prepared | None
    o_bytes: int
    new_workspace: Allocate | None


def prepare_cache(
    launcher: Launcher,
    problem: CacheProblem,
    cut: Cut,
    tensors: tuple[TensorView, TensorView, TensorView, TensorView],
    table: TensorView | None,
    scales: dict[str, TensorView],
    allocate: tuple[Allocate, Allocate],
    stream: int,
    more: dict[str, Value],
    fields: tuple[str, ...],
) -> Ready:
    """Find all that depends on the layout of a call.

    Args:
        launcher: of the plan.
        problem: the sizes of the call.
        cut: how its keys may be cut.
        tensors: q, k, v and o.
        table: the block table.
        scales: factors of K and V.
        allocate: makes O and LSE.
        stream: of the call.
        more: values of the parameters of mask and score function.
        fields: those among them that every call fills.

    Raises:
        TensorError: the copy engine cannot address K or V.
    """
    plan, backend = launcher.plan, launcher.backend
    q, k, v, o = tensors
    rows = operand("q", q, launcher.axes), operand("o", o, launcher.axes)
    axes = cache_axes(plan.spec)
    keys = cache_operand("k", k, axes), cache_operand("v", v, axes)
    for tensor, cache in ((k, keys[0]), (v, keys[1])):
        reason = backend.unfit(plan, cache)
        if reason is not None:
            raise TensorError(tensor.name, tensor.strides, reason)
    table_stride = 0 if table is None or table.shape[0] < 2 else table.strides[0]
    values = cache_values(plan, problem, cut, rows, keys, table_stride, scales) | more
    by_name = {cache.name: cache for cache in keys}
    maps = {
        item.field: Maps(backend.map_encoder(item, by_name[item.tensor]))
        for item in plan.tensor_maps
    }
    loaded = launcher.load(q.device, stream), launcher.load_second(q.device, stream)
    blocks = cut.blocks, cut.combine_blocks
    first, second = (
        Prepared(
            names=tuple(field.name for field in plan.params),
            values=values,
            maps=maps,
            more=(*FILLED, *fields),
            blocks=count,
            loaded=kernel,
            new_o=allocate[0],
            new_lse=allocate[1],
            keys_are_empty=0 in k.shape,
            device=q.device,
            stream=quick_stream(q),
            wants_gradients=wants_gradients(q),
            scale_log2=scale_log2_of(plan.spec.scale_value),
        )
        for kernel, count in zip(loaded, blocks, strict=True)
    )
    o_bytes, lse_bytes = workspace_bytes(plan, cut)
    return Ready(
        first=first,
        second=second if cut.items else None,
        o_bytes=o_bytes,
        new_workspace=workspace_allocator(q, o_bytes + lse_bytes) if cut.items else None,
    )
