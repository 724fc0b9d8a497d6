"""Lowering of the main loops that go by units of keys: wave_pipelined and wave_ping_pong.

In the first a wave's softmax stands between its own matrix instructions, in the second under those
of another group of waves. They have in common how units lie in LDS and who holds what.
"""

from __future__ import annotations

import contextlib
import math

from fmhagen.errors import ScheduleError
from fmhagen.expr.nodes import Node
from fmhagen.formula import mask_of, score_of
from fmhagen.lowering.common import symbol_of
from fmhagen.lowering.language import lower_language
from fmhagen.lowering.score_fetch import fetched_nodes
from fmhagen.lowering.score_pair import make_score_pair
from fmhagen.lowering.slot_draft import Shape
from fmhagen.lowering.slot_score import VECTOR_CLK
from fmhagen.lowering.slot_turns import make_turns_table
from fmhagen.lowering.slots import make_slot_table
from fmhagen.lowering.wave_interleaved import (
    WAVE_LANES,
    WAVE_ROWS,
    XCDS,
    asks_query,
    clamps_keys,
)
from fmhagen.lowering.wave_layout import (
    Staging,
    cache_constants,
    constants_of,
    shared_map,
    staging_of,
)
from fmhagen.lowering.wave_params import wave_params
from fmhagen.lowering.wave_registers import SIMDS, pages_of, score_registers, waves_per_simd_of
from fmhagen.plan.attention import Constant, Plan, pack_params
from fmhagen.plan.grid import GridFormula
from fmhagen.plan.score_pair import ScorePair
from fmhagen.plan.slots import FORMS
from fmhagen.plan.small_cache import small_cache_of
from fmhagen.schedule import MainLoop, Matrix, Rescale, Schedule
from fmhagen.spec import AttentionSpec, Rounding
from fmhagen.targets import Target

GROUPS = 2
_PIPELINED = "use main_loop='wave_pipelined'"

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
# Vector work that brings two 8-bit numbers to 16 bits: floats or not.
WIDEN_CLK = {True: 2 * VECTOR_CLK, False: 5 * VECTOR_CLK}
SCALE_CLK = 3 * VECTOR_CLK  # and that multiplies them by a factor, and rounds them
_BEST = {"bf16": Rounding.RTZ_CORRECTED, "fp16": Rounding.RTNE}


def lower_wave_pipelined(spec: AttentionSpec, schedule: Schedule, target: Target) -> Plan:
    """Lower a spec that the target supports.

    Raises:
        ScheduleError: a number of the schedule does not fit; says which and what does.
    """
    has_two_groups = schedule.main_loop == MainLoop.WAVE_PING_PONG
    _check_shape(schedule)
    if has_two_groups:
        _check_groups(schedule)
    staging = staging_of(spec, schedule)
    rounding = _BEST[spec.dtype] if spec.p_rounding == Rounding.AUTO else spec.p_rounding
    if (str(spec.dtype), rounding) not in _ROUNDINGS:
        limit = f"is not written for {spec.dtype}"
        raise ScheduleError("p_rounding", str(rounding), limit, "use p_rounding='rtne'")
    round_call, round_clk, factor = _ROUNDINGS[str(spec.dtype), rounding]
    form = FORMS[schedule.matrix]
    language = lower_language(spec)
    score = score_of(spec)
    small = small_cache_of(spec)
    widen_clk = WIDEN_CLK[small.is_e4m3 or small.is_e5m2] if small.is_used else 0
    pair = None if score is None else _score_pair(spec, score, schedule, target, staging)
    shape = Shape(
        form=form,
        unit=schedule.tile_n // 2,
        depth_steps=-(-spec.d // form.span),
        value_blocks=-(-spec.dv // 32),
        key_pieces=staging.k_pieces,
        value_pieces=staging.v_pieces,
        value_keys=staging.v_keys,
        round_clk=round_clk,
        prefetch=schedule.prefetch,
        walks=not language.right_only or spec.kv_cache,
        pages=pages_of(spec, staging),
        score_clks=() if pair is None else pair.clks,
        fetched_loads=0 if pair is None else pair.fetched_loads,
        widen_clk=widen_clk,
        value_widen_clk=widen_clk + (SCALE_CLK if small.scales_tokens else 0),
        scales_tokens=small.scales_tokens,
    )
    try:
        table = make_turns_table(shape) if has_two_groups else make_slot_table(shape)
    except ValueError as error:
        hint = "use a smaller prefetch"
        raise ScheduleError("prefetch", schedule.prefetch, str(error), hint) from error
    own = 0 if pair is None else score_registers(pair, shape.unit)
    waves_per_simd = waves_per_simd_of(spec, schedule, target, staging, table.fragments, own)
    if has_two_groups and shape.walks:
        limit = "goes over all keys, or over those up to a last one; this mask leaves others out"
        if language.right_only:
            limit = "reads no cache"
        raise ScheduleError("main_loop", str(schedule.main_loop), limit, _PIPELINED)
    if has_two_groups and waves_per_simd == 1:
        limit = "needs two waves a SIMD; these head dims and this tile_n leave room for one"
        raise ScheduleError("main_loop", str(schedule.main_loop), limit, _PIPELINED)
    if schedule.matrix != Matrix.WIDE and waves_per_simd == 1:
        limit = "is for two waves a SIMD; these head dims and this tile_n leave room for one"
        raise ScheduleError("matrix", str(schedule.matrix), limit, "use matrix='32x32x8'")
    shared, shared_bytes = shared_map(schedule, staging)
    if shared_bytes > target.shared_memory_per_block_bytes:
        raise ScheduleError(
            "tile_n",
            schedule.tile_n,
            f"needs {shared_bytes} bytes of shared memory; {target.name} has"
            f" {target.shared_memory_per_block_bytes} a block",
            "use a smaller tile_n or fewer waves",
        )
    params, params_bytes = pack_params(wave_params(spec, language))
    traits = (
        *(("groups",) if has_two_groups else ()),
        *(("pingpong",) if schedule.ping_pong else ()),
        *((form.name,) if schedule.matrix != Matrix.WIDE else ()),
    )
    symbol = symbol_of(spec, schedule, target, traits)
    return Plan(
        spec=spec,
        schedule=schedule,
        target=target,
        symbol=symbol,
        filename=symbol + target.file_suffix,
        threads=schedule.consumers * WAVE_LANES,
        constants=constants_of(
            spec, schedule, shared, staging, form, (table.fragments, waves_per_simd, factor)
        )
        + cache_constants(spec, staging, len(language.bands))
        + (() if pair is None else (_score_log2(pair),)),
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
        max_logit=spec.max_logit,
        varlen=spec.varlen,
        longest_first=language.right_only and language.mask is not None,
        walks=shape.walks,
        cached=spec.kv_cache,
        paged=spec.page_size is not None,
        ordered=spec.varlen or spec.kv_cache,
        small=small,
        clears_unseen=spec.page_size is not None
        or (spec.kv_cache and not language.right_only)
        or small.scales_tokens,
        asks_query=asks_query(language),
        clamps_keys=clamps_keys(language),
        hides_by_bits=waves_per_simd == 1 and pair is not None and bool(pair.fetches),
        score_pair=pair,
        ping_pong=schedule.ping_pong,
        slot_table=table,
        has_two_groups=has_two_groups,
        matrix=form.name,
        block_registers=form.rows**2 // WAVE_LANES,
        lane_has_two_rows=form.lane_rows == 2,
        round_call=round_call,
        uses_accumulation_registers=waves_per_simd == 1,
        value_keys_are_four=staging.v_keys == 4,
        map_rows=WAVE_ROWS if language.mapped else 0,
        map_keys=schedule.tile_n // 2 if language.mapped else 0,
    )


def _score_log2(pair: ScorePair) -> Constant:
    """Return the factor from what the score function leaves to powers of 2."""
    comment = "log2(e), and the factor that the score function leaves out"
    return Constant(
        ctype="f32", name="SCORE_LOG2", value=pair.factor * math.log2(math.e), comment=comment
    )


def _score_pair(
    spec: AttentionSpec, score: Node, schedule: Schedule, target: Target, staging: Staging
) -> ScorePair:
    """Print the score function; what it reads by the key is fetched ahead where registers allow."""
    mask = mask_of(spec)
    plain = make_score_pair(score, mask)
    if schedule.main_loop == MainLoop.WAVE_PING_PONG:
        return plain  # NOTE: the softmax stands apart from the products there, under which to fetch

    def waves(pair: ScorePair) -> int:
        registers = score_registers(pair, schedule.tile_n // 2)
        fragments = schedule.prefetch + 2  # at most
        return waves_per_simd_of(spec, schedule, target, staging, fragments, registers)

    for fetches in range(len(fetched_nodes(score)), 0, -1):
        pair = make_score_pair(score, mask, fetches=fetches)
        with contextlib.suppress(ScheduleError):
            if waves(pair) == waves(plain):
                return pair
    return plain


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


def _check_groups(schedule: Schedule) -> None:
    if schedule.consumers != GROUPS * SIMDS:
        limit = "must be 8 waves: one of each group on each SIMD"
        raise ScheduleError("consumers", schedule.consumers, limit, "use consumers=8, tile_m=256")
    if schedule.ping_pong:
        limit = "is what wave_ping_pong does by its barriers"
        raise ScheduleError("ping_pong", schedule.ping_pong, limit, "use ping_pong=False")
