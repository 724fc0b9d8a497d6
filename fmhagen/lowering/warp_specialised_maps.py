"""Tensor maps of the warp-specialised loop: the box of one copy, tensor by tensor."""

from __future__ import annotations

from fmhagen.lowering.warp_specialised_cache import BOX_COLUMNS as BOX_COLUMNS
from fmhagen.lowering.warp_specialised_cache import piece_rows
from fmhagen.lowering.warp_specialised_checks import GROUP_ROWS
from fmhagen.plan.attention import TensorMapPlan
from fmhagen.schedule import Copy, Schedule, Store
from fmhagen.spec import AttentionSpec

SWIZZLE_BYTES = 128  # BOX_COLUMNS of 16 bits: one row of the 128-byte swizzle


def tensor_maps(spec: AttentionSpec, schedule: Schedule) -> tuple[TensorMapPlan, ...]:
    """Return the maps that a kernel is given."""
    share = schedule.tile_n // schedule.cluster
    q_rows = GROUP_ROWS if schedule.split_q else schedule.tile_m
    if spec.kv_cache:
        share = piece_rows(spec, schedule)
    rows = {"q": q_rows, "k": share, "v": share, "o": schedule.tile_m}
    left_out = (
        *(() if schedule.store == Store.STAGED else ("o",)),
        *(("k", "v") if schedule.copy == Copy.GATHER else ()),
    )
    return tuple(
        TensorMapPlan(
            field=f"{tensor}_map",
            tensor=tensor,
            box=(BOX_COLUMNS, count, 1, 1, *((1,) if _is_packed(spec, tensor) else ())),
            swizzle_bytes=SWIZZLE_BYTES,
            packs_heads=schedule.pack_heads and tensor == "q",
        )
        for tensor, count in rows.items()
        if tensor not in left_out
    )


def _is_packed(spec: AttentionSpec, tensor: str) -> bool:
    """Return whether a tensor's rows are those of packed sequences."""
    return spec.varlen and not (spec.kv_cache and tensor in ("k", "v"))
