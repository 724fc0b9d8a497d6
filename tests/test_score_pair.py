"""The score function for two keys: what is packed, carried, folded and cut."""

import dataclasses
import itertools

import pytest

from fmhagen.errors import UnsupportedSpecError
from fmhagen.formula import score_of
from fmhagen.lowering import lower
from fmhagen.lowering.score_pair import make_score_pair
from fmhagen.lowering.slot_check import check_slot_table
from fmhagen.lowering.slot_draft import Shape
from fmhagen.plan.score_pair import ScorePair
from fmhagen.plan.slots import FORMS
from fmhagen.select import choose, default_schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import GFX942


def pair_of(**fields: object) -> ScorePair:
    score = score_of(AttentionSpec(**fields))  # type: ignore[arg-type]
    assert score is not None
    return make_score_pair(score, None)


def test_alibi_is_two_packed_instructions() -> None:
    pair = pair_of(alibi=True)
    (part,) = pair.parts
    assert part.lines == ("  return raw * visible.scale + keys.position_0[row];",)
    assert part.clk == 8  # a product with a sum, and the step to the next two keys
    assert pair.positions[0].slope == "place.alibi_slopes_value"
    assert pair.factor == 1.0


def test_soft_cap_is_cut_at_its_transcendentals() -> None:
    pair = pair_of(soft_cap=50.0)
    assert pair.factor == 50.0  # the exponential multiplies by it
    assert [part.takes_part for part in pair.parts] == [False, True, True]
    assert pair.clks == (36, 36, 4)
    assert "visible.scale * 0.0577" in pair.parts[0].lines[0]  # 2 log2(e) / 50


def test_what_reads_the_score_late_is_not_cut() -> None:
    pair = pair_of(score_mod="score * tanh(score)")
    (part,) = pair.parts
    assert part.name == "score_pair"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("score * 2.0 * 3.0", 6.0),
        ("score * -2.0", 1.0),
        ("3.0 * (score + 1.0)", 3.0),
        ("score + 1.0", 1.0),
    ],
)
def test_constant_factors_above_zero_are_left_to_the_exponential(
    text: str, expected: float
) -> None:
    assert pair_of(score_mod=text).factor == expected


def test_a_key_that_indexes_a_tensor_is_at_most_the_last() -> None:
    pair = pair_of(score_mod="bias: f32[2]; score + bias[q_idx, kv_idx]")
    text = "\n".join(pair.parts[0].lines)
    assert text.count("minimum_i32(") == 2


def test_a_score_function_longer_than_its_products_gets_more_keys() -> None:
    soft_cap, alibi = AttentionSpec(soft_cap=50.0), AttentionSpec(alibi=True)
    assert default_schedule(soft_cap, GFX942).tile_n == 128
    assert default_schedule(alibi, GFX942) == default_schedule(AttentionSpec(), GFX942)
    reasons = " ".join(choose(soft_cap, GFX942).reasons)
    assert "score function" in reasons


def test_the_parts_of_a_pair_stand_apart() -> None:
    plan = lower(AttentionSpec(soft_cap=50.0), default_schedule(AttentionSpec(), GFX942), GFX942)
    assert plan.slot_table is not None
    calls = [(a.call, a.arguments) for slot in plan.slot_table.slots for a in slot.atoms]
    score = [call for call in calls if call[0] in ("begin_score_0", "begin_score_1", "modify")]
    assert len(score) == 3 * 8
    for before, after in itertools.pairwise(score):
        assert before[1][1] != after[1][1]  # of another pair


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_what_is_read_by_the_key_is_fetched_under_the_product_before(head_dim: int) -> None:
    spec = AttentionSpec(head_dim=head_dim, score_mod="t: bf16[2]; score + t[h, kv_idx] * 2.0")
    plan = lower(spec, default_schedule(spec, GFX942), GFX942)
    assert plan.score_pair is not None
    assert plan.slot_table is not None
    assert not any("load_param" in line for part in plan.score_pair.parts for line in part.lines)
    phases = (plan.slot_table.score_slots, plan.slot_table.value_slots)
    counts = [sum(a.call == "fetch" for slot in slots for a in slot.atoms) for slots in phases]
    assert counts == [plan.schedule.tile_n // 2 // 4, 0]


def test_no_more_is_fetched_than_there_are_registers_for() -> None:
    names = [f"t{i}" for i in range(9)]
    declared = "".join(f"{name}: f32[1]; " for name in names)
    read = " + ".join(f"{name}[kv_idx]" for name in names)
    spec = AttentionSpec(head_dim=128, score_mod=f"{declared}score * ({read})")
    plan = lower(spec, default_schedule(spec, GFX942), GFX942)
    assert plan.score_pair is not None
    assert 0 < len(plan.score_pair.fetches) < 9
    lines = [line for part in plan.score_pair.parts for line in part.lines]
    rest = 9 - len(plan.score_pair.fetches)
    assert sum(line.count("load_param") for line in lines) == 2 * rest


def test_a_table_that_fetches_too_late_is_refused() -> None:
    spec = AttentionSpec(head_dim=64, score_mod="t: f32[1]; score + t[kv_idx]")
    table = lower(spec, default_schedule(spec, GFX942), GFX942).slot_table
    assert table is not None
    slots = tuple(
        dataclasses.replace(slot, atoms=tuple(a for a in slot.atoms if a.call != "fetch"))
        for slot in table.score_slots
    )
    shape = Shape(
        form=FORMS["32x32x8"],
        unit=32,
        depth_steps=4,
        value_blocks=2,
        key_pieces=1,
        value_pieces=1,
        value_keys=4,
        round_clk=4,
        prefetch=3,
        score_clks=(8,),
        fetched_loads=1,
    )
    with pytest.raises(ValueError, match="before what it reads is fetched"):
        check_slot_table(shape, dataclasses.replace(table, score_slots=slots))


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("score_mod", ["0.0", "f32(q_idx)", "-score"])
def test_a_score_function_of_no_work_has_a_schedule(head_dim: int, score_mod: str) -> None:
    spec = AttentionSpec(head_dim=head_dim, score_mod=score_mod)
    assert min(make_score_pair(score_of(spec), None).clks) > 0
    assert lower(spec, default_schedule(spec, GFX942), GFX942).score_pair is not None


def test_a_score_function_that_no_schedule_has_registers_for_is_refused() -> None:
    terms = " + ".join(f"tanh(f32(kv_idx * {slope} + q_idx))" for slope in range(2, 62))
    with pytest.raises(UnsupportedSpecError, match="registers a thread") as caught:
        choose(AttentionSpec(head_dim=256, score_mod=f"score + {terms}"), GFX942)
    assert caught.value.field == "score_mod"
    assert "does less" in str(caught.value)
