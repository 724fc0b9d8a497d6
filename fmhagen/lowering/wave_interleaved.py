"""Lowering of the wave-interleaved main loop: every wave loads and computes."""

from __future__ import annotations

from fmhagen.errors import ScheduleError
from fmhagen.lowering.common import LN2, LOG2E, symbol_of
from fmhagen.lowering.language import lower_language
from fmhagen.lowering.wave_params import wave_params
from fmhagen.plan.attention import Constant, Plan, SharedRegion, pack_params
from fmhagen.plan.grid import GridFormula
from fmhagen.plan.language import Language
from fmhagen.schedule import Rescale, Schedule
from fmhagen.spec import AttentionSpec, Rounding
from fmhagen.targets import Target

# Shapes of the matrix unit and of the loads that this main loop is written for.
WAVE_ROWS = 32  # query rows of a wave: columns of its accumulators
WAVE_LANES = 64
WAVES_PER_SIMD = 2  # so a lane has at most half of its SIMD's registers
ELEMENT_BYTES = 2
LOAD_ELEMENTS = 8  # 16 bytes
XCDS = 8  # dies that blocks are dealt to in turn
GROWTH_LOG2 = 8.0  # P stays below 2^8, so its 16-bit rounding and l keep their accuracy
SPARE_REGISTERS = 36  # addresses, row statistics and loop state of a lane


def lower_wave_interleaved(spec: AttentionSpec, schedule: Schedule, target: Target) -> Plan:
    """Lower a spec that the target supports.

    Raises:
        ScheduleError: a number of the schedule does not fit; says which and what does.
    """
    _check_spec(spec)
    _check_shape(spec, schedule)
    _check_registers(spec, schedule, target)
    shared, shared_bytes = _shared_map(spec, schedule)
    if shared_bytes > target.shared_memory_per_block_bytes:
        raise ScheduleError(
            "tile_n",
            schedule.tile_n,
            f"needs {shared_bytes} bytes of shared memory; {target.name} has"
            f" {target.shared_memory_per_block_bytes} a block",
            f"use tile_n={schedule.tile_n // 2}",
        )
    language = lower_language(spec)
    params, params_bytes = pack_params(wave_params(spec, language))
    symbol = symbol_of(spec, schedule, target)
    return Plan(
        spec=spec,
        schedule=schedule,
        target=target,
        symbol=symbol,
        filename=symbol + target.file_suffix,
        threads=schedule.consumers * WAVE_LANES,
        constants=_constants(spec, schedule, shared),
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
        language=language,
        sink=spec.sink,
        varlen=spec.varlen,
        ordered=spec.varlen,
        longest_first=spec.causal,
    )


def _check_spec(spec: AttentionSpec) -> None:
    """Refuse what the pipelined loop alone is written for."""
    hint = "use main_loop='wave_pipelined'"
    if spec.d not in (64, 128) or spec.dv != spec.d:
        limit = f"takes head_dim 64 or 128, not {spec.d} and {spec.dv}"
        raise ScheduleError("main_loop", "wave_interleaved", limit, hint)
    if spec.p_rounding not in (Rounding.AUTO, Rounding.RTNE):
        limit = f"rounds P to nearest even, not {spec.p_rounding}"
        raise ScheduleError("main_loop", "wave_interleaved", limit, hint)
    for name in ("window_left", "window_right", "mask_mod", "score_mod", "soft_cap"):
        if getattr(spec, name) is not None:
            limit = f"knows causal masks and no mask alone, not {name}"
            raise ScheduleError("main_loop", "wave_interleaved", limit, hint)
    if spec.alibi:
        limit = "takes scores as they are, without ALiBi"
        raise ScheduleError("main_loop", "wave_interleaved", limit, hint)
    if spec.kv_cache:
        limit = "reads no cache"
        raise ScheduleError("main_loop", "wave_interleaved", limit, hint)
    if spec.max_logit:
        limit = "keeps no largest score"
        raise ScheduleError("main_loop", "wave_interleaved", limit, hint)


def _check_shape(spec: AttentionSpec, schedule: Schedule) -> None:
    if schedule.consumers not in (1, 2, 4, 8):
        raise ScheduleError("consumers", schedule.consumers, "must be 1, 2, 4 or 8 waves")
    if schedule.tile_m != WAVE_ROWS * schedule.consumers:
        limit = f"must be {WAVE_ROWS} rows for each of the {schedule.consumers} waves"
        hint = f"use tile_m={WAVE_ROWS * schedule.consumers}"
        raise ScheduleError("tile_m", schedule.tile_m, limit, hint)
    # A wave's 64 lanes take eight keys each of two depths when V is transposed.
    keys = max(64, schedule.consumers * WAVE_LANES * LOAD_ELEMENTS * 2 // spec.dv)
    if schedule.tile_n % keys or schedule.tile_n == 0:
        limit = f"must be a multiple of {keys} for {schedule.consumers} waves at dv = {spec.dv}"
        raise ScheduleError("tile_n", schedule.tile_n, limit, f"use tile_n={keys}")
    if schedule.stages != 2:
        raise ScheduleError("stages", schedule.stages, "must be 2: double buffering")
    if schedule.q_stages != 1:
        raise ScheduleError("q_stages", schedule.q_stages, "must be 1: Q stays in registers")
    if schedule.rescale == Rescale.ON_OVERFLOW:
        limit = "is not written for this main loop"
        raise ScheduleError("rescale", str(schedule.rescale), limit, "use rescale='on_growth'")
    for name in ("producer_registers", "consumer_registers"):
        value = getattr(schedule, name)
        if value:
            raise ScheduleError(name, value, "must be 0: waves cannot trade registers")


def _loads(spec: AttentionSpec, schedule: Schedule) -> tuple[int, int]:
    """Return the 16-byte pieces of K, and of V, that each thread loads of one key tile."""
    threads = schedule.consumers * WAVE_LANES
    k_pieces = schedule.tile_n * spec.d // LOAD_ELEMENTS
    v_pieces = schedule.tile_n * spec.dv // (2 * LOAD_ELEMENTS)
    return k_pieces // threads, v_pieces // threads


def _check_registers(spec: AttentionSpec, schedule: Schedule, target: Target) -> None:
    threads = schedule.consumers * WAVE_LANES
    available = target.max_registers_per_thread // WAVES_PER_SIMD
    k_loads, v_loads = _loads(spec, schedule)
    s, p, o, q = schedule.tile_n // 2, schedule.tile_n // 4, spec.dv // 2, spec.d // 4
    need = s + p + o + q + 4 * k_loads + 8 * v_loads + SPARE_REGISTERS
    if need > available:
        raise ScheduleError(
            "tile_n",
            schedule.tile_n,
            f"S, P, O, Q and the loads of K and V need about {need} registers a thread;"
            f" {threads} threads have {available} each",
            "use a smaller tile_n or more waves",
        )


def _shared_map(spec: AttentionSpec, schedule: Schedule) -> tuple[tuple[SharedRegion, ...], int]:
    k_bytes = schedule.tile_n * spec.d * ELEMENT_BYTES
    v_bytes = schedule.tile_n * spec.dv * ELEMENT_BYTES
    stages = schedule.stages
    k = SharedRegion(
        name="SMEM_K",
        offset_bytes=0,
        size_bytes=stages * k_bytes,
        comment=f"K tiles [{stages}][TILE_N][HEAD_DIM], columns swizzled by k_swizzle",
    )
    v = SharedRegion(
        name="SMEM_V",
        offset_bytes=stages * k_bytes,
        size_bytes=stages * v_bytes,
        comment=f"V^T tiles [{stages}][HEAD_DIM_V][TILE_N], columns swizzled by v_swizzle",
    )
    return (k, v), stages * (k_bytes + v_bytes)


def _constants(
    spec: AttentionSpec, schedule: Schedule, shared: tuple[SharedRegion, ...]
) -> tuple[Constant, ...]:
    def number(name: str, value: int, comment: str) -> Constant:
        return Constant(ctype="u32", name=name, value=value, comment=comment)

    tile_n, d, dv = schedule.tile_n, spec.d, spec.dv
    k_loads, v_loads = _loads(spec, schedule)
    return (
        number("TILE_M", schedule.tile_m, "query rows of a tile"),
        number("TILE_N", tile_n, "key columns of a step"),
        number("HEAD_DIM", d, "d"),
        number("HEAD_DIM_V", dv, "dv"),
        number("WAVE_LANES", WAVE_LANES, "threads of a wave"),
        number("WAVE_ROWS", WAVE_ROWS, "query rows of a wave"),
        number("THREADS", schedule.consumers * WAVE_LANES, f"{schedule.consumers} waves"),
        number("WAVES_PER_SIMD", WAVES_PER_SIMD, "at least: a register limit for the compiler"),
        number("K_EIGHTS", d // LOAD_ELEMENTS, "16-byte pieces of a K row"),
        number("K_LOADS", k_loads, "of these, in one key tile, are a thread's"),
        number("V_PAIRS", dv // 2, "pairs of columns of V"),
        number("V_LOADS", v_loads, "pieces of 8 keys x 2 columns of V are a thread's"),
        number("K_TILE_BYTES", tile_n * d * ELEMENT_BYTES, "one stage of K"),
        number("V_TILE_BYTES", tile_n * dv * ELEMENT_BYTES, "one stage of V"),
        *(number(r.name, r.offset_bytes, "see the shared-memory map") for r in shared),
        number("XCDS", XCDS, "dies that blocks are dealt to in turn"),
        Constant(
            ctype="f32",
            name="GROWTH_LOG2",
            value=GROWTH_LOG2 if schedule.conditional_rescale else 0.0,
            comment="O is rescaled when a maximum grew by more than 2^this",
        ),
        LN2,
        *((LOG2E,) if spec.sink else ()),
    )


def asks_query(language: Language) -> bool:
    """Return whether a function is asked for a query and a key."""
    return language.score is not None or not language.exact


def clamps_keys(language: Language) -> bool:
    """Return whether a key indexes a tensor, so that keys past the last must not reach it."""
    return any("kv_idx" in axis for argument in language.arguments for axis in argument.axes)
