"""Masks, score functions, sinks and packed sequences in sm90 kernels, on the emulator."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from emulated import Run, emulate, plan_of, with_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from language_cases import MASKS
from language_problems import Problem

from fmhagen.checking.verification import Case, verify
from fmhagen.emission import emit_source
from fmhagen.errors import ScheduleError
from fmhagen.explaining.key_runs import Place, key_runs
from fmhagen.formula import is_mapped
from fmhagen.instance import Instance
from fmhagen.oracle.comparison import tolerance_of
from fmhagen.plan.attention import Plan
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.schedule import Rescale, Schedule, Store
from fmhagen.select import default_schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import find_target

SM90 = find_target("sm90")


def spec_of(**fields: object) -> AttentionSpec:
    return AttentionSpec(**{"head_dim": 64, **fields})


def run(problem: Problem, schedule: Schedule | None = None, seed: int = 0) -> Run:
    """Run a problem on three emulated multiprocessors, and check O and LSE."""
    plan = plan_of(problem.spec, "sm90", schedule)
    options = EmulatorOptions(seed=seed, compute_units=3)
    result = emulate(
        plan, problem.tensors(), scale=problem.scale, extras=problem.extras(), options=options
    )
    problem.check(result.o, result.lse)
    return result


def steps_of(problem: Problem, plan: Plan) -> int:
    """Count the key tiles that all tiles of work visit, by the walk in Python."""
    count = 0
    sizes = problem.lengths or ((problem.rows, problem.keys),) * problem.batch
    for b, (rows, keys) in enumerate(problem.used or sizes):
        for h in range(problem.heads):
            place = Place(b=b, h=h, seqlen_q=rows, seqlen_k=keys)
            for m_first in range(0, rows, plan.schedule.tile_m):
                runs = key_runs(
                    problem.spec,
                    place,
                    m_first,
                    tile_m=plan.schedule.tile_m,
                    tile_n=plan.schedule.tile_n,
                    params=problem.params,
                )
                count += max(1, sum(run.end - run.begin for run in runs))
    return count


def check_loads(problem: Problem, result: Run) -> None:
    """Hold the copies to the walk: no key tile is read that the mask hides."""
    plan = plan_of(problem.spec, "sm90")
    sizes = problem.used or problem.lengths or ((problem.rows, 0),) * problem.batch
    tiles = sum(-(-rows // plan.schedule.tile_m) for rows, _ in sizes) * problem.heads
    q_boxes, v_boxes = -(-problem.spec.d // 64), -(-problem.spec.dv // 64)
    expected = tiles * q_boxes + steps_of(problem, plan) * (q_boxes + v_boxes)
    assert result.report.instructions["tma.load"] == expected


# Masks that follow a block map have tests of their own: test_block_map.py.
@pytest.mark.parametrize("name", [name for name in MASKS if not is_mapped(MASKS[name].spec)])
def test_masks(name: str) -> None:
    """Every mask of the language's own tests: right, and no more key tiles than the walk visits."""
    case = MASKS[name]
    problem = Problem(
        name=name,
        spec=dataclasses.replace(case.spec, head_dim=64),
        rows=256,
        keys=256 if case.params else 300,
        params=case.params,
        layout="sliced",
    )
    check_loads(problem, run(problem))


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (65, 700), (700, 65), (300, 300), (40, 0)])
@pytest.mark.parametrize(
    "fields",
    [
        {"causal": True, "window_left": 100},
        {"window_left": 0, "window_right": 0},
        {"window_left": 64, "window_right": 63, "anchor": "top_left"},
        {"window_right": 40},
    ],
    ids=str,
)
def test_windows(fields: dict[str, object], rows: int, keys: int) -> None:
    problem = Problem(name=f"{rows}x{keys}", spec=spec_of(**fields), rows=rows, keys=keys)
    check_loads(problem, run(problem))


WIDE: dict[str, dict[str, object]] = {
    "window": {"causal": True, "window_left": 100},
    "to both sides": {"window_left": 30, "window_right": 150},
    "sink tokens": {"mask_mod": "((kv_idx < 4) | (q_idx - kv_idx < 90)) & (kv_idx <= q_idx)"},
    "by tile": {"mask_mod": "(q_idx // 64 - kv_idx // 64) % 2 == 0"},
    "by label": {"causal": True, "mask_mod": "q_idx // 50 % 3 == kv_idx // 40 % 3"},
    "by residue": {"causal": True, "mask_mod": "q_idx % 9 == kv_idx % 9"},
    "packed": {"causal": True, "window_left": 100, "varlen": True},
    "packed by label": {"mask_mod": "kv_idx // 40 % 3 == q_idx // 50 % 3", "varlen": True},
}


@pytest.mark.parametrize("name", WIDE)
def test_tiles_found_ahead(name: str) -> None:
    """The thread that loads Q finds tiles, and bands are kept: many tiles, few, empty ones."""
    spec = spec_of(**{"head_dim": 128, **WIDE[name]})
    assert plan_of(spec, "sm90").posts_tiles
    lengths = ((1, 1), (0, 5), (330, 300), (7, 0), (140, 140)) if spec.varlen else ()
    for rows, keys in ((420, 390),) if lengths else ((420, 390), (40, 200)):
        problem = Problem(
            name=name, spec=spec, batch=1, rows=rows, keys=keys, lengths=lengths, layout="sliced"
        )
        check_loads(problem, run(problem))


def test_more_tiles_than_threads_are_sorted() -> None:
    """Few tiles find their places each by itself; here they go the way of many."""
    spec = spec_of(**WIDE["sink tokens"])
    problem = Problem(name="sorted", spec=spec, batch=2, rows=700, keys=700)
    plan = plan_of(spec, "sm90")
    source = emit_source(plan)
    text = source.text.replace("if (size > THREADS)", "if (size > 1)")
    assert plan.sorted_tiles
    assert text != source.text
    options = EmulatorOptions(seed=1, compute_units=3)
    result = emulate(
        plan,
        problem.tensors(),
        source=with_text(source, text),
        extras=problem.extras(),
        options=options,
    )
    problem.check(result.o, result.lse)


_TABLE = np.random.default_rng(3).standard_normal((2, 330)).astype(np.float32)
_BUCKETS = np.random.default_rng(4).standard_normal(40).astype(np.float32)
SCORES: dict[str, dict[str, object]] = {
    "alibi": {"alibi": True},
    "soft_cap": {"soft_cap": 5.0},
    "wide_cap": {"soft_cap": 30.0},  # small scores go by a polynomial, large ones by tanh
    "cap_and_alibi": {"soft_cap": 30.0, "alibi": True},
    "relative": {"score_mod": "score - 0.01 * abs(q_idx - kv_idx)"},
    "temperature": {"score_mod": lambda score, b, h, q, k: score * np.where(h < 1, 0.5, 2.0)},
    "bias": {"score_mod": lambda score, b, h, q, k: score + _TABLE[h, k]},
    "buckets": {"score_mod": lambda score, b, h, q, k: score + _BUCKETS[abs(q - k) // 10]},
    "hides": {"score_mod": "where((q_idx + kv_idx) % 3 == 0, -inf, score)"},
}


def schedules() -> dict[str, Schedule]:
    """Return one schedule for each way through the steps of a tile."""
    base = default_schedule(spec_of(causal=True), SM90)
    narrow = dataclasses.replace(
        base,
        tile_m=128,
        consumers=2,
        stages=3,
        producer_registers=40,
        consumer_registers=232,
        rescale=Rescale.ON_OVERFLOW,
    )
    return {
        "default": base,
        "growth": dataclasses.replace(narrow, rescale=Rescale.ON_GROWTH),
        "always": dataclasses.replace(narrow, rescale=Rescale.ALWAYS, skip_hidden=False),
        "two_p": dataclasses.replace(narrow, p_buffers=2, skip_hidden=False),
        "staged": dataclasses.replace(narrow, store=Store.STAGED, q_stages=2),
        "apart": dataclasses.replace(narrow, overlap_tiles=False),
        "wide": dataclasses.replace(narrow, tile_n=176, stages=2, skip_hidden=False),
    }


@pytest.mark.parametrize(
    "mask", [{}, {"causal": True}, {"causal": True, "window_left": 70}], ids=str
)
@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str, mask: dict[str, object]) -> None:
    fields = {**SCORES[name], **mask}
    for magnitude in (1.0, 60.0):
        run(Problem(name=name, spec=spec_of(**fields), magnitude=magnitude))


@pytest.mark.parametrize("schedule", schedules())
@pytest.mark.parametrize(
    "mask", [{}, {"causal": True}, {"causal": True, "window_left": 70}], ids=str
)
def test_every_way_through_the_steps(schedule: str, mask: dict[str, object]) -> None:
    """Large queries move the reference, in all modes, with a score function and without."""
    for fields in ({"alibi": True}, {"sink": True}):
        spec = spec_of(**fields, **mask)
        for magnitude in (1.0, 60.0):
            problem = Problem(
                name=f"{schedule}{magnitude}", spec=spec, magnitude=magnitude, keys=500
            )
            run(problem, schedules()[schedule])


def test_a_score_that_may_hide_needs_the_maximum() -> None:
    spec = spec_of(**SCORES["hides"])
    assert default_schedule(spec, SM90).rescale == Rescale.ALWAYS
    schedule = dataclasses.replace(default_schedule(spec, SM90), rescale=Rescale.ON_GROWTH)
    with pytest.raises(ScheduleError, match="rescale='always'"):
        plan_of(spec, "sm90", schedule)


@pytest.mark.parametrize("level", [0.0, 90.0, -200.0, 1e5, -np.inf])
@pytest.mark.parametrize("mask", [{}, {"causal": True}], ids=str)
def test_sinks(mask: dict[str, object], level: float) -> None:
    """Sinks far above and below the scores; rows that see no key are left with the sink."""
    spec = spec_of(sink=True, **mask)
    run(Problem(name="sink", spec=spec, rows=330, keys=200, sinks=(level, 1.0)))


LENGTHS = ((1, 1), (65, 200), (0, 5), (130, 130), (200, 333), (7, 0), (64, 64), (300, 20))
PACKED: dict[str, dict[str, object]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window_left": 90},
    "everything": {
        "causal": True,
        "window_left": 150,
        "sink": True,
        "alibi": True,
        "soft_cap": 20.0,
    },
    "documents": {"mask_mod": "q_idx // 50 == kv_idx // 50"},
    "hides": {"score_mod": "where(kv_idx % 5 == 0, -inf, score)"},
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences(name: str) -> None:
    spec = spec_of(varlen=True, **PACKED[name])
    problem = Problem(
        name=name, spec=spec, heads=4, heads_kv=2, lengths=LENGTHS, layout="padded", magnitude=3.0
    )
    check_loads(problem, run(problem))


@pytest.mark.parametrize("name", ["full", "causal"])
def test_rows_in_use(name: str) -> None:
    """Rows out of use hold NaN, have no effect, and are not written."""
    spec = spec_of(varlen=True, **PACKED[name])
    used = tuple((rows * 2 // 3, keys // 2) for rows, keys in LENGTHS)
    problem = Problem(name=name, spec=spec, lengths=LENGTHS, used=used)
    check_loads(problem, run(problem))


def test_packed_rows_leave_from_registers() -> None:
    spec = spec_of(varlen=True)
    schedule = dataclasses.replace(default_schedule(spec, SM90), store=Store.STAGED)
    with pytest.raises(ScheduleError, match="store='direct'"):
        plan_of(spec, "sm90", schedule)


@pytest.mark.parametrize("dims", [(64, 80), (48, 128), (64, 128), (128, 144), (64, 256)], ids=str)
def test_an_output_wider_than_its_query_leaves_from_registers(dims: tuple[int, int]) -> None:
    """O has no room in the place of a Q that has fewer columns."""
    for fields in ({}, {"causal": True}, {"causal": True, "window_left": 99}, {"soft_cap": 9.0}):
        spec = AttentionSpec(head_dim=dims[0], head_dim_v=dims[1], **fields)
        schedule = default_schedule(spec, SM90)
        assert schedule.store == Store.DIRECT
        with pytest.raises(ScheduleError, match="does not fit over its Q"):
            plan_of(spec, "sm90", dataclasses.replace(schedule, store=Store.STAGED, split_q=False))


@pytest.mark.parametrize(
    "fields", [{"varlen": True}, {"varlen": True, "soft_cap": 9.0}, {"kv_cache": True}], ids=str
)
def test_sinks_of_heads_that_share_tiles_are_emitted(fields: dict[str, object]) -> None:
    """Every line fits, with the rows' heads among the arguments of what adds a sink."""
    spec = AttentionSpec(sink=True, causal=True, **fields)  # type: ignore[arg-type]
    schedule = default_schedule(AttentionSpec(causal=True, varlen=True), SM90)
    schedule = dataclasses.replace(schedule, pack_heads=True)
    assert "head_of_row" in emit_source(plan_of(spec, "sm90", schedule)).text


@pytest.mark.parametrize(
    ("d", "dv", "causal"), [(64, 128, False), (64, 128, True), (48, 96, False)], ids=str
)
def test_outputs_of_other_depths(d: int, dv: int, causal: bool) -> None:
    instance = Instance.of(AttentionSpec(head_dim=d, head_dim_v=dv, causal=causal), SM90)
    case = Case(batch=2, heads=4, heads_kv=2, seqlen_q=200, seqlen_k=171, seed=3)
    assert verify(instance, case, device="emulator").comparison.within(tolerance_of("bf16"))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("blocks", [1, 3, 50])
def test_many_sequences_share_places(causal: bool, blocks: int) -> None:
    """More sequences than the order has places: a place holds several."""
    spec = spec_of(varlen=True, causal=causal)
    rng = np.random.default_rng(blocks)
    lengths = tuple((int(n), int(n)) for n in rng.integers(0, 90, 13))
    problem = Problem(name="many", spec=spec, heads=1, lengths=(*lengths, (300, 310)))
    plan = plan_of(spec, "sm90")
    text = emit_source(plan).text
    assert "constexpr u32 ORDERED = 2048;" in text
    source = with_text(
        emit_source(plan), text.replace("u32 ORDERED = 2048;", "u32 ORDERED = 4;   ")
    )
    options = EmulatorOptions(seed=blocks, compute_units=blocks)
    result = emulate(
        plan, problem.tensors(), source=source, options=options, extras=problem.extras()
    )
    problem.check(result.o, result.lse)


def loads_of_blocks(
    lengths: tuple[int, ...], heads: int, blocks: int, *, causal: bool
) -> list[int]:
    """Deal the units of work of packed sequences as the kernel does; return steps of each block."""
    tile_m, tile_n = 128, 128
    units: list[int] = []
    for length in sorted(lengths, reverse=True):
        tiles = [
            -(-min((m + 1) * tile_m, length) // tile_n) if causal else -(-length // tile_n)
            for m in range(-(-length // tile_m))
        ]
        if causal:
            half = (len(tiles) + 1) // 2
            tiles = [
                t + (s if 2 * i + 1 < len(tiles) else 0)
                for i, (t, s) in enumerate(zip(tiles[::-1][:half], tiles[:half], strict=True))
            ]
        units += [steps for steps in tiles for _ in range(heads)]
    loads = [0] * blocks
    for place, steps in enumerate(units):
        turn, lane = divmod(place, blocks)
        loads[lane if turn % 2 == 0 else blocks - 1 - lane] += steps
    return loads


@pytest.mark.parametrize("causal", [False, True])
def test_unequal_sequences_are_balanced(causal: bool) -> None:
    """64 lengths drawn log-uniformly from 16 to 8192, 16 heads, 132 blocks."""
    worst = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        lengths = tuple(int(n) for n in np.exp(rng.uniform(np.log(16), np.log(8192), 64)))
        loads = loads_of_blocks(lengths, 16, 132, causal=causal)
        worst.append(max(loads) / np.mean(loads))
    assert np.mean(worst) < 1.04
    assert max(worst) < 1.1


MASK_FIELDS = st.sampled_from(
    [
        {},
        {"causal": True},
        {"causal": True, "window_left": 70},
        {"window_left": 20, "window_right": 33},
        {"mask_mod": "((kv_idx < 5) | (q_idx - kv_idx < 60)) & (kv_idx <= q_idx)"},
        {"mask_mod": "(q_idx // 64 - kv_idx // 64) % 2 == 0"},
    ]
)
SCORE_FIELDS = st.sampled_from(
    [{}, {"alibi": True}, {"soft_cap": 10.0}, {"score_mod": "score + 0.1 * h - 0.01 * kv_idx"}]
)


@functools.cache
def seen_problems() -> set[str]:
    return set()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    mask=MASK_FIELDS,
    score=SCORE_FIELDS,
    sink=st.booleans(),
    dtype=st.sampled_from(["bf16", "fp16"]),
    varlen=st.booleans(),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]),
    lengths=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 400)), min_size=1, max_size=5),
    layout=st.sampled_from(["dense", "sliced", "padded", "swapped"]),
    magnitude=st.sampled_from([1.0, 8.0, 60.0]),
    seed=st.integers(0, 1000),
)
def test_features_together(
    mask: dict[str, object],
    score: dict[str, object],
    sink: bool,
    dtype: str,
    varlen: bool,
    heads: tuple[int, int],
    lengths: list[tuple[int, int]],
    layout: str,
    magnitude: float,
    seed: int,
) -> None:
    """Whatever is drawn agrees with float64: poison around tensors, no alarm."""
    spec = spec_of(dtype=dtype, sink=sink, varlen=varlen, **mask, **score)
    rows, keys = lengths[0]
    problem = Problem(
        name=f"drawn{seed}",
        spec=spec,
        batch=2,
        heads=heads[0],
        heads_kv=heads[1],
        rows=max(rows, 1),
        keys=keys,
        lengths=tuple(lengths) if varlen else (),
        layout="dense" if varlen and layout == "swapped" else layout,
        magnitude=magnitude,
    )
    if varlen and not sum(rows for rows, _ in lengths):
        return  # nothing is launched
    run(problem, seed=seed)
