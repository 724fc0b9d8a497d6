"""`explain` against golden texts, and what it says of changes and refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from fmhagen.committed.inventory import instances
from fmhagen.errors import InvalidSpecError, ScheduleError
from fmhagen.explaining.explain import explain
from fmhagen.explaining.key_runs import Place, visible_keys
from fmhagen.explaining.loop_nest import loop_nest
from fmhagen.instance import Instance
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS, find_target

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("target", [target.name for target in TARGETS])
def test_golden(target: str) -> None:
    text = str(explain(Instance.of(AttentionSpec(causal=True), find_target(target))))
    path = GOLDEN / f"explain_causal_{target}.txt"
    command = f"fmhagen explain --causal --target {target} > tests/golden/{path.name}"
    assert path.is_file(), f"make it with: {command}"
    assert text == path.read_text(), f"if the change is meant: {command}"


@pytest.mark.parametrize("instance", instances(), ids=[i.plan().symbol for i in instances()])
def test_says_what_the_plan_says(instance: Instance) -> None:
    plan = instance.plan()
    text = str(explain(instance))
    assert plan.symbol in text
    assert str(plan.grid) in text
    assert f"{plan.shared_bytes} of {plan.target.shared_memory_per_block_bytes} bytes" in text
    for region in plan.shared:
        assert region.name in text
    assert f"{plan.schedule.tile_m} query rows" in text
    assert f"key tile of {plan.schedule.tile_n} keys" in text
    assert "why this schedule" in text
    assert all(len(line) <= 120 for line in text.splitlines())


def test_is_json_ready() -> None:
    for instance in instances():
        data = explain(instance).to_dict()
        assert json.loads(json.dumps(data)) == data
        assert data["reasons"]


def test_the_mask_shows_in_the_loops() -> None:
    for target in TARGETS:
        full = "\n".join(loop_nest(Instance.of(AttentionSpec(), target).plan()))
        causal = "\n".join(loop_nest(Instance.of(AttentionSpec(causal=True), target).plan()))
        assert "n <= m" not in full
        assert "n <= m + Sk - Sq" in causal
        assert "with the mask" in causal


def test_a_change_is_shown_beside_the_default() -> None:
    default = Instance.of(AttentionSpec(), find_target("sm90"))
    changed = dataclasses.replace(default, schedule=dataclasses.replace(default.schedule, stages=1))
    explanation = explain(changed)
    assert ("stages", 1, default.schedule.stages) in explanation.changes
    assert explanation.rejected[0][0] == default.schedule
    assert "changed from the default" in str(explanation)
    assert "changed from the default" not in str(explain(default))


def test_a_schedule_that_does_not_fit_is_refused() -> None:
    default = Instance.of(AttentionSpec(), find_target("sm90"))
    changed = dataclasses.replace(default, schedule=dataclasses.replace(default.schedule, stages=8))
    with pytest.raises(ScheduleError, match="stages=8"):
        explain(changed)


@pytest.mark.parametrize("target", [target.name for target in TARGETS])
@pytest.mark.parametrize(
    "spec",
    [
        AttentionSpec(),
        AttentionSpec(causal=True, window_left=300),
        AttentionSpec(mask_mod="(kv_idx < 5) | (q_idx - kv_idx < 90)", causal=True),
        AttentionSpec(mask_mod="q_idx // 200 == kv_idx // 200"),
    ],
    ids=["none", "window", "sinks", "chunks"],
)
def test_tiles_are_counted_as_they_are_visited(spec: AttentionSpec, target: str) -> None:
    place = Place(seqlen_q=700, seqlen_k=1000)
    tiles = explain(Instance.of(spec, find_target(target)), place).tiles
    assert tiles is not None
    seen = visible_keys(spec, place)
    kinds = []
    for m in range(0, 700, tiles.rows):
        for n in range(0, 1000, tiles.keys):
            tile = seen[m : m + tiles.rows, n : n + tiles.keys]
            # A tile that holds the end of the keys is masked there, whatever its rows see.
            whole = tile.all() and n + tiles.keys <= 1000
            kinds.append("full" if whole else "partly" if tile.any() else "hidden")
    counts = {kind: kinds.count(kind) for kind in ("hidden", "full", "partly")}
    assert {kind: getattr(tiles, kind) for kind in counts} == counts
    text = str(tiles)
    assert f"{len(kinds)} of {tiles.rows} rows x {tiles.keys} keys" in text
    assert f"{counts['partly']} ({100 * counts['partly'] / len(kinds):.1f}%)" in text


def test_tiles_are_counted_only_where_lengths_are_given_and_keys_are_not_cut() -> None:
    instance = Instance.of(AttentionSpec(causal=True), TARGETS[0])
    assert "hidden" not in str(explain(instance))
    place = Place(seqlen_q=256, seqlen_k=256)
    explanation = explain(instance, place)
    assert "hidden: not visited" in str(explanation)
    assert json.loads(json.dumps(explanation.to_dict()))["tiles"]["place"]["seqlen_k"] == 256
    cached = Instance.of(AttentionSpec(kv_cache=True), find_target("sm90"))
    with pytest.raises(InvalidSpecError, match="cut at run time"):
        explain(cached, place)
