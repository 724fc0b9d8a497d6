"""Lowering of the wave-pipelined main loop: softmax of one unit under the products of the next."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fmhagen.errors import ScheduleError
from fmhagen.lowering.common import LN2, symbol_of
from fmhagen.lowering.language import lower_language
from fmhagen.lowering.slot_draft import Shape
from fmhagen.lowering.slot_softmax import VECTOR_CLK
from fmhagen.lowering.slots import make_slot_table
from fmhagen.lowering.wave_interleaved import (
    ELEMENT_BYTES,
    GROWTH_LOG2,
    LOAD_ELEMENTS,
    PARAMS,
    WAVE_LANES,
    WAVE_ROWS,
    XCDS,
)
from fmhagen.plan import Constant, GridFormula, Plan, SharedRegion, pack_params
from fmhagen.schedule import Rescale, Schedule
from fmhagen.spec import AttentionSpec, Rounding
from fmhagen.targets import Target

LINE_BYTES = 128  # all banks once; columns are swizzled within it
SIMDS = 4
SPARE_REGISTERS = 45  # row statistics, loop state, and what a compiler keeps besides
NOWHERE = 0xFFFFFFF0  # an offset that lies outside every resource

# The mean of p / truncated p over a mantissa of 7 bits, for P as it comes out of exp2, and of 10.
TRUNCATION_FACTOR = 1.00282
TRUNCATION_FACTOR_FP16 = 1.000353

# (function, clocks of the vector port for two numbers, mean of p / rounded p)
_ROUNDINGS = {
    ("bf16", Rounding.RTZ_CORRECTED): ("pack_bf16x2_truncated", VECTOR_CLK, TRUNCATION_FACTOR),
    ("bf16", Rounding.RTNA): ("pack_bf16x2_away", 3 * VECTOR_CLK, 1.0),
    ("bf16", Rounding.RTNE): ("pack_bf16x2", 5 * VECTOR_CLK, 1.0),
    ("fp16", Rounding.RTNE): ("pack_f16x2", 3 * VECTOR_CLK, 1.0),
    ("fp16", Rounding.RTZ_CORRECTED): ("pack_f16x2_truncated", VECTOR_CLK, TRUNCATION_FACTOR_FP16),
}
_BEST = {"bf16": Rounding.RTZ_CORRECTED, "fp16": Rounding.RTNE}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staging:
    """How one unit of K and V goes to LDS.

    Attributes:
        k_eights: 16-byte pieces of a K row in LDS, those past d without use.
        k_pieces: of these, in one unit, are a thread's.
        v_pairs: pairs of rows of V^T in LDS, those past dv without use.
        v_keys: keys of a piece of V.
        v_pieces: pieces that are a thread's.
    """

    k_eights: int
    k_pieces: int
    v_pairs: int
    v_keys: int
    v_pieces: int


def lower_wave_pipelined(spec: AttentionSpec, schedule: Schedule, target: Target) -> Plan:
    """Lower a spec that the target supports.

    Raises:
        ScheduleError: a number of the schedule does not fit; says which and what does.
    """
    _check_shape(schedule)
    staging = _staging(spec, schedule)
    rounding = _BEST[spec.dtype] if spec.p_rounding == Rounding.AUTO else spec.p_rounding
    if (str(spec.dtype), rounding) not in _ROUNDINGS:
        limit = f"is not written for {spec.dtype}"
        raise ScheduleError("p_rounding", str(rounding), limit, "use p_rounding='rtne'")
    round_call, round_clk, factor = _ROUNDINGS[str(spec.dtype), rounding]
    shape = Shape(
        unit=schedule.tile_n // 2,
        depth_steps=spec.d // 16,
        value_blocks=-(-spec.dv // 32),
        key_pieces=staging.k_pieces,
        value_pieces=staging.v_pieces,
        value_keys=staging.v_keys,
        round_clk=round_clk,
        prefetch=schedule.prefetch,
    )
    try:
        table = make_slot_table(shape)
    except ValueError as error:
        hint = "use a smaller prefetch"
        raise ScheduleError("prefetch", schedule.prefetch, str(error), hint) from error
    waves_per_simd = _waves_per_simd(spec, schedule, target, staging, table.fragments)
    shared, shared_bytes = _shared_map(schedule, staging)
    if shared_bytes > target.shared_memory_per_block_bytes:
        raise ScheduleError(
            "tile_n",
            schedule.tile_n,
            f"needs {shared_bytes} bytes of shared memory; {target.name} has"
            f" {target.shared_memory_per_block_bytes} a block",
            "use a smaller tile_n or fewer waves",
        )
    fields = tuple(f for f in PARAMS if spec.causal or f[1] != "causal_offset")
    params, params_bytes = pack_params(fields)
    traits = ("pingpong",) if schedule.ping_pong else ()
    symbol = symbol_of(spec, schedule, target, traits)
    return Plan(
        spec=spec,
        schedule=schedule,
        target=target,
        symbol=symbol,
        filename=symbol + target.file_suffix,
        threads=schedule.consumers * WAVE_LANES,
        constants=_constants(
            spec, schedule, shared, staging, (table.fragments, waves_per_simd, factor)
        ),
        params=params,
        params_bytes=params_bytes,
        tensor_maps=(),
        shared=shared,
        shared_bytes=shared_bytes,
        shared_is_dynamic=True,
        grid=GridFormula(
            tile_m=schedule.tile_m,
            max_blocks=target.max_blocks_x // XCDS * XCDS,
            per_compute_unit=1 if schedule.persistent else 0,
        ),
        matrix_shapes=(),
        element={"bf16": "bf16", "fp16": "f16"}[spec.dtype],
        causal=spec.causal,
        top_left=spec.causal and spec.anchor == "top_left",
        conditional_rescale=schedule.conditional_rescale,
        heads_in_l2_bytes=target.l2_bytes // 2,
        language=lower_language(spec),
        ping_pong=schedule.ping_pong,
        slot_table=table,
        round_call=round_call,
        uses_accumulation_registers=waves_per_simd == 1,
        value_keys_are_four=staging.v_keys == 4,
    )


def _check_shape(schedule: Schedule) -> None:
    if schedule.consumers not in (1, 2, 4, 8):
        raise ScheduleError("consumers", schedule.consumers, "must be 1, 2, 4 or 8 waves")
    if schedule.tile_m != WAVE_ROWS * schedule.consumers:
        limit = f"must be {WAVE_ROWS} rows for each of the {schedule.consumers} waves"
        hint = f"use tile_m={WAVE_ROWS * schedule.consumers}"
        raise ScheduleError("tile_m", schedule.tile_m, limit, hint)
    if schedule.tile_n not in (64, 128):
        limit = "must be 64 or 128: two units of 32 or 64 keys"
        raise ScheduleError("tile_n", schedule.tile_n, limit, "use tile_n=64")
    if not 2 <= schedule.prefetch <= 15:
        raise ScheduleError("prefetch", schedule.prefetch, "must be from 2 to 15", "use prefetch=7")
    if schedule.stages != 2:
        raise ScheduleError("stages", schedule.stages, "must be 2: one for each unit of a tile")
    if schedule.q_stages != 1:
        raise ScheduleError("q_stages", schedule.q_stages, "must be 1: Q stays in registers")
    if schedule.rescale == Rescale.ON_OVERFLOW:
        limit = "is not written for this main loop"
        raise ScheduleError("rescale", str(schedule.rescale), limit, "use rescale='on_growth'")
    for name in ("producer_registers", "consumer_registers"):
        value = getattr(schedule, name)
        if value:
            raise ScheduleError(name, value, "must be 0: waves cannot trade registers")


def _staging(spec: AttentionSpec, schedule: Schedule) -> _Staging:
    """Deal the pieces of a unit evenly to the threads; rows in LDS are padded until they go up."""
    unit = schedule.tile_n // 2
    threads = schedule.consumers * WAVE_LANES
    k_step = LINE_BYTES // ELEMENT_BYTES // LOAD_ELEMENTS
    k_eights = k_step * -(-spec.d // (k_step * LOAD_ELEMENTS))
    while unit * k_eights % threads:
        k_eights += k_step
    found = []
    for keys in (8, 4):
        pairs = 32 * -(-spec.dv // 64)
        while unit // keys * pairs % threads:
            pairs += 32
        found.append((pairs, -keys))
    v_pairs, negative_keys = min(found)
    v_keys = -negative_keys
    return _Staging(
        k_eights=k_eights,
        k_pieces=unit * k_eights // threads,
        v_pairs=v_pairs,
        v_keys=v_keys,
        v_pieces=unit // v_keys * v_pairs // threads,
    )


def _waves_per_simd(
    spec: AttentionSpec, schedule: Schedule, target: Target, staging: _Staging, fragments: int
) -> int:
    """Return how many waves a SIMD holds, by the registers that they need.

    Raises:
        ScheduleError: the registers do not go up.
    """
    unit = schedule.tile_n // 2
    operands = spec.d // 4 + 16 * -(-spec.dv // 32) + unit + unit // 4 + 4 * fragments
    staged = 4 * staging.k_pieces + staging.v_keys * staging.v_pieces
    places = 2 * staging.k_pieces + (staging.v_keys + 2) * staging.v_pieces + 4 + unit // 16
    need = operands + staged + places + SPARE_REGISTERS
    least = -(-schedule.consumers // SIMDS)
    waves = max(least, min(2, target.max_registers_per_thread // need))
    available = target.max_registers_per_thread // waves
    if need > available:
        raise ScheduleError(
            "consumers",
            schedule.consumers,
            f"S, P, O, Q and what is under way need about {need} registers a thread;"
            f" {waves} waves a SIMD have {available} each",
            "use fewer waves, a smaller tile_n or a smaller prefetch",
        )
    return waves


def _shared_map(schedule: Schedule, staging: _Staging) -> tuple[tuple[SharedRegion, ...], int]:
    unit = schedule.tile_n // 2
    k_bytes = unit * staging.k_eights * LOAD_ELEMENTS * ELEMENT_BYTES
    v_bytes = unit * staging.v_pairs * 2 * ELEMENT_BYTES
    regions = []
    offset = 0
    for tensor, size, shape, swizzle in (
        ("K", k_bytes, "[UNIT][K_EIGHTS * 8]", "k_swizzle"),
        ("V", v_bytes, "^T [V_PAIRS * 2][UNIT]", "v_unit_swizzle"),
    ):
        for parity in ("EVEN", "ODD"):
            comment = f"{parity.lower()} units of {tensor}{shape}, columns swizzled by {swizzle}"
            name = f"SMEM_{tensor}_{parity}"
            regions.append(
                SharedRegion(name=name, offset_bytes=offset, size_bytes=size, comment=comment)
            )
            offset += size
    return tuple(regions), offset


def _constants(
    spec: AttentionSpec,
    schedule: Schedule,
    shared: tuple[SharedRegion, ...],
    staging: _Staging,
    derived: tuple[int, int, float],
) -> tuple[Constant, ...]:
    def number(name: str, value: int, comment: str) -> Constant:
        return Constant(ctype="u32", name=name, value=value, comment=comment)

    def real(name: str, value: float, comment: str) -> Constant:
        return Constant(ctype="f32", name=name, value=value, comment=comment)

    fragments, waves_per_simd, factor = derived
    k_row_bytes = staging.k_eights * LOAD_ELEMENTS * ELEMENT_BYTES
    growth = GROWTH_LOG2 if schedule.conditional_rescale else 0.0
    return (
        number("TILE_M", schedule.tile_m, "query rows of a tile"),
        number("TILE_N", schedule.tile_n, "key columns of two steps"),
        number("UNIT", schedule.tile_n // 2, "key columns of a step"),
        number("HEAD_DIM", spec.d, "d"),
        number("HEAD_DIM_V", spec.dv, "dv"),
        number("VALUE_BLOCKS", -(-spec.dv // 32), "blocks of 32 rows of O^T"),
        number("WAVE_LANES", WAVE_LANES, "threads of a wave"),
        number("WAVE_ROWS", WAVE_ROWS, "query rows of a wave"),
        number("THREADS", schedule.consumers * WAVE_LANES, f"{schedule.consumers} waves"),
        number("WAVES_PER_SIMD", waves_per_simd, "at least: a register limit for the compiler"),
        number("FRAGMENTS", fragments, "operands on their way from LDS"),
        number("K_EIGHTS", staging.k_eights, "16-byte pieces of a K row in LDS"),
        number("K_ROW_BYTES", k_row_bytes, "one K row in LDS"),
        number("K_PIECES", staging.k_pieces, "of these, in one unit, are a thread's"),
        number("V_PAIRS", staging.v_pairs, "pairs of rows of V^T in LDS"),
        number("V_KEYS", staging.v_keys, "keys of a piece of V, two columns wide"),
        number("V_PIECES", staging.v_pieces, "of these, in one unit, are a thread's"),
        *(number(r.name, r.offset_bytes, "see the shared-memory map") for r in shared),
        number("NOWHERE", NOWHERE, "an offset outside every resource: gives zeros"),
        number("XCDS", XCDS, "dies that blocks are dealt to in turn"),
        real("GROWTH_LOG2", growth, "O is rescaled when a maximum grew by more than 2^this"),
        real("ROUNDING_FACTOR", factor, "mean of p / rounded p"),
        real("ROUNDING_LOG2", math.log2(factor), "its log2, added to every exponent"),
        LN2,
    )
