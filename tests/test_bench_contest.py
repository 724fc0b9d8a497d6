"""Contests on a device that is not there: who is timed, who is not and why, and in which order."""

from __future__ import annotations

import io
import json
import random
from types import SimpleNamespace
from typing import Any

import pytest

from fmhagen.bench import measure, peers
from fmhagen.bench.contest import (
    FAILED,
    MISSING,
    OK,
    OURS,
    REFUSED,
    WRONG,
    Contest,
    Entry,
    Outcome,
    Result,
)
from fmhagen.bench.measure import DeviceLostError, hold
from fmhagen.bench.peers import Peer
from fmhagen.bench.timing import Sample, calls_per_sample, interleave
from fmhagen.bench.worker import serve
from fmhagen.bench.workloads import Workload, square
from fmhagen.errors import UnsupportedSpecError
from fmhagen.schedule import Schedule
from fmhagen.select import choose
from fmhagen.spec import AttentionSpec
from fmhagen.targets import find_target


class FakeGround:
    """A device on which a call takes as many milliseconds as its output says."""

    torch = None

    def __init__(self) -> None:
        self.alive = True
        self.order: list[str] = []
        self.drift = 0.0

    def inputs(self, workload: Workload, *, sets: int, seed: int) -> list[Any]:
        return [(f"q{i}", f"k{i}", f"v{i}") for i in range(sets)]

    def new_output(self, workload: Workload, like: Any) -> Any:
        return SimpleNamespace(ms=0.0, error=0.0)

    def capture(self, call: Any, calls: int, sets: int) -> Any:
        assert calls % sets == 1
        outputs = [call(i % sets) for i in range(calls)]
        return SimpleNamespace(output=lambda: outputs[-1], method="graph", reason="", calls=calls)

    def run_poisoned(self, replay: Any) -> Any:
        return replay.output()

    def sample(self, replay: Any) -> Sample:
        output = replay.output()
        if output.ms < 0:
            self.alive = False
            raise RuntimeError("CUDA error: an illegal memory access")
        output.changes = output.changes + self.drift if hasattr(output, "changes") else 0.0
        return Sample(milliseconds=output.ms, clock_mhz=1500.0, watts=700.0)

    def sample_host(self, call: Any, calls: int) -> Sample:
        return Sample(milliseconds=call(0).ms)

    def reference(self, workload: Workload, inputs: Any) -> Any:
        assert inputs[0] == "q0"
        return "reference"

    def errors(self, output: Any, reference: Any) -> tuple[float, float]:
        assert reference == "reference"
        return output.error, 3 * output.error

    def copy(self, output: Any) -> Any:
        return getattr(output, "changes", 0.0)

    def same_bits(self, one: Any, other: Any) -> bool:
        return one == getattr(other, "changes", 0.0)

    def is_alive(self) -> bool:
        return self.alive

    def release(self) -> None:
        pass


def fake_peer(name: str, ms: float, *, error: float = 1e-3, **more: Any) -> Peer:
    result = SimpleNamespace(ms=ms, error=error)
    plain = {
        "title": name,
        "module": "json",
        "install": f"pip install {name}",
        "refuse": lambda workload: None,
        "prepare": lambda torch, workload, sets: lambda i: result,
    }
    return Peer(name=name, **{**plain, **more})


def fake_kernel(
    spec: AttentionSpec,
    *,
    device: str,
    schedule: Schedule | None,
    seqlen_hint: int,
    query_hint: int,
    group_hint: int,
    heads_hint: int,
) -> Any:
    assert seqlen_hint == WORKLOAD.seqlen_k
    assert query_hint == WORKLOAD.seqlen_q
    assert group_hint == WORKLOAD.heads // WORKLOAD.heads_kv
    assert heads_hint == WORKLOAD.batch * WORKLOAD.heads
    chosen = schedule or choose(spec, find_target("sm90")).schedule
    ms = 1.0 if chosen.ping_pong else 1.5

    def call(q: Any, k: Any, v: Any, *, out: Any = None) -> Any:
        result = out or SimpleNamespace()
        result.ms, result.error = ms, 2e-3
        return result

    return _Kernel(call, chosen)


class _Kernel:
    def __init__(self, call: Any, schedule: Schedule) -> None:
        self.call = call
        self.plan = SimpleNamespace(symbol="fmha", schedule=schedule)
        self.source = SimpleNamespace(digest="0123")
        self.resources = SimpleNamespace(to_dict=lambda: {"registers": 168})
        self.binary = SimpleNamespace(compiler="nvrtc 13.0")

    def load(self, device: int) -> None:
        assert device == 0

    def __call__(self, *tensors: Any, out: Any = None) -> Any:
        return self.call(*tensors, out=out)


@pytest.fixture(autouse=True)
def contestants(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(torch: Any, workload: Workload, sets: Any) -> Any:
        raise TypeError("no such\nargument")

    monkeypatch.setattr("fmhagen.api.compile_kernel", fake_kernel)
    found = (
        fake_peer("quick", 1.25),
        fake_peer("slow", 2.0),
        fake_peer("absent", 1.0, module="fmhagen_has_no_such_module"),
        fake_peer("narrow", 1.0, refuse=lambda workload: "it is too wide"),
        fake_peer("wrong", 0.1, error=0.3),
        fake_peer("broken", 1.0, prepare=broken),
        fake_peer("fatal", -1.0),
    )
    monkeypatch.setattr(peers, "PEERS", found)


WORKLOAD = square(AttentionSpec(causal=True), 4096)


def contest(*names: str, **more: Any) -> Contest:
    entries = tuple(Entry(name=name, peer=name) for name in names)
    return Contest(workload=WORKLOAD, entries=(Entry(name=OURS), *entries), **more)


def test_everybody_gets_an_outcome_in_order() -> None:
    names = ("quick", "absent", "narrow", "wrong", "broken", "slow")
    outcomes = hold(contest(*names), FakeGround())
    assert [o.name for o in outcomes] == [OURS, *names]
    statuses = [OK, OK, MISSING, REFUSED, WRONG, FAILED, OK]
    assert [o.status for o in outcomes] == statuses
    ours, quick, absent, narrow, wrong, broken, slow = outcomes
    assert ours.milliseconds == (1.0,) * 5
    assert ours.clock_mhz == (1500.0,) * 5
    assert ours.error_rms == 2e-3
    assert ours.repeatable is True
    assert ours.facts is not None
    assert ours.facts["schedule"]["ping_pong"] is True
    assert quick.median_ms == 1.25
    assert quick.repeatable is None
    assert "install: pip install absent" in absent.reason
    assert "wide" in narrow.reason
    assert not wrong.ok
    assert "float64" in wrong.reason
    assert broken.reason == "TypeError: no such argument"
    assert slow.tflops(WORKLOAD) == pytest.approx(WORKLOAD.flops / 2.0 / 1e9)


def test_a_spec_that_is_refused_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(spec: AttentionSpec, **more: Any) -> Any:
        raise UnsupportedSpecError("head_dim", 256, "supported are 64 and 128", "pad")

    monkeypatch.setattr("fmhagen.api.compile_kernel", refuse)
    ours, quick = hold(contest("quick"), FakeGround())
    assert ours.status == REFUSED
    assert "head_dim=256" in ours.reason
    assert quick.ok


def test_a_lost_device_ends_the_contest_and_names_the_entry() -> None:
    with pytest.raises(DeviceLostError) as lost:
        hold(contest("quick", "fatal"), FakeGround())
    assert lost.value.entry == "fatal"
    assert "illegal" in lost.value.reason


def test_a_result_that_changes_is_wrong() -> None:
    ground = FakeGround()
    ground.drift = 1.0
    (ours,) = hold(contest(), ground)
    assert ours.status == WRONG
    assert ours.repeatable is False


def test_without_a_check_nothing_is_compared() -> None:
    ours, wrong = hold(contest("wrong", check=False), FakeGround())
    assert ours.error_rms is None
    assert wrong.ok


def test_host_time_is_of_single_calls() -> None:
    entries = (Entry(name=OURS, with_out=False), Entry(name="slow", peer="slow"))
    outcomes = hold(Contest(workload=WORKLOAD, entries=entries, on_host=True), FakeGround())
    assert [o.method for o in outcomes] == ["host", "host"]
    assert [o.median_ms for o in outcomes] == [1.0, 2.0]


def test_variants_are_timed_beside_the_default() -> None:
    other = Schedule.from_dict(
        {**choose(WORKLOAD.spec, find_target("sm90")).schedule.to_dict(), "ping_pong": False}
    )
    entries = (Entry(name=OURS), Entry(name="fmhagen ping_pong=False", schedule=other))
    default, variant = hold(Contest(workload=WORKLOAD, entries=entries), FakeGround())
    assert (default.median_ms, variant.median_ms) == (1.0, 1.5)


def test_phases_are_told_before_they_begin() -> None:
    told: list[tuple[str, str]] = []
    hold(contest("quick"), FakeGround(), lambda entry, phase: told.append((entry, phase)))
    assert told[0] == ("", "reference")
    phases = [phase for entry, phase in told if entry == "quick"]
    assert phases == ["prepare", "capture", "check", *["time"] * 6]


def test_rounds_are_shuffled_and_the_first_is_untimed() -> None:
    seen: list[str] = []

    def sample(name: str) -> Sample:
        seen.append(name)
        return Sample(milliseconds=float(len(seen)))

    taken = interleave(("a", "b", "c"), sample, rounds=8, seed=3)
    turns = [seen[i : i + 3] for i in range(0, len(seen), 3)]
    assert len(turns) == 9
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 2
    assert all(len(samples) == 8 for samples in taken.values())
    assert min(s.milliseconds for samples in taken.values() for s in samples) == 4.0
    seen.clear()
    interleave(("a", "b", "c"), sample, rounds=8, seed=3)
    assert [seen[i : i + 3] for i in range(0, len(seen), 3)] == turns


def test_the_last_call_of_a_sample_has_the_first_inputs() -> None:
    drawn = random.Random(0)
    for _ in range(200):
        calls = calls_per_sample(10 ** drawn.uniform(5, 15), drawn.uniform(1, 60), 3)
        assert calls % 3 == 1
        assert 4 <= calls <= 302


def test_records_survive_json() -> None:
    made = contest("quick", rounds=7)
    assert Contest.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    result = Result(workload=WORKLOAD, outcomes=hold(made, FakeGround()))
    assert Result.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_the_worker_answers_and_leaves_a_lost_device() -> None:
    def ask(*jobs: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
        answers = io.StringIO()
        lines = io.StringIO("".join(json.dumps(job) + "\n" for job in jobs))
        status = serve(lines, answers, FakeGround)
        return status, [json.loads(line) for line in answers.getvalue().splitlines()]

    good = {"job": "contest", "contest": contest("quick").to_dict()}
    fatal = {"job": "contest", "contest": contest("fatal").to_dict()}
    status, answers = ask(good, {"job": "nonsense"}, fatal, good)
    assert status == 1
    plain = [answer for answer in answers if "progress" not in answer]
    assert [next(iter(answer)) for answer in plain] == ["result", "error", "lost"]
    assert Outcome.from_dict(plain[0]["result"][0]).ok
    assert plain[2]["lost"] == "fatal"
    status, answers = ask({"job": "peers", "names": ["quick", "absent"]})
    assert status == 0
    assert answers[0]["result"]["quick"]["missing"] is None
    assert "pip install absent" in answers[0]["result"]["absent"]["missing"]


def test_errors_have_a_limit_for_each_type() -> None:
    assert set(measure.ERROR_LIMIT) == {"bf16", "fp16"}
