"""Rules for the split main loop: how K and V are copied, how many tiles are in flight."""

from __future__ import annotations

import dataclasses

from fmhagen.choice import Choice, fits
from fmhagen.lowering.split_kv import SWIZZLE_ROWS, bulk_piece_rows, stage_bytes
from fmhagen.schedule import Copy, MainLoop, Schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target

WARPS = 4
RING_OVERHEAD_BYTES = 2048  # row statistics and barriers beside the ring


def choose_split_kv(spec: AttentionSpec, target: Target) -> Choice:
    """Return the schedule of a spec over a key/value cache that a target supports."""
    tile_n = 16
    while stage_bytes(spec, tile_n) < max(8192, 64 * spec.dv) and tile_n < 64:
        tile_n *= 2
    weighed = _schedules(spec, target, tile_n)
    chosen = [s for s in weighed if fits(spec, s, target)] or [weighed[0]]
    best, rest = chosen[0], chosen[1:]
    how = (
        "the copy engine copies whole pieces of pages"
        if best.copy == Copy.BULK
        else f"lanes copy: a page of {spec.page_size} keys has no pieces for the copy engine"
    )
    reasons = (
        "a warp has 16 rows, the queries of a group of heads: decoding has few, and a warp that"
        " loads for itself waits for nobody",
        f"tiles of {tile_n} keys: {stage_bytes(spec, tile_n)} bytes of K and V a stage",
        f"{best.blocks_per_unit} blocks of {best.consumers} warps a compute unit with"
        f" {best.stages} stages a warp: as many bytes in flight as shared memory holds",
        how,
    )
    rejected = tuple((schedule, "fewer bytes in flight, or more copies") for schedule in rest)
    return Choice(schedule=best, reasons=reasons, rejected=rejected)


def _schedules(spec: AttentionSpec, target: Target, tile_n: int) -> tuple[Schedule, ...]:
    """Return what may be chosen, best first."""
    found = []
    for copy in Copy:
        if copy == Copy.BULK and bulk_piece_rows(spec, tile_n) < SWIZZLE_ROWS:
            continue
        for blocks in (2, 1):
            stages = _stages(spec, target, tile_n, blocks)
            if stages < 2 and blocks > 1:
                continue
            schedule = Schedule(
                main_loop=MainLoop.SPLIT_KV,
                tile_m=16,
                tile_n=tile_n,
                consumers=WARPS,
                stages=max(stages, 1),
                copy=copy,
                blocks_per_unit=blocks,
            )
            found.append(schedule)
            if stages > 2:
                found.append(dataclasses.replace(schedule, stages=stages - 1))
    return tuple(found)


def _stages(spec: AttentionSpec, target: Target, tile_n: int, blocks: int) -> int:
    share = target.shared_memory_per_unit_bytes // blocks - target.shared_memory_reserved_bytes
    share = min(share, target.shared_memory_per_block_bytes) - RING_OVERHEAD_BYTES
    return min(share // (WARPS * stage_bytes(spec, tile_n)), 8)
