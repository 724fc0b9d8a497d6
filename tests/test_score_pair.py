"""The score function for two keys: what is packed, carried, folded and cut."""

import itertools

import pytest

from fmhagen.errors import UnsupportedSpecError
from fmhagen.formula import score_of
from fmhagen.lowering import lower
from fmhagen.lowering.score_pair import make_score_pair
from fmhagen.score_pair import ScorePair
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
