"""Launch values: the grid, the tile order and the bytes of the parameter block."""

from __future__ import annotations

import dataclasses
import math

import pytest

from fmhagen.api import lower
from fmhagen.errors import InvalidSpecError, LaunchError, TensorError
from fmhagen.plan.attention import Plan, pack_params
from fmhagen.runtime.checks import Problem
from fmhagen.runtime.launch_values import (
    LOG2_E,
    SMALLEST_NORMAL_F32,
    Operand,
    block_packer,
    deal_tiles,
    launch_values,
    scale_log2_of,
)
from fmhagen.select import candidates
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS

SPECS = tuple(
    AttentionSpec(head_dim=d, causal=causal, anchor=anchor)
    for d in (64, 128)
    for causal, anchor in ((False, "bottom_right"), (True, "bottom_right"), (True, "top_left"))
)
PROBLEM = Problem(batch=2, heads=8, heads_kv=2, seqlen_q=700, seqlen_k=900)


def operands(problem: Problem = PROBLEM, d: int = 128) -> tuple[Operand, ...]:
    made = []
    for name in "qkvo":
        heads = problem.heads_kv if name in "kv" else problem.heads
        rows = problem.seqlen_k if name in "kv" else problem.seqlen_q
        made.append(
            Operand(
                name=name,
                depth=d,
                batch=problem.batch,
                heads=heads,
                rows=rows,
                stride_b=rows * heads * d,
                stride_h=d,
                stride_m=heads * d,
                element_bytes=2,
                dtype="bf16",
            )
        )
    return tuple(made)


def plans() -> list[Plan]:
    return [
        lower(spec, schedule, target=target.name)
        for target in TARGETS
        for spec in SPECS
        for schedule in candidates(spec, target)
    ]


@pytest.mark.parametrize("plan", plans(), ids=lambda plan: plan.symbol)
def test_every_field_of_every_plan_has_a_value(plan: Plan) -> None:
    values = launch_values(plan, PROBLEM, operands(d=plan.spec.d), 132).values
    block = block_packer(plan).pack(*(values[field.name] for field in plan.params))
    assert len(block) == plan.params_bytes


@pytest.mark.parametrize("plan", plans(), ids=lambda plan: plan.symbol)
def test_fields_lie_where_the_plan_says(plan: Plan) -> None:
    marks = []
    for index, field in enumerate(plan.params, 1):
        marks.append(bytes([index] * 128) if field.ctype == "TensorMap" else index)
    block = block_packer(plan).pack(*marks)
    for index, field in enumerate(plan.params, 1):
        raw = block[field.offset_bytes : field.offset_bytes + field.size_bytes]
        if field.ctype == "TensorMap":
            assert raw == bytes([index] * 128)
        elif field.ctype != "f32":
            assert int.from_bytes(raw, "little") == index


def test_a_field_that_nobody_knows_is_a_defect() -> None:
    plan = lower(SPECS[0])
    params, size = pack_params((("u32", "mystery", ""),))
    broken = dataclasses.replace(plan, params=params, params_bytes=size)
    with pytest.raises(LaunchError, match="no launch value is known for mystery"):
        launch_values(broken, PROBLEM, operands(), 132)


@pytest.mark.parametrize("units", [1, 3, 7, 132])
@pytest.mark.parametrize(
    "problem",
    [
        PROBLEM,
        Problem(batch=1, heads=1, heads_kv=1, seqlen_q=1, seqlen_k=1),
        Problem(batch=3, heads=5, heads_kv=5, seqlen_q=2000, seqlen_k=100_000),
    ],
)
def test_the_snake_deals_every_tile_once(problem: Problem, units: int) -> None:
    """The walk of the emitted file, in Python: every (tile, head) exactly once."""
    plan = lower(AttentionSpec(head_dim=128, causal=True))
    found = launch_values(plan, problem, operands(problem), units)
    blocks, values = found.blocks, found.values
    section_tiles = values["heads_per_section"] * values["num_m_tiles"]
    if not plan.snake:
        pytest.skip("the default schedule deals in another order")
    dealt = []
    for block in range(blocks):
        lane = block
        for section in range(values["num_sections"]):
            for turn in range(values["rounds_per_section"]):
                place = lane if turn % 2 == 0 else blocks - 1 - lane
                rest = turn * blocks + place
                if rest < section_tiles:
                    dealt.append(section * section_tiles + rest)
            lane = (lane + values["lane_shift"]) % blocks
    total = math.ceil(problem.seqlen_q / plan.grid.tile_m) * problem.heads * problem.batch
    assert sorted(dealt) == list(range(total))


@pytest.mark.parametrize("keys", [0, 1, 1000, 16384, 200_000, 10_000_000])
@pytest.mark.parametrize(("heads", "heads_kv"), [(1, 1), (12, 4), (7, 1)])
def test_sections_divide_the_heads_and_fit_in_l2(keys: int, heads: int, heads_kv: int) -> None:
    plan = lower(AttentionSpec(head_dim=128, causal=True))
    problem = Problem(batch=3, heads=heads, heads_kv=heads_kv, seqlen_q=64, seqlen_k=keys)
    section = deal_tiles(plan, problem, 3 * heads).heads_per_section
    assert 3 * heads % section == 0
    share = keys * 256 * 2 * heads_kv / heads
    # NOTE: a section may take twice the room if that balances the blocks, and one head always goes.
    assert section == 1 or section * share <= 2 * plan.heads_in_l2_bytes


def test_without_a_mask_each_head_is_a_section() -> None:
    plan = lower(AttentionSpec(head_dim=128))
    assert deal_tiles(plan, PROBLEM, 132).heads_per_section == 1


def test_the_mask_offset_follows_the_anchor() -> None:
    for anchor, off in (("bottom_right", 200), ("top_left", 0)):
        plan = lower(AttentionSpec(causal=True, anchor=anchor))
        assert launch_values(plan, PROBLEM, operands(), 132).values["causal_offset"] == off


def test_scales() -> None:
    assert scale_log2_of(1.0) == pytest.approx(LOG2_E)
    assert scale_log2_of(0) == SMALLEST_NORMAL_F32
    assert scale_log2_of(1e-300) == SMALLEST_NORMAL_F32
    for bad in (-1.0, math.nan, math.inf, 1e39):
        with pytest.raises(InvalidSpecError, match="scale"):
            scale_log2_of(bad)


def test_too_many_tiles_are_refused() -> None:
    problem = Problem(batch=2**20, heads=2**12, heads_kv=1, seqlen_q=64, seqlen_k=1)
    with pytest.raises(TensorError, match="gives 4294967296 tiles"):
        launch_values(lower(AttentionSpec()), problem, operands(problem), 132)


def test_persistent_grids_fill_the_chip_and_no_more() -> None:
    plan = lower(AttentionSpec(head_dim=128, causal=True))
    assert plan.grid.per_compute_unit
    assert launch_values(plan, PROBLEM, operands(), 5).blocks == 5
    small = Problem(batch=1, heads=1, heads_kv=1, seqlen_q=1, seqlen_k=1)
    assert launch_values(plan, small, operands(small), 132).blocks == 1


def test_expanded_operands_are_told() -> None:
    q = operands()[0]
    assert not q.is_expanded
    assert dataclasses.replace(q, stride_b=0).is_expanded
    assert not dataclasses.replace(q, batch=1, stride_b=0).is_expanded
    assert dataclasses.replace(q, rows=0).map_sizes == (128, 1, 8, 2)
