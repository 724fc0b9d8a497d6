"""Lowering of the warp-specialised main loop: a producer warp and consumer warpgroups."""

from __future__ import annotations

import dataclasses

from fmhagen.errors import ScheduleError
from fmhagen.lowering.common import LN2, LOG2E, symbol_of
from fmhagen.lowering.language import lower_language
from fmhagen.lowering.warp_specialised_cache import (
    cache_constants,
    check_copy,
    check_packing,
    check_split,
)
from fmhagen.lowering.warp_specialised_checks import (
    GROUP_ROWS,
    GROUP_THREADS,
    MATRIX_K,
    check_registers,
    check_rescale,
    check_shape,
    check_store,
)
from fmhagen.lowering.warp_specialised_maps import BOX_COLUMNS, SWIZZLE_BYTES, tensor_maps
from fmhagen.lowering.warp_specialised_masks import has_spare_registers, keys_at_once
from fmhagen.lowering.warp_specialised_order import (
    add_tile_order,
    sorts_tiles,
    tile_order_constants,
)
from fmhagen.lowering.warp_specialised_params import param_fields
from fmhagen.lowering.warp_specialised_posts import (
    add_posts,
    finds_tiles_for_all,
    post_constants,
    posts_all_runs,
    posts_ranges_of_rows,
)
from fmhagen.lowering.warp_specialised_scores import (
    cap_constants,
    cap_steps,
    joins_rows,
    score_unit,
)
from fmhagen.lowering.warp_specialised_shared import (
    BARRIER_BYTES,
    GROUP_WARPS,
    boxes_of,
    shared_map,
)
from fmhagen.lowering.warp_specialised_varlen import add_order, order_constants
from fmhagen.plan.attention import (
    Constant,
    MatrixShape,
    Plan,
    SharedRegion,
    pack_params,
)
from fmhagen.plan.cap_steps import CapSteps
from fmhagen.plan.grid import GridFormula
from fmhagen.plan.language import Language
from fmhagen.plan.small_cache import small_cache_of
from fmhagen.schedule import Copy, Rescale, Schedule, Store
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target

SUM_LIMIT = Constant(
    ctype="f32",
    name="SUM_LIMIT",
    value=8192.0,
    comment="a step's row sum above this brings P down: fp16 ends at 65504",
)
# Each begins a line of constants; the barrier that says the opposite stands behind it.
FULL_BARRIERS = ("Q_FULL", "K_FULL", "V_FULL")
FINITE_LIMIT = Constant(
    ctype="f32",
    name="FINITE_LIMIT",
    value=1e30,
    comment="and above this P may be infinite: the step is computed again",
)


def lower_warp_specialised(spec: AttentionSpec, schedule: Schedule, target: Target) -> Plan:
    """Lower a spec that the target supports.

    Raises:
        ScheduleError: a number of the schedule does not fit; says which and what does.
    """
    check_shape(schedule)
    check_registers(spec, schedule, target)
    check_copy(spec, schedule)
    check_packing(spec, schedule)
    shared, shared_bytes = shared_map(spec, schedule)
    if shared_bytes > target.shared_memory_per_block_bytes:
        raise ScheduleError(
            "stages",
            schedule.stages,
            f"needs {shared_bytes} bytes of shared memory; {target.name} has"
            f" {target.shared_memory_per_block_bytes} a block",
            f"use stages={schedule.stages - 1}, q_stages=1 or a smaller tile_n",
        )
    language = lower_language(spec, by_bands=True)
    check_rescale(spec, schedule, language)
    check_split(spec, schedule)
    masked = language.mask is not None
    ordered = spec.varlen or spec.kv_cache
    offset_mask = spec.causal and spec.window_left is None and spec.mask_mod is None and not ordered
    has_place = ordered or language.score is not None or (masked and not offset_mask)
    if schedule.cluster > 1 and (ordered or not language.right_only):
        limit = "blocks of a cluster visit the same keys, from the first one on, of one sequence"
        raise ScheduleError("cluster", schedule.cluster, limit, "use cluster=1")
    check_store(spec, schedule)
    labels = language.labels is not None and not spec.kv_cache
    posts_tiles = finds_tiles_for_all(spec, schedule, language)
    if posts_tiles:
        shared, shared_bytes = add_posts(spec, schedule, language, shared, shared_bytes)
    sorted_tiles = not ordered and sorts_tiles(spec, schedule, language, shared_bytes, target)
    if ordered:
        shared, shared_bytes = add_order(shared, shared_bytes, target)
    elif sorted_tiles:
        shared, shared_bytes = add_tile_order(shared, shared_bytes, target)
    small = small_cache_of(spec)
    joined = joins_rows(spec, schedule, language, small)
    language = dataclasses.replace(language, joins_rows=joined)
    factor, text = score_unit(language, small)
    cap = cap_steps(spec, schedule, language, small)
    element = {"bf16": "bf16", "fp16": "f16"}[spec.dtype]
    params, params_bytes = pack_params(
        param_fields(spec, schedule, language, offset_mask=offset_mask)
    )
    symbol = symbol_of(spec, schedule, target, _traits(spec, schedule))
    return Plan(
        spec=spec,
        schedule=schedule,
        target=target,
        symbol=symbol,
        filename=symbol + target.file_suffix,
        threads=(schedule.consumers + 1) * GROUP_THREADS,
        constants=_constants(spec, schedule, language, shared, target, cap),
        params=params,
        params_bytes=params_bytes,
        tensor_maps=tensor_maps(spec, schedule),
        shared=shared,
        shared_bytes=shared_bytes,
        shared_is_dynamic=True,
        grid=GridFormula(
            tile_m=schedule.tile_m * schedule.cluster,
            max_blocks=target.max_blocks_x,
            per_compute_unit=1 if schedule.persistent else 0,
            cluster=schedule.cluster,
        ),
        matrix_shapes=(
            MatrixShape(n=schedule.tile_n, dtype=element, form="ss"),
            MatrixShape(n=spec.dv, dtype=element, form="rs_t"),
        ),
        element=element,
        causal=spec.causal,
        top_left=spec.causal and spec.anchor == "top_left",
        conditional_rescale=schedule.conditional_rescale,
        skip_hidden=schedule.skip_hidden and masked and language.right_only,
        stage_output=schedule.store == Store.STAGED,
        ping_pong=schedule.ping_pong,
        clustered=schedule.cluster > 1,
        split_q=schedule.split_q,
        overlap_tiles=schedule.overlap_tiles,
        two_p_buffers=schedule.p_buffers == 2,
        snake=masked and not ordered and schedule.persistent,
        longest_first=masked and not ordered,
        sorted_tiles=sorted_tiles,
        runs=not language.right_only,
        offset_mask=offset_mask,
        reads_mask=language.rest_key is not None and not labels,
        labels=labels,
        keys_at_once=0 if labels else keys_at_once(spec, language),
        spare_registers=has_spare_registers(spec, schedule, small),
        posts_tiles=posts_tiles,
        posts_runs=posts_tiles and posts_all_runs(spec, language),
        posts_ranges=posts_tiles and posts_ranges_of_rows(spec, schedule, language),
        row_bits="u32" if schedule.tile_n <= 128 else "u64",
        has_place=has_place,
        varlen=spec.varlen,
        cached=spec.kv_cache,
        paged=spec.page_size is not None,
        gathers=schedule.copy == Copy.GATHER,
        small=small,
        packs_heads=schedule.pack_heads,
        ordered=ordered,
        sink=spec.sink,
        max_logit=spec.max_logit,
        # NOTE: a few queries have tiles that take about as long as one another.
        pairs=ordered
        and masked
        and language.right_only
        and not schedule.pack_heads
        and not schedule.split_keys,
        masked_on_growth=not language.right_only and schedule.rescale != Rescale.ALWAYS,
        modifies_first=language.score is not None
        and language.line is None
        and language.cap is None,
        cap=cap,
        score_factor=factor,
        score_text=text,
        rescale_on_overflow=schedule.rescale == Rescale.ON_OVERFLOW,
        heads_in_l2_bytes=target.l2_bytes // 2,
        language=language,
        map_rows=schedule.tile_m if language.mapped else 0,
        map_keys=schedule.tile_n if language.mapped else 0,
    )


def _traits(spec: AttentionSpec, schedule: Schedule) -> tuple[str, ...]:
    """Name the structural choices of a schedule, for the symbol."""
    named = (
        (schedule.ping_pong, "pingpong"),
        (schedule.p_buffers == 2, "twop"),
        (schedule.cluster > 1, f"cluster{schedule.cluster}"),
        (schedule.split_q, "splitq"),
        (schedule.pack_heads, "packed"),
        (schedule.split_keys, "parts"),
        (not schedule.overlap_tiles, "apart"),
        (schedule.rescale != Rescale.ALWAYS, str(schedule.rescale).removeprefix("on_")),
        (schedule.store == Store.DIRECT, "direct"),
        (schedule.skip_hidden and spec.causal and spec.window_left is None, "skip"),
        (not schedule.persistent, "grid"),
        (schedule.copy == Copy.GATHER, "gather"),
    )
    return tuple(word for holds, word in named if holds)


def _constants(
    spec: AttentionSpec,
    schedule: Schedule,
    language: Language,
    shared: tuple[SharedRegion, ...],
    target: Target,
    cap: CapSteps,
) -> tuple[Constant, ...]:
    def number(name: str, value: int, comment: str, *, joins: bool = False) -> Constant:
        return Constant(ctype="u32", name=name, value=value, comment=comment, joins=joins)

    overflows = schedule.rescale == Rescale.ON_OVERFLOW and not cap.has_one_reference
    tile_m, tile_n, d, dv = schedule.tile_m, schedule.tile_n, spec.d, spec.dv
    q_rows = GROUP_ROWS if schedule.split_q else tile_m
    return (
        number("TILE_M", tile_m, "query rows of a tile"),
        number("TILE_N", tile_n, "key columns of a step", joins=True),
        number("HEAD_DIM", d, "d"),
        number("HEAD_DIM_V", dv, "dv", joins=True),
        number("STAGES", schedule.stages, "K and V tiles in flight, each"),
        number("Q_STAGES", schedule.q_stages, "Q tiles", joins=True),
        *(
            (number("CLUSTER", schedule.cluster, "blocks that load K and V for one another"),)
            if schedule.cluster > 1
            else ()
        ),
        number("THREADS", (schedule.consumers + 1) * GROUP_THREADS, "of a block"),
        number(
            "CONSUMER_WARPS", schedule.consumers * GROUP_WARPS, "warps that compute", joins=True
        ),
        *(
            (number("CONSUMERS", schedule.consumers, "their warpgroups", joins=True),)
            if schedule.ping_pong or schedule.split_q
            else ()
        ),
        number("GROUP_THREADS", GROUP_THREADS, "threads of a warpgroup"),
        number("GROUP_ROWS", GROUP_ROWS, "its query rows: one matrix instruction's", joins=True),
        number("PRODUCER_REGISTERS", schedule.producer_registers, "a thread"),
        number("CONSUMER_REGISTERS", schedule.consumer_registers, "a thread", joins=True),
        number("MATRIX_K", MATRIX_K, "depth of one matrix instruction"),
        number("BARRIER_BYTES", BARRIER_BYTES, "one mbarrier; arrivals in brackets", joins=True),
        number("BOX_COLUMNS", BOX_COLUMNS, "of one box of a copy"),
        number("ROW_BYTES", SWIZZLE_BYTES, "its rows and those of the swizzle", joins=True),
        number("Q_BOX_BYTES", q_rows * SWIZZLE_BYTES, "one box of Q or O"),
        number("KV_BOX_BYTES", tile_n * SWIZZLE_BYTES, "of K or V", joins=True),
        number("QK_BOXES", boxes_of(d), "boxes that hold d columns"),
        number("V_BOXES", boxes_of(dv), "dv columns", joins=True),
        number("Q_TILE_BYTES", q_rows * SWIZZLE_BYTES * boxes_of(d), "one stage of Q"),
        number("K_TILE_BYTES", tile_n * SWIZZLE_BYTES * boxes_of(d), "of K", joins=True),
        number("V_TILE_BYTES", tile_n * SWIZZLE_BYTES * boxes_of(dv), "of V", joins=True),
        *(
            number(
                r.name, r.offset_bytes, r.comment, joins=r.name not in ("SMEM_Q", *FULL_BARRIERS)
            )
            for r in shared
        ),
        *((SUM_LIMIT, FINITE_LIMIT) if overflows else ()),
        *(
            order_constants(spec, shared, target.l2_bytes // 2)
            if spec.varlen or spec.kv_cache
            else ()
        ),
        *(cache_constants(spec, schedule, language) if spec.kv_cache else ()),
        *post_constants(shared, schedule.q_stages, language),
        *(tile_order_constants(shared) if any(r.name == "SMEM_TURNS" for r in shared) else ()),
        *(cap_constants(language.cap, cap) if language.cap is not None else ()),
        *((LOG2E,) if spec.sink or language.score is not None else ()),
        LN2,
    )
