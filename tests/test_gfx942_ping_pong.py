"""The gfx942 kernels with two groups of waves in turn, run lane by lane."""

import dataclasses
import itertools

import numpy as np
import pytest
from gfx942_runs import Outcome, Sizes, emulate

from fmhagen.errors import ScheduleError
from fmhagen.lowering import lower
from fmhagen.lowering.slot_check import check_turns_table
from fmhagen.lowering.slot_draft import Shape
from fmhagen.lowering.slot_turns import make_turns_table
from fmhagen.plan.attention import Plan
from fmhagen.plan.slots import FORMS, Atom, MatrixForm, SlotTable
from fmhagen.schedule import Schedule
from fmhagen.select import default_schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import GFX942

SEEDS = 8
DIMS = ((64, 64), (96, 96), (128, 128), (192, 128), (80, 48), (16, 16), (48, 112))
DEEP = ((160, 160), (192, 192), (160, 192))
AWKWARD = (
    Sizes(seqlen_q=1, seqlen_k=1),
    Sizes(heads=2, seqlen_q=33, seqlen_k=0),
    Sizes(heads=3, heads_kv=3, seqlen_q=5, seqlen_k=257),
    Sizes(batch=2, heads=2, seqlen_q=257, seqlen_k=63),
    Sizes(heads=2, heads_kv=2, seqlen_q=128, seqlen_k=128),
    Sizes(seqlen_q=40, seqlen_k=321),
    Sizes(heads=2, seqlen_q=300, seqlen_k=97),
    Sizes(heads=9, heads_kv=3, seqlen_q=65, seqlen_k=64),
)
SHAPE = Shape(
    form=FORMS["32x32x8"],
    unit=32,
    depth_steps=8,
    value_blocks=4,
    key_pieces=1,
    value_pieces=1,
    value_keys=4,
    round_clk=4,
    prefetch=7,
)


def in_groups(spec: AttentionSpec, **fields: object) -> Plan:
    numbers: dict[str, object] = {"tile_m": 256, "tile_n": 64, "consumers": 8, "prefetch": 7}
    schedule = Schedule(main_loop="wave_ping_pong", **{**numbers, **fields})  # type: ignore[arg-type]
    return lower(spec, schedule, GFX942)


def assert_right(outcome: Outcome, what: object) -> None:
    assert outcome.is_right, f"{what}: {outcome.worst}"
    assert outcome.report.extra_wavefronts == 0, f"{what}: {outcome.report.banks}"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("matrix", FORMS)
@pytest.mark.parametrize(("d", "dv"), DIMS)
def test_head_dims(d: int, dv: int, matrix: str, causal: bool) -> None:
    plan = in_groups(AttentionSpec(head_dim=d, head_dim_v=dv, causal=causal), matrix=matrix)
    for seed, sizes in enumerate(AWKWARD):
        assert_right(emulate(plan, sizes, seed=seed), (plan.symbol, sizes))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(("d", "dv"), DEEP)
def test_deep_heads_are_in_groups_by_default(d: int, dv: int, dtype: str, causal: bool) -> None:
    spec = AttentionSpec(dtype=dtype, head_dim=d, head_dim_v=dv, causal=causal)
    schedule = default_schedule(spec, GFX942)
    assert schedule.main_loop == "wave_ping_pong"
    plan = lower(spec, schedule, GFX942)
    for seed, sizes in enumerate(AWKWARD):
        assert_right(emulate(plan, sizes, seed=seed), (plan.symbol, sizes))


@pytest.mark.parametrize(
    ("dtype", "causal", "tile_n"),
    list(itertools.product(("bf16", "fp16"), (False, True), (64, 128))),
)
def test_seeds(dtype: str, causal: bool, tile_n: int) -> None:
    spec = AttentionSpec(dtype=dtype, head_dim=64, causal=causal)
    plan = in_groups(spec, tile_n=tile_n)
    for seed in range(SEEDS):
        sizes = Sizes(heads=2, seqlen_q=270 + seed, seqlen_k=200 + 37 * seed)
        assert_right(emulate(plan, sizes, seed=seed), (plan.symbol, sizes))


@pytest.mark.parametrize("prefetch", [2, 3, 11])
def test_prefetch(prefetch: int) -> None:
    plan = in_groups(AttentionSpec(head_dim=64, causal=True), prefetch=prefetch)
    assert_right(emulate(plan, Sizes(seqlen_q=300, seqlen_k=333)), plan.schedule)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("blocks", [1, 3, None])
def test_a_block_walks_over_tiles(causal: bool, blocks: int | None) -> None:
    # 10 heads: one for each XCD, and two whose tiles are dealt to all.
    sizes = Sizes(batch=2, heads=5, heads_kv=1, seqlen_q=300, seqlen_k=70)
    plan = in_groups(AttentionSpec(head_dim=64, causal=causal))
    for seed in range(SEEDS):
        assert_right(emulate(plan, sizes, blocks=blocks, seed=seed), sizes)


@pytest.mark.parametrize("causal", [False, True])
def test_rows_that_see_nothing(causal: bool) -> None:
    keys = 40 if causal else 0
    outcome = emulate(
        in_groups(AttentionSpec(head_dim=64, causal=causal)), Sizes(seqlen_q=170, seqlen_k=keys)
    )
    assert_right(outcome, keys)
    assert np.all(outcome.lse[..., :130] == -np.inf)
    assert np.all(outcome.o[:, :130] == 0.0)


@pytest.mark.parametrize("magnitude", [0.01, 6.0])
@pytest.mark.parametrize("rescale", ["always", "on_growth"])
@pytest.mark.parametrize("matrix", FORMS)
def test_references_move(matrix: str, magnitude: float, rescale: str) -> None:
    plan = in_groups(AttentionSpec(head_dim=64), rescale=rescale, matrix=matrix)
    for seed in range(SEEDS):
        sizes = Sizes(seqlen_q=100 + seed, seqlen_k=500 - 31 * seed)
        outcome = emulate(plan, sizes, seed=seed, magnitude=magnitude, scale=0.5)
        assert_right(outcome, plan.schedule)


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("consumers", {"consumers": 4, "tile_m": 128}),
        ("ping_pong", {"ping_pong": True}),
        ("tile_n", {"tile_n": 96}),
        ("prefetch", {"prefetch": 16}),
        ("stages", {"stages": 3}),
        ("consumers", {"tile_n": 128, "prefetch": 11}),
    ],
)
def test_refusals_name_the_field(field: str, fields: dict[str, object]) -> None:
    with pytest.raises(ScheduleError) as caught:
        in_groups(AttentionSpec(head_dim=128), **fields)
    assert caught.value.field == field


def test_what_needs_more_than_half_of_a_simd_is_refused() -> None:
    with pytest.raises(ScheduleError, match="2 waves a SIMD"):
        in_groups(AttentionSpec(head_dim=256))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("prefetch", [2, 5, 7, 15])
@pytest.mark.parametrize(("steps", "blocks"), list(itertools.product((1, 3, 8, 12), (1, 4, 6))))
def test_every_shape_has_a_table(form: MatrixForm, prefetch: int, steps: int, blocks: int) -> None:
    shape = dataclasses.replace(
        SHAPE, form=form, prefetch=prefetch, depth_steps=steps, value_blocks=blocks
    )
    table = make_turns_table(shape)  # checks itself
    assert table.fragments <= prefetch + 1
    assert sum(atom.call == "raise" for atom in table.softmax) == 16


def test_the_check_finds_a_read_behind_the_barrier() -> None:
    table = make_turns_table(SHAPE)
    slots = list(table.slots)
    late = dataclasses.replace(slots[-1], atoms=(Atom(call="lds_read_b128", is_memory=True),))
    wrong = SlotTable(
        score_slots=table.score_slots,
        value_slots=(*table.value_slots[:-1], late),
        fragments=table.fragments,
        ahead=table.ahead,
        slot_clk=table.slot_clk,
    )
    with pytest.raises(ValueError, match="after the barrier"):
        check_turns_table(SHAPE, wrong)
    with pytest.raises(ValueError, match="does not find"):
        check_turns_table(SHAPE, dataclasses.replace(table, ahead=table.ahead[:-1]))
