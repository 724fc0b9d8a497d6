"""Lowering of the split main loop: a key/value cache whose keys are cut among blocks and warps."""

from __future__ import annotations

import math

from fmhagen.errors import ScheduleError
from fmhagen.grid import GridFormula
from fmhagen.language import Language
from fmhagen.lowering.common import LN2, words_of
from fmhagen.lowering.language import lower_language
from fmhagen.lowering.split_kv_params import param_fields
from fmhagen.plan import (
    Constant,
    Plan,
    SharedRegion,
    TensorMapPlan,
    pack_params,
)
from fmhagen.schedule import Copy, Schedule
from fmhagen.spec import AttentionSpec
from fmhagen.split_plan import SplitBand, SplitPlan
from fmhagen.targets import Target

# Shapes of the matrix unit and the copy engine that this main loop is written for.
TILE_ROWS = 16  # rows of one warp's matrix instruction
MATRIX_K = 16  # depth of one 16-bit matrix instruction
BOX_COLUMNS = 64  # 128 bytes: one row of the 128-byte swizzle
SWIZZLE_BYTES = 128
SWIZZLE_ROWS = 8  # rows after which the swizzle repeats: a copy has a multiple of them
BARRIER_BYTES = 8
LANES = 32
CHUNK_BYTES = 16
ELEMENT_BYTES = 2
COMBINE_WARPS = 8
LOG2_E = Constant(
    ctype="f32", name="LOG2_E", value=math.log2(math.e), comment="exp(x) = exp2(LOG2_E * x)"
)
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
    params, params_bytes = pack_params(param_fields(spec, schedule) + language.fields)
    symbol = _symbol(spec, schedule, target)
    return Plan(
        spec=spec,
        schedule=schedule,
        target=target,
        symbol=symbol,
        filename=symbol + target.file_suffix,
        threads=schedule.consumers * LANES,
        constants=_constants(spec, schedule, shared, language),
        params=params,
        params_bytes=params_bytes,
        tensor_maps=_tensor_maps(spec, schedule),
        shared=shared,
        shared_bytes=shared_bytes,
        shared_is_dynamic=True,
        grid=CacheGrid(
            tile_m=TILE_ROWS,
            max_blocks=target.max_blocks_x,
            per_compute_unit=schedule.blocks_per_unit,
        ),
        matrix_shapes=(),
        element={"bf16": "bf16", "fp16": "f16"}[spec.dtype],
        causal=spec.causal,
        top_left=spec.causal and spec.anchor == "top_left",
        conditional_rescale=True,
        heads_in_l2_bytes=0,
        language=language,
        split=_split(spec, schedule, symbol, language),
    )


def _split(spec: AttentionSpec, schedule: Schedule, symbol: str, language: Language) -> SplitPlan:
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
        combine_threads=COMBINE_WARPS * LANES,
        combine_shared_bytes=COMBINE_WARPS * (_values(spec) * LANES * 4 + 8),
        is_paged=spec.page_size is not None,
        uses_bulk_copies=schedule.copy == Copy.BULK,
        step_keys=schedule.consumers * schedule.tile_n,
        piece_rows=_piece_rows(spec, schedule),
        bands=bands,
        heads_differ=differ,
        needs_places=has_score or differ or not language.exact,
        reads_place=not all(band.heads_differ for band in bands),
        keeps_queries=keeps_queries(spec),
        sink=spec.sink,
        score_factor="LOG2_E" if has_score else "params.scale_log2",
        score_text="log2(e) * score_mod(scale * S)" if has_score else "scale_log2 * S",
    )


class CacheGrid(GridFormula):
    """Blocks of a launch over a cache: groups of blocks, each with all heads and tiles of rows."""

    def __str__(self) -> str:
        """Return the formula as text."""
        units = f"{self.per_compute_unit} * compute units"
        return f"Hk * row tiles * max(1, {units} / (Hk * row tiles))"


def keeps_queries(spec: AttentionSpec) -> bool:
    """Return whether each warp has Q in registers: a quarter of its depth of them."""
    return max(spec.d, spec.dv) <= 128


def stage_bytes(spec: AttentionSpec, tile_n: int) -> int:
    """Return the bytes of one tile of K and V in shared memory."""
    return tile_n * SWIZZLE_BYTES * (_boxes(spec.d) + _boxes(spec.dv))


def bulk_piece_rows(spec: AttentionSpec, tile_n: int) -> int:
    """Return the most rows of a tile that one copy of the copy engine can hold."""
    return tile_n if spec.page_size is None else math.gcd(spec.page_size, tile_n)


def _piece_rows(spec: AttentionSpec, schedule: Schedule) -> int:
    if schedule.copy == Copy.GATHER:
        return schedule.tile_n
    return bulk_piece_rows(spec, schedule.tile_n)


def _symbol(spec: AttentionSpec, schedule: Schedule, target: Target) -> str:
    words = ["fmha", "cache", str(spec.dtype)]
    if spec.causal:
        words.append("causal_top_left" if spec.anchor == "top_left" else "causal")
    words += words_of(spec)
    if spec.page_size is not None:
        words.append(f"page{spec.page_size}")
    depth = f"d{spec.d}" if spec.d == spec.dv else f"d{spec.d}x{spec.dv}"
    tile = f"m{schedule.tile_m}n{schedule.tile_n}{depth}"
    traits = [f"w{schedule.consumers}s{schedule.stages}"]
    if schedule.copy == Copy.GATHER:
        traits.append("gather")
    return "_".join(words) + "__" + "_".join((tile, *traits)) + f"__{target.symbol_suffix}"


def _check_shape(spec: AttentionSpec, schedule: Schedule) -> None:
    if schedule.tile_m != TILE_ROWS:
        limit = f"must be {TILE_ROWS}, the rows of one matrix instruction"
        raise ScheduleError("tile_m", schedule.tile_m, limit, f"use tile_m={TILE_ROWS}")
    if schedule.tile_n not in (16, 32, 64):
        raise ScheduleError("tile_n", schedule.tile_n, "must be 16, 32 or 64", "use tile_n=16")
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
    q_bytes = TILE_ROWS * SWIZZLE_BYTES * _boxes(spec.d)
    rows = (
        ("SMEM_RING", ring, f"K and V tiles [{warps} warps][{stages}]; O is merged in them"),
        *((("SMEM_Q", q_bytes, "the tile of Q"),) if not keeps_queries(spec) else ()),
        ("SMEM_STATES", warps * TILE_ROWS * 8, "reference and l of each row, of each warp"),
        ("SMEM_PLACES", warps * 4, "where each warp's O lies"),
        *((full,) if schedule.copy == Copy.BULK else ()),
    )
    regions: list[SharedRegion] = []
    offset = 0
    for name, size, comment in rows:
        offset = -(-offset // BARRIER_BYTES) * BARRIER_BYTES
        regions.append(
            SharedRegion(name=name, offset_bytes=offset, size_bytes=size, comment=comment)
        )
        offset += size
    return tuple(regions), -(-offset // CHUNK_BYTES) * CHUNK_BYTES


def _values(spec: AttentionSpec) -> int:
    """Return how many columns of O a lane of the second kernel adds up."""
    return -(-spec.dv // (4 * LANES)) * 4


def _boxes(depth: int) -> int:
    """Return how many boxes of columns hold a head's depth; the last one may be padded."""
    return -(-depth // BOX_COLUMNS)


def _box_columns(depth: int) -> int:
    """Return how many boxes of columns one copy takes: all, unless the last one is padded."""
    return 1 if depth % BOX_COLUMNS else _boxes(depth)


def _constants(
    spec: AttentionSpec,
    schedule: Schedule,
    shared: tuple[SharedRegion, ...],
    language: Language,
) -> tuple[Constant, ...]:
    def number(name: str, value: int, comment: str) -> Constant:
        return Constant(ctype="u32", name=name, value=value, comment=comment)

    tile_n, d, dv, warps = schedule.tile_n, spec.d, spec.dv, schedule.consumers
    rows = _piece_rows(spec, schedule)
    row_box = rows * SWIZZLE_BYTES
    values = _values(spec)
    bulk = (
        number("TILE_PIECES", tile_n // rows, "copies of rows that a tile takes"),
        number(
            "K_COPIES", _boxes(d) // _box_columns(d), "copies of columns that a piece of K takes"
        ),
        number("V_COPIES", _boxes(dv) // _box_columns(dv), "the same of V"),
        number("BOX_BYTES", row_box, "rows of a piece in one box of columns"),
        number("K_PIECE_BYTES", row_box * _boxes(d), "a piece of K"),
        number("V_PIECE_BYTES", row_box * _boxes(dv), "a piece of V"),
        number("V_TILE_BYTES", tile_n * SWIZZLE_BYTES * _boxes(dv), "V of a stage"),
        number("BARRIER_BYTES", BARRIER_BYTES, "one mbarrier"),
        number("BOX_COLUMNS", BOX_COLUMNS, "columns of a box"),
    )
    page = (number("PAGE_SIZE", spec.page_size or 0, "keys of a page"),)
    return (
        number("TILE_M", TILE_ROWS, "rows of a tile: one matrix instruction's"),
        number("TILE_N", tile_n, "keys of a warp's tile"),
        number("HEAD_DIM", d, "d"),
        number("HEAD_DIM_V", dv, "dv"),
        *(page if spec.page_size is not None else ()),
        number("WARPS", warps, "of a block"),
        number("THREADS", warps * LANES, "of a block"),
        number("BLOCKS_PER_UNIT", schedule.blocks_per_unit, "blocks that a compute unit holds"),
        number("STEP_KEYS", warps * tile_n, "keys of a block's step"),
        number("STAGES", schedule.stages, "tiles of K and V in flight, a warp"),
        number("MATRIX_K", MATRIX_K, "depth of one matrix instruction"),
        number("ROW_BYTES", SWIZZLE_BYTES, "one row of a box, and of the 128-byte swizzle"),
        number("BOX_ROWS", rows, "rows of a box"),
        number("K_COLUMN_BOXES", _boxes(d), "boxes of 64 columns that hold d columns"),
        number("V_COLUMN_BOXES", _boxes(dv), "boxes of 64 columns that hold dv columns"),
        *(bulk if schedule.copy == Copy.BULK else ()),
        number("K_TILE_BYTES", tile_n * SWIZZLE_BYTES * _boxes(d), "K of a stage"),
        number("STAGE_BYTES", stage_bytes(spec, tile_n), "K and V of a stage"),
        *(number(r.name, r.offset_bytes, "see the shared-memory map") for r in shared),
        number("COMBINE_WARPS", COMBINE_WARPS, "of a block of the second kernel"),
        number("COMBINE_THREADS", COMBINE_WARPS * LANES, "of a block of the second kernel"),
        number("COMBINE_VALUES", values, "columns of O that a lane of it adds up"),
        number("COMBINE_SUMS", COMBINE_WARPS * values * LANES * 4, "its sums in shared memory"),
        number("BANDS", len(language.bands), "ranges of keys that the mask shows a row"),
        LN2,
        *((LOG2_E,) if language.score is not None or spec.sink else ()),
    )


def _tensor_maps(spec: AttentionSpec, schedule: Schedule) -> tuple[TensorMapPlan, ...]:
    if schedule.copy == Copy.GATHER:
        return ()
    rows = _piece_rows(spec, schedule)
    return tuple(
        TensorMapPlan(
            field=f"{tensor}_map",
            tensor=tensor,
            box=(BOX_COLUMNS, rows, _box_columns(depth), 1, 1),
            swizzle_bytes=SWIZZLE_BYTES,
            # NOTE: a row is 128 or 256 bytes, and more would be fetched for nothing.
            promotion_bytes=0,
        )
        for tensor, depth in (("k", spec.d), ("v", spec.dv))
    )
