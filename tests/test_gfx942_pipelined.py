"""The pipelined gfx942 kernels, run lane by lane: every head dim, rounding and kind of length."""

import dataclasses
import itertools

import ml_dtypes
import numpy as np
import pytest
from gfx942_runs import Outcome, Sizes, emulate

from fmhagen.errors import ScheduleError, UnsupportedSpecError
from fmhagen.lowering import lower
from fmhagen.plan.attention import Plan
from fmhagen.runtime.emulator import Checks
from fmhagen.schedule import Schedule
from fmhagen.select import default_schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import GFX942

BF16 = np.dtype(ml_dtypes.bfloat16)
SEEDS = 8
DIMS = ((16, 16), (32, 48), (64, 64), (80, 80), (96, 96), (128, 128), (64, 128), (128, 64))
DEEP = ((160, 160), (192, 128), (192, 192), (224, 96), (256, 256), (48, 256))
AWKWARD = (
    Sizes(seqlen_q=1, seqlen_k=1),
    Sizes(heads=2, seqlen_q=33, seqlen_k=0),
    Sizes(heads=3, heads_kv=3, seqlen_q=5, seqlen_k=257),
    Sizes(batch=2, heads=2, seqlen_q=257, seqlen_k=63),
    Sizes(heads=2, heads_kv=2, seqlen_q=128, seqlen_k=128),
    Sizes(seqlen_q=40, seqlen_k=321),
    Sizes(seqlen_q=31, seqlen_k=97),
    Sizes(heads=9, heads_kv=3, seqlen_q=65, seqlen_k=64),
)


def default_plan(spec: AttentionSpec) -> Plan:
    return lower(spec, default_schedule(spec, GFX942), GFX942)


def pipelined(spec: AttentionSpec, **fields: object) -> Plan:
    """An instance of two waves: the quickest to emulate."""
    numbers: dict[str, object] = {"tile_m": 64, "tile_n": 64, "consumers": 2, "prefetch": 7}
    schedule = Schedule(main_loop="wave_pipelined", **{**numbers, **fields})  # type: ignore[arg-type]
    return lower(spec, schedule, GFX942)


def assert_right(outcome: Outcome, what: object) -> None:
    assert outcome.is_right, f"{what}: {outcome.worst}"
    assert outcome.report.extra_wavefronts == 0, f"{what}: {outcome.report.banks}"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("d", "dv"), DIMS + DEEP)
def test_head_dims(d: int, dv: int, causal: bool) -> None:
    spec = AttentionSpec(head_dim=d, head_dim_v=dv, causal=causal)
    plan = default_plan(spec)
    for seed, sizes in enumerate(AWKWARD):
        assert_right(emulate(plan, sizes, seed=seed), (plan.symbol, sizes))


@pytest.mark.parametrize(
    ("dtype", "causal"), list(itertools.product(("bf16", "fp16"), (False, True)))
)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_seeds(dtype: str, head_dim: int, causal: bool) -> None:
    plan = default_plan(AttentionSpec(dtype=dtype, head_dim=head_dim, causal=causal))
    for seed in range(SEEDS):
        sizes = Sizes(heads=2, seqlen_q=270 + seed, seqlen_k=200 + 37 * seed)
        assert_right(emulate(plan, sizes, seed=seed), (plan.symbol, sizes))


@pytest.mark.parametrize("consumers", [1, 2, 4])
@pytest.mark.parametrize("prefetch", [2, 3, 7, 11])
def test_waves_and_prefetch(consumers: int, prefetch: int) -> None:
    spec = AttentionSpec(head_dim=64, causal=True)
    plan = pipelined(spec, consumers=consumers, tile_m=32 * consumers, prefetch=prefetch)
    sizes = Sizes(seqlen_q=150, seqlen_k=333)
    assert_right(emulate(plan, sizes), plan.schedule)


NARROW_DIMS = ((64, 64), (96, 96), (128, 128), (192, 128), (80, 48), (16, 16), (48, 112))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(("d", "dv"), NARROW_DIMS)
def test_narrow_matrix_instructions(d: int, dv: int, dtype: str, causal: bool) -> None:
    spec = AttentionSpec(dtype=dtype, head_dim=d, head_dim_v=dv, causal=causal)
    schedule = default_schedule(spec, GFX942)
    plan = lower(spec, dataclasses.replace(schedule, matrix="16x16x16"), GFX942)
    assert "16x16x16" in plan.symbol
    for seed, sizes in enumerate(AWKWARD):
        assert_right(emulate(plan, sizes, seed=seed), (plan.symbol, sizes))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("magnitude", [0.01, 6.0])
def test_references_of_two_rows_a_lane_move(magnitude: float, causal: bool) -> None:
    plan = pipelined(AttentionSpec(head_dim=64, causal=causal), matrix="16x16x16")
    for seed in range(SEEDS):
        sizes = Sizes(heads=2, seqlen_q=100 + seed, seqlen_k=500 - 31 * seed)
        outcome = emulate(plan, sizes, seed=seed, magnitude=magnitude, scale=0.5)
        assert_right(outcome, plan.schedule)


def test_waves_that_take_turns() -> None:
    plan = pipelined(AttentionSpec(head_dim=64, causal=True), ping_pong=True)
    assert plan.symbol.endswith("_pingpong__gfx942")
    for seed in range(SEEDS):
        assert_right(emulate(plan, Sizes(seqlen_q=150, seqlen_k=333), seed=seed), seed)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("blocks", [1, 3, None])
def test_a_block_walks_over_tiles(causal: bool, blocks: int | None) -> None:
    # 10 heads: one for each XCD, and two whose tiles are dealt to all.
    sizes = Sizes(batch=2, heads=5, heads_kv=1, seqlen_q=300, seqlen_k=70)
    plan = pipelined(AttentionSpec(head_dim=64, causal=causal))
    for seed in range(SEEDS):
        assert_right(emulate(plan, sizes, blocks=blocks, seed=seed), sizes)


@pytest.mark.parametrize("causal", [False, True])
def test_rows_that_see_nothing(causal: bool) -> None:
    keys = 40 if causal else 0
    plan = pipelined(AttentionSpec(head_dim=64, causal=causal))
    outcome = emulate(plan, Sizes(seqlen_q=170, seqlen_k=keys))
    assert_right(outcome, keys)
    assert np.all(outcome.lse[..., :130] == -np.inf)
    assert np.all(outcome.o[:, :130] == 0.0)


@pytest.mark.parametrize(("rows", "keys"), [(200, 90), (90, 200)])
def test_top_left_anchor(rows: int, keys: int) -> None:
    plan = pipelined(AttentionSpec(head_dim=64, causal=True, anchor="top_left"))
    assert_right(emulate(plan, Sizes(seqlen_q=rows, seqlen_k=keys)), (rows, keys))


@pytest.mark.parametrize("magnitude", [0.01, 6.0])
@pytest.mark.parametrize("rescale", ["always", "on_growth"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_references_move(dtype: str, magnitude: float, rescale: str) -> None:
    plan = pipelined(AttentionSpec(dtype=dtype, head_dim=64), rescale=rescale)
    outcome = emulate(plan, Sizes(seqlen_q=100, seqlen_k=500), magnitude=magnitude, scale=0.5)
    assert_right(outcome, plan.schedule)


def test_a_key_past_the_last_moves_no_reference() -> None:
    # NOTE: the last step multiplies keys past the last visible one; the row maximum must not see
    # them, or all of O would be scaled to nothing.
    plan = pipelined(AttentionSpec(head_dim=64, causal=True, anchor="top_left"))
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, length, 1, 64)) for length in (64, 320, 320))
    k[:, 64:] *= 100.0
    tensors = (q.astype(BF16), k.astype(BF16), v.astype(BF16))
    assert_right(emulate(plan, Sizes(seqlen_q=64, seqlen_k=320), tensors=tensors), "huge keys")


@pytest.mark.parametrize(
    ("dtype", "rounding"),
    [
        *(("bf16", rounding) for rounding in ("rtne", "rtna", "rtz_corrected")),
        *(("fp16", rounding) for rounding in ("rtne", "rtz_corrected")),
    ],
)
def test_roundings_are_unbiased(dtype: str, rounding: str) -> None:
    plan = pipelined(AttentionSpec(dtype=dtype, head_dim=64, p_rounding=rounding))
    rng = np.random.default_rng(7)
    shape = (1, 128, 1, 64)
    number = BF16 if dtype == "bf16" else np.dtype(np.float16)
    q, k = (rng.standard_normal(shape).astype(number) for _ in range(2))
    v = np.ones(shape, number)
    outcome = emulate(plan, Sizes(seqlen_q=128, seqlen_k=128), tensors=(q, k, v))
    assert_right(outcome, rounding)
    error = outcome.o - 1.0  # the mean of ones
    assert abs(float(error.mean())) < 1.5e-3


def test_the_seed_changes_nothing_but_the_order() -> None:
    plan = pipelined(AttentionSpec(head_dim=64, causal=True))
    sizes = Sizes(heads=2, seqlen_q=130, seqlen_k=200)
    rng = np.random.default_rng(2)
    tensors = tuple(
        rng.standard_normal((1, length, heads, 64)).astype(BF16)
        for length, heads in ((130, 2), (200, 1), (200, 1))
    )
    outcomes = [emulate(plan, sizes, seed=seed, tensors=tensors) for seed in range(20)]
    outcomes.append(emulate(plan, sizes, tensors=tensors, checks=Checks.NONE))
    for outcome in outcomes:
        assert outcome.is_right, outcome.worst
        assert np.array_equal(outcome.o, outcomes[0].o)
        assert np.array_equal(outcome.lse, outcomes[0].lse)


@pytest.mark.parametrize(("d", "dv"), list(itertools.product(range(16, 257, 48), repeat=2)))
def test_every_head_dim_has_a_schedule(d: int, dv: int) -> None:
    plan = default_plan(AttentionSpec(head_dim=d, head_dim_v=dv))
    assert plan.shared_bytes <= GFX942.shared_memory_per_block_bytes
    assert plan.slot_table is not None


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedSpecError, match="multiple of 16 up to 256"):
        default_plan(AttentionSpec(head_dim=72))
    with pytest.raises(UnsupportedSpecError, match="rtna"):
        default_plan(AttentionSpec(dtype="fp16", p_rounding="rtna"))
    with pytest.raises(ScheduleError) as caught:
        pipelined(AttentionSpec(head_dim=256), consumers=8, tile_m=256)
    assert caught.value.field == "consumers"
    deep = default_schedule(AttentionSpec(head_dim=256), GFX942)
    straight = Schedule(main_loop="wave_interleaved", tile_m=128, tile_n=64, consumers=4)
    for schedule in (deep, straight):
        with pytest.raises(ScheduleError) as caught:
            lower(
                AttentionSpec(head_dim=256),
                dataclasses.replace(schedule, matrix="16x16x16"),
                GFX942,
            )
        assert caught.value.field == "matrix"
