"""Lowering of the split main loop: a key/value cache whose keys are cut among blocks and warps."""

from __future__ import annotations

from fmhagen.errors import ScheduleError
from fmhagen.lowering.common import regions_of, words_of
from fmhagen.lowering.language import lower_language
from fmhagen.lowering.split_kv_constants import constants_of
from fmhagen.lowering.split_kv_params import param_fields
from fmhagen.lowering.split_kv_shapes import (
    BARRIER_BYTES,
    CHUNK_BYTES,
    COMBINE_WARPS,
    LANES,
    MOST_PARTS,
    QUERY_BOX_COLUMNS,
    SWIZZLE_BYTES,
    SWIZZLE_ROWS,
    TILE_ROWS,
    box_columns,
    boxes_of_copy,
    bulk_piece_rows,
    combine_values,
    keeps_queries,
    least_steps,
    piece_rows,
    stage_bytes,
)
from fmhagen.plan.attention import Constant, Plan, SharedRegion, TensorMapPlan, pack_params
from fmhagen.plan.grid import GridFormula
from fmhagen.plan.language import Language
from fmhagen.plan.small_cache import small_cache_of
from fmhagen.plan.split import SplitBand, SplitPlan
from fmhagen.schedule import Copy, Schedule
from fmhagen.spec import AttentionSpec, CacheScale, DType
from fmhagen.targets import Target

ELEMENTS = {DType.BF16: "bf16", DType.FP16: "f16"}
ROOMY_DEPTH = 128  # of heads up to which lanes have registers for many copies at once
SPARE_REGISTERS = 64  # addresses, row statistics, loop state and operands of a thread


def lower_split_kv(spec: AttentionSpec, schedule: Schedule, target: Target) -> Plan:
    """Lower a spec over a key/value cache that the target supports.

    Raises:
        ScheduleError: a number of the schedule does not fit; says which and what does.
    """
    _check_shape(spec, schedule)
    _check_registers(spec, schedule, target)
    shared, shared_bytes = _shared_map(spec, schedule)
    limit = target.shared_memory_per_unit_bytes // schedule.blocks_per_unit
    limit = min(limit - target.shared_memory_reserved_bytes, target.shared_memory_per_block_bytes)
    if shared_bytes > limit:
        raise ScheduleError(
            "stages",
            schedule.stages,
            f"needs {shared_bytes} bytes of shared memory; {schedule.blocks_per_unit} blocks a"
            f" compute unit of {target.name} have {limit} each",
            f"use stages={schedule.stages - 1} or fewer blocks_per_unit",
        )
    language = lower_language(spec)
    return cache_plan(
        spec,
        schedule,
        target,
        language,
        constants=constants_of(spec, schedule, shared, language),
        shared=shared,
        shared_bytes=shared_bytes,
        tensor_maps=_tensor_maps(spec, schedule),
        is_dependent=True,
    )


def cache_plan(
    spec: AttentionSpec,
    schedule: Schedule,
    target: Target,
    language: Language,
    *,
    constants: tuple[Constant, ...],
    shared: tuple[SharedRegion, ...],
    shared_bytes: int,
    tensor_maps: tuple[TensorMapPlan, ...] = (),
    is_dependent: bool = False,
) -> Plan:
    """Return the plan of a kernel over a cache; what has a name here is the main loop's own."""
    params, params_bytes = pack_params(param_fields(spec, schedule) + language.fields)
    symbol = cache_symbol(spec, schedule, target)
    return Plan(
        spec=spec,
        schedule=schedule,
        target=target,
        symbol=symbol,
        filename=symbol + target.file_suffix,
        threads=schedule.consumers * target.lanes_per_warp,
        constants=constants,
        params=params,
        params_bytes=params_bytes,
        tensor_maps=tensor_maps,
        shared=shared,
        shared_bytes=shared_bytes,
        shared_is_dynamic=True,
        grid=CacheGrid(
            tile_m=TILE_ROWS,
            max_blocks=target.max_blocks_x,
            per_compute_unit=schedule.blocks_per_unit,
        ),
        matrix_shapes=(),
        element=ELEMENTS[spec.dtype] if spec.kv_dtype is None else "f16",
        causal=spec.causal,
        top_left=spec.causal and spec.anchor == "top_left",
        conditional_rescale=True,
        heads_in_l2_bytes=0,
        max_logit=spec.max_logit,
        language=language,
        is_dependent=is_dependent,
        small=small_cache_of(spec),
        split=split_of(spec, schedule, target, symbol, language),
    )


def split_of(
    spec: AttentionSpec, schedule: Schedule, target: Target, symbol: str, language: Language
) -> SplitPlan:
    """Return what a plan over a cache has besides."""
    lanes = target.lanes_per_warp
    bands = tuple(
        SplitBand(
            first=functions.first.name,
            end=functions.end.name,
            heads_differ=band.first.reads("h") or band.end.reads("h"),
        )
        for functions, band in zip(language.bands, language.bounds.bands, strict=True)
    )
    rest = language.bounds.rest
    differ = any(band.heads_differ for band in bands) or (rest is not None and rest.reads("h"))
    has_score = language.score is not None
    return SplitPlan(
        combine_symbol=f"{symbol}_combine",
        combine_threads=COMBINE_WARPS * lanes,
        combine_shared_bytes=COMBINE_WARPS * (combine_values(spec, lanes) * lanes * 4 + 16),
        is_paged=spec.page_size is not None,
        uses_bulk_copies=schedule.copy == Copy.BULK,
        copies_in_turn=spec.kv_dtype is not None and max(spec.d, spec.dv) > ROOMY_DEPTH,
        uses_registers=schedule.copy == Copy.DIRECT,
        lanes=lanes,
        step_keys=schedule.consumers * schedule.tile_n,
        piece_rows=piece_rows(spec, schedule),
        bands=bands,
        heads_differ=differ,
        needs_places=has_score or differ or not language.exact,
        reads_place=not all(band.heads_differ for band in bands),
        keeps_queries=keeps_queries(spec),
        is_invariant=spec.batch_invariant,
        most_parts=MOST_PARTS if spec.batch_invariant else 0,
        least_steps=least_steps(schedule),
        is_small=spec.kv_dtype is not None,
        is_bf16=spec.dtype == DType.BF16,
        element_type="u16" if spec.kv_dtype is None else "u8",
        output=ELEMENTS[spec.dtype],
        scales_heads=spec.kv_scale in (CacheScale.TENSOR, CacheScale.HEAD),
        scales_tokens=spec.kv_scale == CacheScale.TOKEN,
        natural_scale="scale_log2 * LN2",
        sink=spec.sink,
        score_factor="LOG2_E" if has_score else "scale_log2",
        score_text="log2(e) * score_mod(scale * S)" if has_score else "scale_log2 * S",
    )


class CacheGrid(GridFormula):
    """Blocks of a launch over a cache: groups of blocks, each with all heads and tiles of rows."""

    def __str__(self) -> str:
        """Return the formula as text."""
        units = f"{self.per_compute_unit} * compute units"
        return f"Hk * row tiles * max(1, {units} / (Hk * row tiles))"


def cache_symbol(spec: AttentionSpec, schedule: Schedule, target: Target) -> str:
    """Return the symbol of the first kernel over a cache."""
    words = ["fmha", "cache", str(spec.dtype)]
    if spec.kv_dtype is not None:
        words.append(f"kv{spec.kv_dtype}")
    if spec.batch_invariant:
        words.append("invariant")
    if spec.kv_scale != CacheScale.NONE:
        words.append(f"scale_{spec.kv_scale}")
    if spec.causal:
        words.append("causal_top_left" if spec.anchor == "top_left" else "causal")
    words += words_of(spec)
    if spec.page_size is not None:
        words.append(f"page{spec.page_size}")
    depth = f"d{spec.d}" if spec.d == spec.dv else f"d{spec.d}x{spec.dv}"
    tile = f"m{schedule.tile_m}n{schedule.tile_n}{depth}"
    traits = [f"w{schedule.consumers}"]
    if schedule.copy != Copy.DIRECT:
        traits = [f"w{schedule.consumers}s{schedule.stages}"]
    if schedule.copy == Copy.GATHER:
        traits.append("gather")
    return "_".join(words) + "__" + "_".join((tile, *traits)) + f"__{target.symbol_suffix}"


def _check_shape(spec: AttentionSpec, schedule: Schedule) -> None:
    if schedule.tile_m != TILE_ROWS:
        limit = f"must be {TILE_ROWS}, the rows of one matrix instruction"
        raise ScheduleError("tile_m", schedule.tile_m, limit, f"use tile_m={TILE_ROWS}")
    widths: tuple[int, ...] = (16, 32, 64) if spec.kv_dtype is None else (32, 64)
    if spec.kv_scale == CacheScale.TOKEN:
        widths = (LANES,)
    if schedule.tile_n not in widths:
        limit = "must be one of " + ", ".join(map(str, widths)) + " for this cache"
        raise ScheduleError("tile_n", schedule.tile_n, limit, f"use tile_n={widths[0]}")
    if spec.kv_scale == CacheScale.TOKEN and schedule.stages < 2:
        limit = "scales of tokens arrive a tile late, which needs 2 stages"
        raise ScheduleError("stages", schedule.stages, limit, "use stages=2")
    if schedule.copy == Copy.GATHER and schedule.tile_n > LANES:
        limit = f"a gather takes tiles of at most {LANES} keys, one a lane"
        raise ScheduleError("tile_n", schedule.tile_n, limit, f"use tile_n={LANES}")
    if schedule.consumers not in (1, 2, 4, 8):
        limit = "must be 1, 2, 4 or 8 warps"
        raise ScheduleError("consumers", schedule.consumers, limit, "use consumers=4")
    if not 1 <= schedule.stages <= 16:
        raise ScheduleError("stages", schedule.stages, "must be from 1 to 16")
    if not 1 <= schedule.blocks_per_unit <= 8:
        limit = "must be from 1 to 8"
        raise ScheduleError("blocks_per_unit", schedule.blocks_per_unit, limit)
    rows = bulk_piece_rows(spec, schedule.tile_n)
    if schedule.copy == Copy.BULK and rows < SWIZZLE_ROWS:
        limit = (
            f"a page of {spec.page_size} keys and a tile of {schedule.tile_n} have pieces of"
            f" {rows} rows in common; the copy engine needs {SWIZZLE_ROWS}"
        )
        raise ScheduleError("copy", str(schedule.copy), limit, "use copy='gather'")
    o_bytes = TILE_ROWS * spec.dv * 4
    if o_bytes > stage_bytes(spec, schedule.tile_n):
        limit = f"O of {TILE_ROWS} rows, {o_bytes} bytes, is merged through one stage of K and V"
        raise ScheduleError("tile_n", schedule.tile_n, limit, f"use tile_n={2 * schedule.tile_n}")


def _check_registers(spec: AttentionSpec, schedule: Schedule, target: Target) -> None:
    threads = schedule.consumers * LANES * schedule.blocks_per_unit
    have = min(target.registers_per_block // threads // 8 * 8, target.max_registers_per_thread)
    queries = spec.d // 4 if keeps_queries(spec) else 0
    need = spec.dv // 2 + queries + schedule.tile_n * 3 // 4 + SPARE_REGISTERS
    if need > have:
        limit = f"Q, S, P and O need about {need} registers a thread; there are {have}"
        raise ScheduleError("consumers", schedule.consumers, limit, "use fewer warps or blocks")


def _shared_map(spec: AttentionSpec, schedule: Schedule) -> tuple[tuple[SharedRegion, ...], int]:
    warps, stages = schedule.consumers, schedule.stages
    ring = warps * stages * stage_bytes(spec, schedule.tile_n)
    full = ("FULL", warps * stages * BARRIER_BYTES, "K and V have landed: lane 0 (1 + bytes)")
    scale_bytes = warps * stages * 2 * schedule.tile_n * 4
    scales = ("SMEM_SCALES", scale_bytes, f"of keys and values [{warps} warps][{stages}][2]")
    q_bytes = TILE_ROWS * SWIZZLE_BYTES * -(-spec.d // QUERY_BOX_COLUMNS)
    rows = (
        ("SMEM_RING", ring, f"K and V tiles [{warps} warps][{stages}]; O is merged in them"),
        *((("SMEM_Q", q_bytes, "the tile of Q"),) if not keeps_queries(spec) else ()),
        ("SMEM_STATES", warps * TILE_ROWS * 8, "reference and l of each row, of each warp"),
        ("SMEM_PLACES", warps * 4, "where each warp's O lies"),
        *(
            (("SMEM_FACTORS", warps * 4, "what each warp's O is to be multiplied by"),)
            if spec.kv_scale != CacheScale.NONE
            else ()
        ),
        *((scales,) if spec.kv_scale == CacheScale.TOKEN else ()),
        *((full,) if schedule.copy == Copy.BULK else ()),
    )
    regions, offset = regions_of(rows, alignment=BARRIER_BYTES)
    return regions, -(-offset // CHUNK_BYTES) * CHUNK_BYTES


def _tensor_maps(spec: AttentionSpec, schedule: Schedule) -> tuple[TensorMapPlan, ...]:
    if schedule.copy == Copy.GATHER:
        return ()
    rows = piece_rows(spec, schedule)
    return tuple(
        TensorMapPlan(
            field=f"{tensor}_map",
            tensor=tensor,
            box=(box_columns(spec), rows, boxes_of_copy(spec, depth), 1, 1),
            swizzle_bytes=SWIZZLE_BYTES,
            # NOTE: a row is 128 or 256 bytes, and more would be fetched for nothing.
            promotion_bytes=0,
        )
        for tensor, depth in (("k", spec.d), ("v", spec.dv))
    )
