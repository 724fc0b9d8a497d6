"""Rules for the split main loop: how K and V are copied, how many tiles are in flight."""

from __future__ import annotations

from fmhagen.lowering.split_kv_shapes import SWIZZLE_ROWS, bulk_piece_rows, stage_bytes
from fmhagen.schedule import Copy, MainLoop, Schedule
from fmhagen.select.choice import Choice, fits
from fmhagen.spec import AttentionSpec, CacheScale
from fmhagen.targets import Target

BLOCKS = ((8, 1), (4, 1), (4, 2), (2, 1))  # warps of a block, blocks a compute unit
RING_OVERHEAD_BYTES = 12288  # row statistics, barriers and perhaps a tile of Q beside the ring
MOST_STAGES = 8
# That the copy engine brings to a compute unit at once: with more, warps drift apart, and read rows
# that lie apart.
MOST_BYTES = 128 * 1024
_WHY_NOT = {
    (8, 1): "fewer bytes in flight, or copies by lanes",
    (4, 1): "fewer warps to hide what a warp waits for",
    (4, 2): "more blocks, so more parts of sequences to add up",
    (2, 1): "fewer warps to hide what a warp waits for",
}


def crowds_split_kv(spec: AttentionSpec, schedule: Schedule) -> bool:
    """Return whether O leaves too few registers for what a warp does beside it.

    Beyond head_dim 192 that is to widen 8 bits, and to gather rows or to load factors of tokens:
    such kernels spilled 12 to 328 bytes.
    """
    busy = schedule.copy == Copy.GATHER or spec.kv_scale == CacheScale.TOKEN
    return spec.kv_dtype is not None and max(spec.d, spec.dv) > 192 and busy


def choose_split_kv(spec: AttentionSpec, target: Target) -> Choice:
    """Return the schedule of a spec over a key/value cache that a target supports."""
    tile_n = 16 if spec.kv_dtype is None else 32
    while stage_bytes(spec, tile_n) < max(8192, 64 * spec.dv) and tile_n < 64:
        tile_n *= 2
    weighed = _schedules(spec, target, tile_n)
    chosen = [schedule for schedule in weighed if fits(spec, schedule, target)] or [weighed[0]]
    best, rest = chosen[0], chosen[1:]
    how = (
        "the copy engine copies whole pieces of pages"
        if best.copy == Copy.BULK
        else f"lanes copy: a page of {spec.page_size} keys has no pieces for the copy engine"
    )
    reasons = (
        "a warp has 16 rows, the queries of a group of heads: decoding has few, and a warp that"
        " loads for itself waits for nobody",
        f"tiles of {best.tile_n} keys: {stage_bytes(spec, best.tile_n)} bytes of K and V a stage",
        f"{best.blocks_per_unit} block of {best.consumers} warps a compute unit with {best.stages}"
        " stages a warp: "
        + (
            "as many bytes in flight as keep the memory busy, and no more, so that warps stay close"
            if best.copy == Copy.BULK
            else "as many bytes in flight as shared memory holds"
        ),
        how,
    )
    rejected = tuple((s, _WHY_NOT[s.consumers, s.blocks_per_unit]) for s in rest)
    return Choice(schedule=best, reasons=reasons, rejected=rejected)


def _schedules(spec: AttentionSpec, target: Target, tile_n: int) -> tuple[Schedule, ...]:
    """Return what may be chosen, best first."""
    found = []
    for copy in (Copy.BULK, Copy.GATHER):
        if copy == Copy.BULK and bulk_piece_rows(spec, tile_n) < SWIZZLE_ROWS:
            continue
        keys = min(tile_n, target.lanes_per_warp) if copy == Copy.GATHER else tile_n
        made = [
            Schedule(
                main_loop=MainLoop.SPLIT_KV,
                tile_m=16,
                tile_n=keys,
                consumers=warps,
                stages=_stages(spec, target, keys, warps, blocks, copy),
                copy=copy,
                blocks_per_unit=blocks,
            )
            for warps, blocks in BLOCKS
        ]
        # Two tiles in flight are the least that hides a copy.
        found += sorted(made, key=lambda schedule: schedule.stages < 2)
    return tuple(found)


def _stages(
    spec: AttentionSpec, target: Target, tile_n: int, warps: int, blocks: int, copy: Copy
) -> int:
    share = target.shared_memory_per_unit_bytes // blocks - target.shared_memory_reserved_bytes
    share = min(share, target.shared_memory_per_block_bytes) - RING_OVERHEAD_BYTES
    stage = warps * stage_bytes(spec, tile_n)
    most = MOST_STAGES if copy == Copy.GATHER else max(2, MOST_BYTES // (blocks * stage))
    return max(1, min(share // stage, most, MOST_STAGES))
