"""Faults planted in what masks, score functions, sinks and packed sequences add: each is found."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from emulated import emulate, plan_of, with_text
from faults import UNORDERED, WRONG_RESULT, Edit, Fault, drop, swap
from language_problems import Problem

from fmhagen.emission import emit_source
from fmhagen.errors import EmulatorError
from fmhagen.masks import documents
from fmhagen.plan.attention import Plan
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.schedule import Rescale
from fmhagen.select import default_schedule
from fmhagen.source import Source
from fmhagen.spec import AttentionSpec
from fmhagen.targets import find_target

SEEDS = 5
LENGTHS = ((1, 1), (65, 200), (0, 5), (330, 330), (200, 333), (7, 0), (64, 64))
EDGES = np.array([0, 70, 200, 230, 420], np.int32)
USED = tuple((rows, keys * 3 // 4) for rows, keys in LENGTHS)
PROBLEMS = {
    "window": Problem(
        name="window",
        spec=AttentionSpec(head_dim=64, causal=True, window_left=250),
        heads=1,
        rows=330,
        keys=700,
    ),
    "bands": Problem(
        name="bands",
        spec=AttentionSpec(
            head_dim=64,
            mask_mod="((kv_idx < 4) | (q_idx - kv_idx < 100)) & (kv_idx <= q_idx)",
        ),
        rows=330,
        keys=330,
    ),
    "labels": Problem(
        name="labels",
        spec=AttentionSpec(head_dim=64, mask_mod="q_idx // 3 % 5 == kv_idx // 7 % 5"),
        heads=1,
        rows=140,
        keys=200,
    ),
    "posted": Problem(
        name="posted",
        spec=AttentionSpec(head_dim=128, causal=True, window_left=100),
        rows=420,
        keys=420,
    ),
    "tensors": Problem(
        name="tensors",
        spec=AttentionSpec(causal=True, mask_mod=documents(EDGES)),
        batch=1,
        rows=420,
        keys=420,
    ),
    "score": Problem(
        name="score", spec=AttentionSpec(head_dim=64, causal=True, alibi=True), magnitude=60.0
    ),
    "cap": Problem(
        name="cap",
        spec=AttentionSpec(head_dim=64, causal=True, soft_cap=30.0),
        heads=1,
        magnitude=4.0,
    ),
    "cap, fp16": Problem(
        name="cap_of_fp16",
        spec=AttentionSpec(head_dim=64, causal=True, soft_cap=30.0, dtype="fp16"),
        heads=1,
        magnitude=4.0,
    ),
    "many": Problem(
        name="many",
        spec=AttentionSpec(head_dim=64, varlen=True),
        heads=1,
        lengths=tuple((n % 7, 3 + n % 50) for n in range(150)),
    ),
    "packed": Problem(
        name="packed",
        spec=AttentionSpec(head_dim=64, causal=True, varlen=True, sink=True),
        heads=4,
        heads_kv=2,
        lengths=LENGTHS,
        used=USED,
    ),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlantedIn:
    """A fault and the problem in whose kernel it is planted."""

    problem: str
    fault: Fault


def wrong(problem: str, name: str, old: str, new: str, kinds: tuple[str, ...] = ()) -> PlantedIn:
    """Return a fault that gives wrong results, or one of some alarms."""
    found = (WRONG_RESULT, *kinds)
    return PlantedIn(problem=problem, fault=Fault(name=name, edits=swap(old, new), kinds=found))


def unordered(problem: str, name: str, edits: tuple[Edit, ...], word: str) -> PlantedIn:
    """Return a fault that leaves accesses to a region of shared memory without an order."""
    fault = Fault(name=name, edits=edits, kinds=UNORDERED, words=(word,))
    return PlantedIn(problem=problem, fault=fault)


READS = ("out_of_bounds", "uninitialised", "deadlock", "divergence", "unwritten", "written_twice")
FAULTS = (
    wrong(
        "window",
        "one_key_too_many_at_the_left",
        "~bits_before(ranges.first[band][half] - n_thread)",
        "~bits_before(ranges.first[band][half] - 1 - n_thread)",
    ),
    wrong("window", "left_edge_not_masked", "if (!keys.full) { hide", "if (false) { hide"),
    wrong(
        "window",
        "whole_tiles_begin_one_too_early",
        "(clamp(first_of_last, 0, seqlen_k) + n - 1) / n",
        "clamp(first_of_last, 0, seqlen_k) / n",
    ),
    wrong(
        "window",
        "a_run_reaches_beyond_where_it_changes",
        "begin = band.full_begin <= n ? maximum_i32(begin, band.full_begin) : begin;",
        "",
    ),
    wrong(
        "bands",
        "the_second_band_left_out",
        "n = maximum_i32(n, last_below(band, i32(keys.begin)));",
        "n = last_below(bands.of[0], i32(keys.begin));",
    ),
    wrong("bands", "bits_of_the_wrong_columns", "c / 8 * 2 +", "c / 8 * 4 +"),
    wrong(
        "bands",
        "keys_of_the_first_band_forgotten",
        "visible.rows[half] |= bits_before",
        "visible.rows[half] = bits_before",
    ),
    wrong("labels", "keys_8_apart_not_packed", "pairs >> 6", "pairs >> 4"),
    wrong("labels", "rows_take_the_keys_of_others", "is_own ? bits : own.rows[i]", "bits"),
    wrong("labels", "half_of_the_rows_not_asked", "(left[0] | left[1]) != 0", "left[0] != 0"),
    PlantedIn(
        problem="posted",
        fault=Fault(
            name="posted_over_what_is_still_read",
            edits=swap("constexpr u32 POSTS = 4,", "constexpr u32 POSTS = 2,"),
            kinds=(*UNORDERED, "deadlock"),
            words=("SMEM_POSTED", "T_FULL"),
        ),
    ),
    PlantedIn(
        problem="posted",
        fault=Fault(
            name="the_end_is_not_posted", edits=drop("post_end(smem, tiles)"), kinds=("deadlock",)
        ),
    ),
    wrong(
        "posted",
        "a_run_too_few_posted",
        "more = next_run(bands, keys);",
        "more = false;",
    ),
    PlantedIn(
        problem="posted",
        fault=Fault(
            name="the_last_run_is_not_marked",
            edits=swap("put_word(at, end | u32(!more));", "put_word(at, end);"),
            kinds=(WRONG_RESULT, "deadlock", "uninitialised", *UNORDERED),
        ),
    ),
    PlantedIn(
        problem="posted",
        fault=Fault(
            name="q_is_not_said_to_end",
            edits=drop("mbarrier_arrive(smem + Q_FULL + use % Q_STAGES * BARRIER_BYTES)"),
            kinds=("deadlock",),
        ),
    ),
    wrong(
        "tensors", "ranges_of_the_tile_before", "(smem, group, tiles + 1)", "(smem, group, tiles)"
    ),
    unordered(
        "tensors",
        "a_tile_posted_before_its_ranges",
        swap("tile); warp_sync();", "tile);"),
        "SMEM_RANGES",
    ),
    unordered(
        "tensors",
        "rounds_used_before_they_are_dealt",
        drop(
            "if (index >= dealt) {"
            " mbarrier_wait(walk.smem + DEALT + (index - dealt) * BARRIER_BYTES, 0); }"
        ),
        "SMEM_TURNS",
    ),
    unordered(
        "tensors",
        "no_meeting_between_dealt_rounds",
        swap("++i) { named_barrier_sync(DEALERS, threads);", "++i) {"),
        "SMEM_GOT",
    ),
    wrong("score", "scale_left_out", "params.scale * LOG2E *", "LOG2E *"),
    wrong(
        "score",
        "columns_of_another_thread",
        "static_cast<f32>(i / 4 * 8 + i % 2)",
        "static_cast<f32>(i / 4 * 4 + i % 2)",
    ),
    PlantedIn(
        problem="score",
        fault=Fault(
            name="repaired_without_the_score_function",
            edits=swap(
                "wgmma_wait<0>(); modify_scores(s, params, tile, m_thread, n_tile * TILE_N,"
                " 0x7fffffff); rescale",
                "wgmma_wait<0>(); rescale",
            ),
            kinds=(WRONG_RESULT,),
        ),
    ),
    wrong(
        "cap, fp16",
        "not_computed_again",
        "FINITE_LIMIT))) { issue_qk(smem, steps, q_rows, s); wgmma_wait<0>();",
        "FINITE_LIMIT))) {",
    ),
    wrong(
        "cap, fp16",
        "sum_left_out_at_the_cap",
        "shrink(s, o, reference, sum, step_sum); } add_up(sum, step_sum);",
        "shrink(s, o, reference, sum, step_sum); }",
    ),
    wrong(
        "cap, fp16",
        "mask_left_out_beside_the_cap",
        "0x7fffffff); if (masked) {",
        "0x7fffffff); if (false) {",
    ),
    wrong(
        "cap, fp16",
        "scores_near_the_cap_not_noticed",
        "largest * inner * inner <= CAP_LIMIT * CAP_LIMIT",
        "largest * inner * inner <= 100.0f",
    ),
    wrong(
        "cap",
        "not_computed_again_under_one_reference",
        "near = true; wgmma_wait<0>(); issue_qk(smem, steps, q_rows, s); wgmma_wait<0>();",
        "near = true;",
    ),
    wrong(
        "cap",
        "scores_near_the_cap_not_noticed_under_one_reference",
        "return !(least >= cap.least);",
        "return false;",
    ),
    wrong(
        "cap",
        "no_tangent_near_the_cap",
        "if (exact) { modify_scores(s, params, tile, m_thread, n_tile * TILE_N, 0x7fffffff);",
        "if (exact) {",
    ),
    unordered(
        "packed",
        "no_meeting_before_the_sort",
        swap("<< 16 | i); } block_sync();", "<< 16 | i); }"),
        "SMEM_ORDER",
    ),
    unordered(
        "many",
        "no_meeting_between_rounds_of_the_sort",
        swap("} block_sync(); } } }", "} } } }"),
        "SMEM_ORDER",
    ),
    PlantedIn(
        problem="packed",
        fault=Fault(
            name="no_meeting_after_the_order",
            edits=drop("order_sequences(params, smem); block_sync()"),
            kinds=(*UNORDERED, "barrier", "deadlock"),
        ),
    ),
    wrong(
        "packed",
        "the_tile_in_the_middle_twice",
        "if (walk.turn % 2 == 0 && m_tile == m_last - m_tile) { continue; }",
        "",
        READS,
    ),
    wrong(
        "packed",
        "rows_of_the_sequence_before",
        "PACKED_ROWS - rows_of(params, tile) + tile.m_first",
        "PACKED_ROWS - rows_of(params, tile) + tile.m_first - 1",
        READS,
    ),
    wrong(
        "packed",
        "keys_of_the_sequence_behind",
        "return i32(tile.k_end);",
        "return i32(tile.k_end + 1);",
        READS,
    ),
    wrong(
        "packed",
        "lengths_in_use_ignored",
        "if (params.seqused_k != nullptr) {",
        "if (false) {",
        READS,
    ),
    wrong(
        "packed",
        "lse_of_the_next_row",
        "params.total_q + packed_row(tile, 0)",
        "params.total_q + packed_row(tile, 1)",
        READS,
    ),
    wrong(
        "packed",
        "sink_left_out",
        "fused_multiply_add(sum[half], alpha[half], exp2_approx(sink - guarded))",
        "sum[half] * alpha[half]",
    ),
    wrong("packed", "o_not_moved_by_the_sink", "alpha[i] * reciprocal", "reciprocal"),
    wrong("packed", "sink_without_its_unit", "* LOG2E;", ";"),
)


@functools.cache
def clean(name: str) -> tuple[Plan, Source]:
    spec = PROBLEMS[name].spec
    schedule = default_schedule(spec, find_target("sm90"))
    small = dataclasses.replace(
        schedule,
        tile_m=128,
        consumers=2,
        producer_registers=40,
        consumer_registers=232,
        rescale=Rescale.ON_OVERFLOW,
    )
    plan = plan_of(spec, "sm90", small)
    return plan, emit_source(plan)


def diagnose(name: str, text: str, seed: int) -> tuple[str, str]:
    """Return the kind of alarm that one run raises, and its message; "" if none."""
    plan, source = clean(name)
    problem = PROBLEMS[name]
    options = EmulatorOptions(seed=seed, compute_units=2)
    try:
        result = emulate(
            plan,
            problem.tensors(),
            source=with_text(source, text),
            options=options,
            extras=problem.extras(),
        )
        problem.check(result.o, result.lse)
    except EmulatorError as error:
        return error.kind, str(error)
    except AssertionError as error:
        return WRONG_RESULT, str(error)
    return "", ""


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.fault.name)
def test_a_fault_is_found(planted: PlantedIn) -> None:
    text = planted.fault.apply(clean(planted.problem)[1].text)
    for seed in range(SEEDS):
        kind, message = diagnose(planted.problem, text, seed)
        assert kind, f"seed {seed}: no alarm"
        assert kind in planted.fault.kinds, f"seed {seed}: {message}"
        if kind != WRONG_RESULT:
            assert any(word in message for word in planted.fault.words), message


@pytest.mark.parametrize("name", PROBLEMS)
def test_no_alarm_without_a_fault(name: str) -> None:
    for seed in range(4 * SEEDS):
        assert diagnose(name, clean(name)[1].text, seed) == ("", "")
