"""The search on a device that is not there: it finds the best, keeps to its budget, goes on."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fmhagen.bench.contest import FAILED, OK, WRONG, Contest, Outcome
from fmhagen.bench.watch import BenchError
from fmhagen.bench.workloads import DECODE_SHAPES, Workload, cached, square
from fmhagen.cli import app
from fmhagen.errors import InvalidSpecError
from fmhagen.lowering import lower
from fmhagen.schedule import Rescale, Schedule, Store
from fmhagen.schedules import (
    Row,
    find_row,
    merged,
    read_rows,
    shipped_path,
    shipped_rows,
    table_text,
)
from fmhagen.select import PREFILL_ROWS, choose
from fmhagen.spec import AttentionSpec, DType
from fmhagen.targets import find_target
from fmhagen.tune import prebuild as prebuild_module
from fmhagen.tune.candidates import (
    Sizes,
    Space,
    candidates,
    drawn_order,
    neighbours,
    register_split,
    weighed,
)
from fmhagen.tune.prebuild import Built, prebuild
from fmhagen.tune.records import Settings
from fmhagen.tune.rows import findings_data, rows_of
from fmhagen.tune.search import REFERENCE, Search
from fmhagen.tune.store import Measured
from fmhagen.tune.store import Store as Results

SM90 = find_target("sm90")
SPEC = AttentionSpec()
SMALL = Space(consumers=(2,), tile_n=(96, 112, 128), stages=(1, 2, 3))
WORKLOADS = tuple(square(SPEC, length) for length in (1024, 16384))


def digest(schedule: Schedule) -> str:
    return f"{hash(schedule) & (2**64 - 1):016x}"


def milliseconds(schedule: Schedule, contest: Contest) -> float:
    """Give 2 ms less what each good decision earns; at 1k alone, one stage is the best."""
    ms = 2.0 - 0.2 * schedule.ping_pong - 0.1 * (schedule.store == Store.DIRECT)
    ms += abs(schedule.tile_n - 112) / 320 + 0.3 * (schedule.consumers != 2)
    if schedule.stages == 1:
        ms *= 0.9 if contest.workload.seqlen_k == 1024 else 1.3
    return ms


class FakeHolder:
    def __init__(self) -> None:
        self.contests: list[Contest] = []
        self.statuses: dict[str, str] = {}

    @property
    def workloads(self) -> list[Workload]:
        return [contest.workload for contest in self.contests]

    def __enter__(self) -> FakeHolder:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def ask(self, job: str) -> Any:
        return {"name": "NVIDIA H200"}

    def hold(self, contest: Contest) -> tuple[Outcome, ...]:
        self.contests.append(contest)
        assert contest.entries[0].name == REFERENCE
        return tuple(self.outcome(e.name, e.schedule, contest) for e in contest.entries)

    def outcome(self, name: str, schedule: Schedule | None, contest: Contest) -> Outcome:
        assert schedule is not None
        status = self.statuses.get(name, OK)
        if status != OK:
            return Outcome(name=name, status=status, reason="so it is")
        times = (milliseconds(schedule, contest),) * contest.rounds
        return Outcome(name=name, status=OK, milliseconds=times, method="graph")


def build(schedules: Sequence[Schedule]) -> tuple[Built, ...]:
    return tuple(
        Built(schedule=s, digest=digest(s), reason="spills" if s.stages > 2 else "", registers=168)
        for s in schedules
    )


def search(holder: FakeHolder, **more: Any) -> Search:
    settings = more.pop("settings", Settings(seconds=150.0, first=16, space=SMALL))
    return Search(
        SPEC,
        WORKLOADS,
        SM90,
        **{
            "holder": holder,
            "build": build,
            "device": "NVIDIA H200",
            "store": Results(),
            "settings": settings,
            "clock": itertools.count().__next__,
            **more,
        },
    )


def test_it_climbs_to_the_best() -> None:
    holder = FakeHolder()
    found = search(holder).run()
    best = found.best.built.schedule
    assert (best.tile_n, best.store, best.ping_pong, best.consumers) == (
        112,
        Store.DIRECT,
        True,
        2,
    )
    assert found.best.mean(WORKLOADS) > 1.05
    assert found.by_workload[WORKLOADS[0].name].built.schedule.stages == 1
    assert found.reference.built.schedule == choose(SPEC, SM90, rows=()).schedule
    assert any(built.reason == "spills" for built in found.refused)
    assert holder.contests[-1].rounds == Settings().final.rounds
    assert max(len(contest.entries) for contest in holder.contests) <= Settings().group + 1
    assert json.dumps(findings_data(WORKLOADS, found))


def test_a_budget_ends_it_and_the_last_contest_is_held_all_the_same() -> None:
    holder = FakeHolder()
    found = search(holder, settings=Settings(seconds=20.0, first=8, space=SMALL)).run()
    assert found.is_exhausted
    assert holder.contests[-1].rounds == Settings().final.rounds
    assert found.best.mean(WORKLOADS) >= 1.0


def test_a_budget_of_nothing_still_times_what_the_rules_choose() -> None:
    found = search(FakeHolder(), settings=Settings(seconds=0.0, first=8, space=SMALL)).run()
    assert found.is_exhausted
    assert found.best is found.reference
    assert rows_of(SPEC, "sm90", WORKLOADS, found, device="d")[0].ratio == 1.0


def test_fixed_fields_stay() -> None:
    settings = Settings(seconds=100.0, first=8, fixed=(("consumers", 3),))
    found = search(FakeHolder(), settings=settings).run()
    others = [s for s in found.scores if s is not found.reference]
    assert others
    assert {s.built.schedule.consumers for s in others} == {3}


def test_what_is_wrong_or_crashes_never_wins() -> None:
    holder = FakeHolder()
    best = search(holder).run().best.built.digest
    again = FakeHolder()
    again.statuses = {best: WRONG}
    found = search(again).run()
    assert found.best.built.digest != best
    broken = FakeHolder()
    broken.statuses = {REFERENCE: FAILED}
    with pytest.raises(BenchError, match="rules choose"):
        search(broken).run()


def test_a_second_search_measures_nothing_anew(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    fixed = (("stages", 2), ("consumers", 2), ("p_buffers", 1), ("rescale", "on_overflow"))
    settings = Settings(seconds=1000.0, first=16, space=SMALL, fixed=fixed)
    once = search(FakeHolder(), store=Results.open(file), settings=settings).run()
    assert not once.is_exhausted
    assert file.exists()
    second = FakeHolder()
    found = search(second, store=Results.open(file), settings=settings).run()
    assert second.contests == []
    assert found.best.built == once.best.built
    assert found.reference.mean(WORKLOADS) == 1.0
    assert found.best.mean(WORKLOADS) > 1.05
    file.write_text("{}")
    with pytest.raises(InvalidSpecError, match="name another file"):
        Results.open(file)


def test_noise_does_not_beat_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = choose(SPEC, SM90, rows=()).schedule
    monkeypatch.setitem(
        globals(), "milliseconds", lambda schedule, contest: 1.0 - 0.005 * (schedule != rules)
    )
    found = search(FakeHolder(), settings=Settings(seconds=20.0, first=8, space=SMALL)).run()
    assert found.best is found.reference
    assert found.scores[0] is not found.reference


def test_a_store_keeps_the_careful_measurement() -> None:
    plain = {"device": "d", "workload": "w", "digest": "x", "reference": "r"}
    schedule = choose(SPEC, SM90).schedule
    store = Results()
    for rounds, ratio in ((3, 1.1), (7, 1.2), (1, 1.5)):
        store.put(
            Measured(**plain, schedule=schedule, status=OK, ratio=ratio, rounds=rounds)  # type: ignore[arg-type]
        )
    kept = store.get(**plain, rounds=5)
    assert kept is not None
    assert kept.ratio == 1.2
    assert store.get(**plain, rounds=9) is None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_candidates_are_what_the_lowering_takes(head_dim: int, causal: bool) -> None:
    spec = AttentionSpec(head_dim=head_dim, causal=causal)
    found = candidates(spec, SM90)
    assert len(found) == len(set(found)) > 20
    assert found[: len(weighed(spec, SM90))] == weighed(spec, SM90)
    for schedule in found[::50]:
        assert lower(spec, schedule, SM90)
    default = found[0]
    near = neighbours(spec, default, SM90)
    assert default not in near
    assert len(near) > 5
    drawn = drawn_order(found, first=3, seed=1)
    assert drawn[:3] == found[:3]
    assert sorted(map(repr, drawn)) == sorted(map(repr, found))


def test_candidates_of_gfx942_have_every_order_and_matrix_instruction() -> None:
    gfx942 = find_target("gfx942")
    found = candidates(AttentionSpec(), gfx942)
    kinds = {(str(s.main_loop), str(s.matrix), s.ping_pong) for s in found}
    loops = ("wave_pipelined", "wave_ping_pong")
    matrices = ("32x32x8", "16x16x16")
    assert kinds >= {(loop, matrix, False) for loop in loops for matrix in matrices}
    assert kinds >= {("wave_pipelined", matrix, True) for matrix in matrices}
    assert ("wave_interleaved", "32x32x8", False) in kinds
    assert {s.prefetch for s in found if s.main_loop == "wave_ping_pong"} > {5, 7}


def test_registers_use_the_pool() -> None:
    assert register_split(2, SM90, 32) == (40, 232)
    assert register_split(3, SM90, 32) == (32, 160)
    assert register_split(4, SM90, 32) == (32, 112)


def test_prebuild_keeps_the_order_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    schedules = candidates(SPEC, SM90)[:6]

    def fake(spec: Any, schedule: dict[str, Any], target: str) -> tuple[str, str, int]:
        made = Schedule.from_dict(schedule)
        if made == schedules[1]:
            raise OSError("the process died")
        return ("", "spills", 0) if made == schedules[2] else (digest(made), "", 168)

    monkeypatch.setattr(prebuild_module, "build", fake)
    told: list[Built] = []
    found = prebuild(SPEC, schedules, "sm90", jobs=2, pool=ThreadPoolExecutor, tell=told.append)
    assert [built.schedule for built in found] == list(schedules)
    assert found[1].reason == "OSError: the process died"
    assert found[2].reason == "spills"
    assert [built.digest for built in found[3:]] == [digest(s) for s in schedules[3:]]
    assert sorted(map(repr, told)) == sorted(map(repr, found))
    assert prebuild(SPEC, (), "sm90", jobs=2) == ()


def row(schedule: Schedule, **more: Any) -> Row:
    plain: dict[str, Any] = {
        "target": "sm90",
        "dtype": "bf16",
        "head_dim": 128,
        "head_dim_v": 128,
        "causal": False,
        "max_seqlen": 0,
        "tflops": 700.0,
        "ratio": 1.03,
        "workloads": "bf16 d128 full b1 h16 s16384",
        "device": "NVIDIA H200",
        "date": "2026-11-29",
        "digest": "0123456789abcdef",
    }
    return Row(schedule=schedule, **{**plain, **more})


def test_a_table_is_the_same_bytes_again(tmp_path: Path) -> None:
    default = choose(SPEC, SM90, rows=()).schedule
    rows = (row(default, max_seqlen=1024), row(default, causal=True), row(default))
    path = tmp_path / "table.toml"
    path.write_text(table_text(rows))
    again = read_rows(path)
    assert {r.key for r in again} == {r.key for r in rows}
    assert table_text(again) == path.read_text()
    replaced = merged(again, (row(default, tflops=1.0),))
    assert [(r.causal, r.max_seqlen, r.tflops) for r in replaced] == [
        (True, 0, 700.0),
        (False, 0, 1.0),
    ]
    path.write_text("[[row]]\ntarget = 'sm90'\n")
    with pytest.raises(InvalidSpecError, match="row"):
        read_rows(path)


def test_select_prefers_a_row_and_says_so() -> None:
    rules = choose(SPEC, SM90, rows=())
    other, short = neighbours(SPEC, rules.schedule, SM90)[:2]
    rows = (row(other), row(short, max_seqlen=2048))
    chosen = choose(SPEC, SM90, rows=rows)
    assert chosen.schedule == other
    assert chosen.row == rows[0]
    assert "1.030 times what the rules choose, on NVIDIA H200" in chosen.reasons[0]
    assert chosen.rejected[0][0] == rules.schedule
    assert choose(SPEC, SM90, rows=rows, seqlen_hint=1024).schedule == short
    assert choose(SPEC, SM90, rows=rows, seqlen_hint=4096).schedule == other
    same = choose(SPEC, SM90, rows=(row(rules.schedule),))
    assert same.reasons[1:] == rules.reasons
    for unlike in (AttentionSpec(causal=True), AttentionSpec(dtype=DType.FP16)):
        assert choose(unlike, SM90, rows=rows) == choose(unlike, SM90, rows=())
    assert choose(AttentionSpec(scale=0.5), SM90, rows=rows).schedule == other
    assert find_row(rows, AttentionSpec(soft_cap=30.0), "sm90") is None


def test_a_row_that_does_not_fit_any_more_is_passed_over() -> None:
    rules = choose(SPEC, SM90, rows=())
    wide = Schedule.from_dict({**rules.schedule.to_dict(), "stages": 8})
    assert choose(SPEC, SM90, rows=(row(wide),)) == rules


def test_the_shipped_rows_fit() -> None:
    assert table_text(shipped_rows()) == shipped_path().read_text()
    for shipped in shipped_rows():
        spec = AttentionSpec(
            dtype=DType(shipped.dtype),
            head_dim=shipped.head_dim,
            head_dim_v=shipped.head_dim_v,
            causal=shipped.causal,
        )
        assert lower(spec, shipped.schedule, find_target(shipped.target))


def test_winners_become_at_most_two_rows() -> None:
    found = search(FakeHolder()).run()
    rows = rows_of(SPEC, "sm90", WORKLOADS, found, device="NVIDIA H200", date="2026-11-29")
    assert [r.max_seqlen for r in rows] == [0, 1024]
    assert rows[1].schedule.stages == 1
    assert rows[0].tflops > 0
    assert Row.from_dict(rows[1].to_dict()) == rows[1]


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fake_prebuild(spec: AttentionSpec, schedules: Any, *, target: str, jobs: int) -> Any:
        assert jobs > 0
        return build(schedules)

    monkeypatch.setattr("fmhagen.cli.tune.judge", lambda seconds: FakeHolder())
    monkeypatch.setattr("fmhagen.cli.tune.prebuild", fake_prebuild)
    table, results = tmp_path / "t.toml", tmp_path / "r.json"
    arguments = ["tune", "--seqlen", "1024,16384", "--seconds", "5", "--first", "8"]
    files = ["--table", str(table), "--resume", str(results), "--json", str(tmp_path / "f.json")]
    done = CliRunner().invoke(app, [*arguments, *files])
    assert done.exit_code == 0, done.output
    assert "best: Schedule(" in done.stdout
    assert "differs from what the rules choose in" in done.stdout
    assert read_rows(table)[0].device == "NVIDIA H200"
    assert json.loads((tmp_path / "f.json").read_text())["best"]["mean"] >= 1.0
    assert json.loads(results.read_text())["measured"]
    assert CliRunner().invoke(app, ["tune", "--seqlen", "x"]).exit_code == 2
    assert CliRunner().invoke(app, ["tune", "--head-dim", "512"]).exit_code == 2


CACHE = AttentionSpec(page_size=16, causal=True)
CACHE_WORKLOADS = cached(CACHE, DECODE_SHAPES[:3])


@pytest.mark.parametrize(
    ("more", "copies", "keys"),
    [
        ({}, {"bulk", "gather"}, {16, 32, 64}),
        ({"page_size": 1}, {"gather"}, {16, 32}),
        ({"kv_dtype": "e4m3", "kv_scale": "token"}, {"bulk", "gather"}, {32}),
    ],
)
def test_candidates_over_a_cache(more: dict[str, Any], copies: set[str], keys: set[int]) -> None:
    spec = AttentionSpec.from_dict({"page_size": 16, "causal": True, **more})
    found = candidates(spec, SM90)
    assert len(found) == len(set(found)) > 20
    assert found[: len(weighed(spec, SM90))] == weighed(spec, SM90)
    assert {str(s.main_loop) for s in found} == {"split_kv"}
    assert {str(s.copy) for s in found} == copies
    assert {s.tile_n for s in found} == keys
    assert {s.consumers for s in found} == {2, 4, 8}
    assert {s.blocks_per_unit for s in found} >= {1, 2}
    near = neighbours(spec, found[0], SM90)
    assert found[0] not in near
    assert len(near) > 3
    for schedule in (*found[::9], *near):
        assert lower(spec, schedule, SM90)


@pytest.mark.parametrize("more", [{}, {"kv_dtype": "e4m3", "kv_scale": "token"}])
def test_candidates_over_a_cache_of_gfx942(more: dict[str, Any]) -> None:
    gfx942 = find_target("gfx942")
    spec = AttentionSpec.from_dict({"page_size": 16, **more})
    found = candidates(spec, gfx942)
    assert found[: len(weighed(spec, gfx942))] == weighed(spec, gfx942)
    assert {str(s.copy) for s in found} == {"direct"}
    assert len({s.consumers for s in found}) > 2
    assert len({s.blocks_per_unit for s in found}) > 2
    assert {lower(spec, s, gfx942).symbol for s in found}


class CacheHolder(FakeHolder):
    """Gathers of four warps are the quickest, eight stages better than fewer."""

    def outcome(self, name: str, schedule: Schedule | None, contest: Contest) -> Outcome:
        assert schedule is not None
        assert contest.workload.spec.kv_cache
        ms = 1.0 + 0.1 * (schedule.copy != "gather") + 0.1 * (schedule.consumers != 4)
        ms += 0.02 * abs(8 - schedule.stages)
        return Outcome(name=name, status=OK, milliseconds=(ms,) * contest.rounds, method="graph")


def build_of_caches(schedules: Sequence[Schedule]) -> tuple[Built, ...]:
    return tuple(Built(schedule=s, digest=digest(s), registers=128) for s in schedules)


def test_a_search_over_caches_gives_rows_for_them_alone(tmp_path: Path) -> None:
    holder = CacheHolder()
    found = Search(
        CACHE,
        CACHE_WORKLOADS,
        SM90,
        holder=holder,
        build=build_of_caches,
        device="NVIDIA H200",
        store=Results(),
        settings=Settings(seconds=400.0, first=16),
        clock=itertools.count().__next__,
    ).run()
    best = found.best.built.schedule
    assert (str(best.copy), best.consumers) == ("gather", 4)
    assert best.stages >= 6
    rows = rows_of(CACHE, "sm90", CACHE_WORKLOADS, found, device="NVIDIA H200", date="2026-11-29")
    assert [r.max_seqlen for r in rows] == [0]
    assert (rows[0].cache, rows[0].page_size, rows[0].kv_dtype) == (True, 16, "")
    # As many bytes as the longest cache has, in the milliseconds of the stand-in.
    longest = CACHE_WORKLOADS[-1]
    ms = CacheHolder().outcome("", best, Contest(workload=longest, entries=(), rounds=1)).median_ms
    assert rows[0].terabytes == pytest.approx(longest.cache_bytes / ms / 1e9, abs=0.005)

    path = tmp_path / "table.toml"
    forward = row(choose(AttentionSpec(causal=True), SM90, rows=()).schedule, causal=True)
    path.write_text(table_text((*rows, forward)))
    table = read_rows(path)
    assert table_text(table) == path.read_text()
    assert len({r.key for r in table}) == 2
    assert choose(CACHE, SM90, rows=table).row == rows[0]
    assert choose(AttentionSpec(causal=True), SM90, rows=table).row == forward
    assert choose(CACHE, SM90, rows=table, query_hint=PREFILL_ROWS).row is None
    likes = {"cache_layout": "hnd", "layout": "bhsd", "scale": 0.5}
    for name, value in likes.items():
        assert find_row(table, AttentionSpec.from_dict({**CACHE.to_dict(), name: value}), "sm90")
    unlike = (
        {"page_size": 8},
        {"page_size": None, "kv_cache": True},
        {"kv_dtype": "e4m3"},
        {"kv_dtype": "e4m3", "kv_scale": "head"},
        {"causal": False},
        {"window_left": 100},
        {"batch_invariant": True},
        {"head_dim": 64},
    )
    for change in unlike:
        spec = AttentionSpec.from_dict({**CACHE.to_dict(), **change})
        assert find_row(table, spec, "sm90") is None, change
    # A new row takes the place of its own kind, and of no other.
    replaced = merged(table, (dataclasses.replace(rows[0], terabytes=9.0),))
    assert {r.terabytes for r in replaced} == {0.0, 9.0}


def test_explain_says_which_row_of_caches_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = choose(CACHE, SM90, rows=()).schedule
    other = neighbours(CACHE, rules, SM90)[0]
    made = row(other, causal=True, cache=True, page_size=16, terabytes=4.25)
    monkeypatch.setattr("fmhagen.select.shipped_rows", lambda: (made,))
    shown = CliRunner().invoke(app, ["explain", "-t", "sm90", "--page-size", "16", "--causal"])
    text = " ".join(shown.stdout.split())
    assert "for caches of bf16 in pages of 16, any length: measured 4.25 TB/s, 1.030 times" in text
    data = CliRunner().invoke(
        app, ["explain", "-t", "sm90", "--page-size", "16", "--causal", "--json"]
    )
    (found,) = json.loads(data.stdout)
    assert found["row"]["page_size"] == 16
    assert found["schedule"]["stages"] == other.stages
    plain = CliRunner().invoke(app, ["explain", "-t", "sm90", "--causal"])
    assert "caches" not in plain.stdout


def test_the_command_over_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fake_prebuild(spec: AttentionSpec, schedules: Any, *, target: str, jobs: int) -> Any:
        assert spec.kv_cache
        return build_of_caches(schedules)

    holder = CacheHolder()
    monkeypatch.setattr("fmhagen.cli.tune.judge", lambda seconds: holder)
    monkeypatch.setattr("fmhagen.cli.tune.prebuild", fake_prebuild)
    table = tmp_path / "t.toml"
    arguments = ["tune", "--page-size", "16", "--kv-dtype", "e4m3", "--seconds", "2"]
    done = CliRunner().invoke(app, [*arguments, "--first", "6", "--table", str(table)])
    assert done.exit_code == 0, done.output
    (found,) = read_rows(table)[:1]
    assert (found.cache, found.page_size, found.kv_dtype) == (True, 16, "e4m3")
    assert [c.workload.seqlen_k for c in holder.contests[:6]] == [n for _, n in DECODE_SHAPES]
    assert {(c.workload.heads, c.workload.heads_kv) for c in holder.contests} == {(32, 8)}
    assert "page16 e4m3" in found.workloads

    holder.contests.clear()
    more = ["--seqlen", "4096,65536", "--heads", "8", "--heads-kv", "1", "--seqlen-q", "4"]
    assert CliRunner().invoke(app, [*arguments, "--first", "6", *more]).exit_code == 0
    sizes = {(w.batch, w.seqlen_k, w.heads, w.heads_kv, w.seqlen_q) for w in holder.workloads}
    assert sizes == {(64, 4096, 8, 1, 4), (4, 65536, 8, 1, 4)}
    assert CliRunner().invoke(app, [*arguments, "--seqlen", "0"]).exit_code == 2

    holder.contests.clear()
    many = ["tune", "--page-size", "16", "--causal", "--seconds", "2", "--first", "6"]
    many += ["--seqlen-q", "64", "--batch", "1", "--seqlen", "8192"]
    assert CliRunner().invoke(app, many).exit_code == 0
    reference = holder.contests[0].entries[0].schedule
    assert reference is not None
    assert reference == choose(CACHE, SM90, rows=(), **FEW_TILES).schedule
    assert reference.split_keys


FEW_TILES = Sizes(query_hint=64, group_hint=4, heads_hint=32)


def test_candidates_of_many_rows_over_a_cache() -> None:
    rules = choose(CACHE, SM90, rows=(), **FEW_TILES).schedule
    found = candidates(CACHE, SM90, hints=FEW_TILES)
    first = tuple(s for s in weighed(CACHE, SM90, FEW_TILES) if s in found)
    assert found[: len(first)] == first
    assert first[0] == rules
    drawn = found[len(first) :]
    assert len(drawn) > 20
    kinds = {(str(s.main_loop), s.pack_heads, s.split_keys) for s in drawn}
    assert kinds == {("warp_specialised", True, True)}
    for schedule in drawn[::40]:
        assert lower(CACHE, schedule, SM90)
    # A row of theirs is for calls of such sizes alone.
    table = (row(drawn[0], causal=True, cache=True, page_size=16),)
    assert choose(CACHE, SM90, rows=table, **FEW_TILES).row == table[0]
    many_tiles = Sizes(**{**FEW_TILES, "heads_hint": 32 * 64})
    assert choose(CACHE, SM90, rows=table, **many_tiles).row is None
    assert choose(CACHE, SM90, rows=table).row is None


def test_rescale_is_searched() -> None:
    kinds = {schedule.rescale for schedule in candidates(SPEC, SM90)}
    assert {Rescale.ON_OVERFLOW, Rescale.ON_GROWTH} <= kinds
