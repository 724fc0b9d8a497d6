"""Lowering of the split main loop whose waves load K and V straight into registers."""

from __future__ import annotations

from fmhagen.errors import ScheduleError
from fmhagen.lowering.common import LN2
from fmhagen.lowering.language import lower_language
from fmhagen.lowering.split_kv import cache_plan
from fmhagen.lowering.split_kv_constants import LOG2_E
from fmhagen.lowering.split_kv_shapes import (
    COMBINE_WARPS,
    MOST_PARTS,
    PARTS_AHEAD,
    TILE_ROWS,
    combine_values,
    element_bytes,
    least_steps,
)
from fmhagen.plan.attention import Constant, Plan, SharedRegion
from fmhagen.plan.language import Language
from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target

QUARTERS = 4  # lanes that share a row of K
ROW_LANES = 16  # lanes that share a row of V
SIMDS = 4
XCDS = 8
MERGE_BYTES = 4096  # of four blocks of O, of one wave
SPARE_REGISTERS = 48  # addresses, row statistics, loop state and operands of a thread


def lower_split_kv_waves(spec: AttentionSpec, schedule: Schedule, target: Target) -> Plan:
    """Lower a spec over a key/value cache that the target supports.

    Raises:
        ScheduleError: a number of the schedule does not fit; says which and what does.
    """
    _check_shape(spec, schedule)
    _check_registers(spec, schedule, target)
    shared, shared_bytes = _shared_map(schedule)
    limit = target.shared_memory_per_unit_bytes // schedule.blocks_per_unit
    if shared_bytes > limit:
        why = f"its waves merge O through {shared_bytes} bytes of LDS; a block has {limit}"
        raise ScheduleError("consumers", schedule.consumers, why, "use fewer waves or blocks")
    language = lower_language(spec)
    return cache_plan(
        spec,
        schedule,
        target,
        language,
        constants=_constants(spec, schedule, target, shared, language),
        shared=shared,
        shared_bytes=shared_bytes,
    )


def lane_words(lane_bytes: int) -> int:
    """Return the registers of a lane's share of a row: pieces of 16, 8, 4, 2 and 1 bytes."""
    return lane_bytes // 4 + (lane_bytes % 4).bit_count()


def lane_bytes(spec: AttentionSpec) -> tuple[int, int]:
    """Return the bytes of a row of K and of a row of V that a lane loads."""
    size = element_bytes(spec)
    return spec.d * size // QUARTERS, spec.dv * size // ROW_LANES


def tile_registers(spec: AttentionSpec, tile_n: int) -> int:
    """Return the registers in which a thread holds its part of a tile of K and V."""
    k, v = lane_bytes(spec)
    return tile_n // 16 * (lane_words(k) + 4 * lane_words(v))


def waves_per_simd(schedule: Schedule) -> int:
    """Return how many waves a SIMD holds at once."""
    return -(-schedule.consumers * schedule.blocks_per_unit // SIMDS)


def _check_shape(spec: AttentionSpec, schedule: Schedule) -> None:
    if schedule.tile_m != TILE_ROWS:
        limit = f"must be {TILE_ROWS}, the rows of one matrix instruction"
        raise ScheduleError("tile_m", schedule.tile_m, limit, f"use tile_m={TILE_ROWS}")
    if schedule.tile_n not in (16, 32, 64):
        limit = "must be 16, 32 or 64"
        raise ScheduleError("tile_n", schedule.tile_n, limit, "use tile_n=32")
    if schedule.consumers not in (1, 2, 4, 8):
        limit = "must be 1, 2, 4 or 8 waves"
        raise ScheduleError("consumers", schedule.consumers, limit, "use consumers=4")
    if schedule.stages != 1:
        limit = "must be 1: a wave has one tile of K and V in registers"
        raise ScheduleError("stages", schedule.stages, limit, "use stages=1")
    if not 1 <= schedule.blocks_per_unit <= 8:
        limit = "must be from 1 to 8"
        raise ScheduleError("blocks_per_unit", schedule.blocks_per_unit, limit)


def _check_registers(spec: AttentionSpec, schedule: Schedule, target: Target) -> None:
    have = target.max_registers_per_thread // waves_per_simd(schedule) // 8 * 8
    tile = tile_registers(spec, schedule.tile_n)
    need = spec.dv // 4 + spec.d // 8 + tile + schedule.tile_n * 3 // 8 + SPARE_REGISTERS
    if need > have:
        limit = f"K, V, Q, S, P and O need about {need} registers a thread; there are {have}"
        raise ScheduleError("tile_n", schedule.tile_n, limit, "use a smaller tile_n or fewer waves")


def _shared_map(schedule: Schedule) -> tuple[tuple[SharedRegion, ...], int]:
    waves = schedule.consumers
    merge, states = waves * MERGE_BYTES, waves * TILE_ROWS * 8
    regions = (
        SharedRegion(
            name="SMEM_MERGE",
            offset_bytes=0,
            size_bytes=merge,
            comment=f"four blocks of O of each wave [{waves} waves][4][64]",
        ),
        SharedRegion(
            name="SMEM_STATES",
            offset_bytes=merge,
            size_bytes=states,
            comment="reference and l of each row, of each wave",
        ),
    )
    return regions, merge + states


def _constants(
    spec: AttentionSpec,
    schedule: Schedule,
    target: Target,
    shared: tuple[SharedRegion, ...],
    language: Language,
) -> tuple[Constant, ...]:
    """Return every number of an emitted file, in printing order."""

    def number(name: str, value: int, comment: str) -> Constant:
        return Constant(ctype="u32", name=name, value=value, comment=comment)

    waves, lanes = schedule.consumers, target.lanes_per_warp
    k_bytes, v_bytes = lane_bytes(spec)
    page = (number("PAGE_SIZE", spec.page_size or 0, "keys of a page"),)
    return (
        number("TILE_M", TILE_ROWS, "rows of a tile: one matrix instruction's"),
        number("TILE_N", schedule.tile_n, "keys of a wave's tile"),
        number("HEAD_DIM", spec.d, "d"),
        number("HEAD_DIM_V", spec.dv, "dv"),
        *(page if spec.page_size is not None else ()),
        number("ELEMENT_BYTES", element_bytes(spec), "an element of the cache"),
        number("WAVES", waves, "of a block"),
        number("THREADS", waves * lanes, "of a block"),
        number("WAVES_PER_SIMD", waves_per_simd(schedule), "of all blocks of a compute unit"),
        number("XCDS", XCDS, "dies, each with an L2 of its own, to which blocks go in turn"),
        number("STEP_KEYS", waves * schedule.tile_n, "keys of a block's step"),
        number("K_LANE_BYTES", k_bytes, "of a row of K, a lane of four"),
        number("K_WORDS", lane_words(k_bytes), "registers that hold them"),
        number("V_LANE_BYTES", v_bytes, "of a row of V, a lane of sixteen"),
        number("V_WORDS", lane_words(v_bytes), "registers that hold them"),
        *(number(r.name, r.offset_bytes, "see the shared-memory map") for r in shared),
        *(
            (
                number("MOST_PARTS", MOST_PARTS, "of a sequence"),
                number("LEAST_STEPS", least_steps(schedule), "of a part"),
            )
            if spec.batch_invariant
            else ()
        ),
        number("COMBINE_WARPS", COMBINE_WARPS, "waves of a block of the second kernel"),
        number("COMBINE_THREADS", COMBINE_WARPS * lanes, "of a block of the second kernel"),
        number("COMBINE_VALUES", combine_values(spec, lanes), "columns of O that its lanes add up"),
        number("PARTS_AHEAD", PARTS_AHEAD, "of a row, loaded before their weights are known"),
        number("BANDS", len(language.bands), "ranges of keys that the mask shows a row"),
        LN2,
        *((LOG2_E,) if language.score is not None or spec.sink else ()),
    )
