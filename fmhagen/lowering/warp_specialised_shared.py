"""Shared memory of the warp-specialised loop: tiles, and the barriers that guard them."""

from __future__ import annotations

from fmhagen.errors import ScheduleError
from fmhagen.lowering.warp_specialised_cache import COPY_WARPS, V_LANDED
from fmhagen.lowering.warp_specialised_maps import BOX_COLUMNS, SWIZZLE_BYTES
from fmhagen.plan.attention import SharedRegion
from fmhagen.schedule import Copy, Schedule, Store
from fmhagen.spec import AttentionSpec, CacheScale

GROUP_WARPS = 4
SWIZZLE_ATOM_BYTES = 1024  # eight rows: the swizzle repeats, so tiles are aligned to it
BARRIER_BYTES = 8
WORD_BYTES = 4


def shared_map(spec: AttentionSpec, schedule: Schedule) -> tuple[tuple[SharedRegion, ...], int]:
    """Return the regions of shared memory in order, and how many bytes they take.

    Raises:
        ScheduleError: O does not fit where it is to be staged.
    """
    q_bytes = schedule.tile_m * SWIZZLE_BYTES * boxes_of(spec.d)
    k_bytes = schedule.tile_n * SWIZZLE_BYTES * boxes_of(spec.d)
    v_bytes = schedule.tile_n * SWIZZLE_BYTES * boxes_of(spec.dv)
    warps = schedule.consumers * GROUP_WARPS
    q, kv = schedule.q_stages, schedule.stages
    q_barriers = q * schedule.consumers if schedule.split_q else q
    staged = schedule.store == Store.STAGED
    if staged and is_wider(spec):
        limit = f"O of {spec.dv} columns does not fit over its Q of {spec.d}"
        raise ScheduleError("store", str(schedule.store), limit, "use store='direct'")
    o_full = ("O_FULL", q * BARRIER_BYTES, f"O is staged ({warps} consumer warps)")
    gathers = schedule.copy == Copy.GATHER
    landed = f"has landed ({f'{COPY_WARPS} producer warps' if gathers else '1 + bytes'})"
    q_empty = "O has left (1)" if staged else f"S is complete ({warps} consumer warps)"
    rows = (
        ("SMEM_Q", q * q_bytes, f"Q tiles [{q}]{'; O is staged over its Q' if staged else ''}"),
        ("SMEM_K", kv * k_bytes, f"K tiles [{kv}]"),
        ("SMEM_V", kv * v_bytes, f"V tiles [{kv}]"),
        *(_small_rows(spec, schedule) if spec.kv_dtype is not None else ()),
        (
            "Q_FULL",
            q_barriers * BARRIER_BYTES,
            "Q has landed (1 + bytes)",
        ),
        *((o_full,) if staged else ()),
        ("Q_EMPTY", q_barriers * BARRIER_BYTES, q_empty),
        ("K_FULL", kv * BARRIER_BYTES, f"K {landed}"),
        ("K_EMPTY", kv * BARRIER_BYTES, f"S is complete ({warps} consumer warps)"),
        ("V_FULL", kv * BARRIER_BYTES, f"V {landed}"),
        ("V_EMPTY", kv * BARRIER_BYTES, f"O += P V is complete ({warps} consumer warps)"),
        *((V_LANDED,) if spec.kv_cache and not gathers else ()),
    )
    regions: list[SharedRegion] = []
    offset = 0
    for name, size, comment in rows:
        regions.append(
            SharedRegion(name=name, offset_bytes=offset, size_bytes=size, comment=comment)
        )
        offset += size
        if name.startswith("SMEM_"):
            offset = -(-offset // SWIZZLE_ATOM_BYTES) * SWIZZLE_ATOM_BYTES
    return tuple(regions), offset


def _small_rows(spec: AttentionSpec, schedule: Schedule) -> tuple[tuple[str, int, str], ...]:
    """Return the regions of what lanes have copied and not yet widened, and of factors of keys."""
    keys = schedule.tile_n
    copied = tuple(
        (f"SMEM_SMALL_{name}", keys * BOX_COLUMNS * boxes_of(depth), f"{name} of 8 bits, one tile")
        for name, depth in (("K", spec.d), ("V", spec.dv))
    )
    if spec.kv_scale != CacheScale.TOKEN:
        return copied
    comment = f"factors of the keys of a tile [{schedule.stages}]"
    return (*copied, ("SMEM_FACTORS", schedule.stages * keys * WORD_BYTES, comment))


def is_wider(spec: AttentionSpec) -> bool:
    """Return whether a tile of O is larger than one of Q, so that it cannot be staged over it."""
    return boxes_of(spec.dv) > boxes_of(spec.d)


def boxes_of(depth: int) -> int:
    """Return how many boxes of columns hold a head's depth; the last one may be padded."""
    return -(-depth // BOX_COLUMNS)
