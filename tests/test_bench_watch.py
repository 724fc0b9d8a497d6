"""The watchdog: a child that hangs, crashes or loses its device costs one entry."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from fmhagen.bench.contest import FAILED, HUNG, OK, Contest, Entry
from fmhagen.bench.watch import BenchError, Watched
from fmhagen.bench.workloads import square
from fmhagen.spec import AttentionSpec

# Does what the names of the entries say.
CHILD = textwrap.dedent(
    """
    import json, os, sys, time

    def answer(**data):
        print(json.dumps(data), flush=True)

    for line in sys.stdin:
        job = json.loads(line)
        if job["job"] != "contest":
            if job["job"] == "die":
                os._exit(3)
            answer(result=job)
            continue
        answer(progress=["", "reference"])
        rows = []
        for entry in job["contest"]["entries"]:
            name = entry["name"]
            answer(progress=[name, "time"])
            if name == "hangs":
                time.sleep(60)
            if name == "crashes":
                os._exit(139)
            if name == "poisons":
                answer(lost=name, reason="CUDA error: illegal address")
                sys.exit(1)
            if name == "silent death":
                answer(progress=["", "reference"])
                os._exit(1)
            rows.append({"name": name, "status": "ok", "milliseconds": [1.0, 1.5]})
        answer(result=rows)
    """
)


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    return sys.executable, "-I", str(script)


def contest(*names: str) -> Contest:
    entries = tuple(Entry(name=name) for name in names)
    return Contest(workload=square(AttentionSpec(), 1024), entries=entries)


def test_only_the_guilty_are_lost(command: tuple[str, ...]) -> None:
    told: list[tuple[str, str]] = []
    with Watched(
        idle_seconds=1.0, command=command, tell=lambda entry, phase: told.append((entry, phase))
    ) as held:
        names = ("first", "hangs", "crashes", "poisons", "last")
        outcomes = held.hold(contest(*names))
        assert [o.name for o in outcomes] == list(names)
        assert [o.status for o in outcomes] == [OK, HUNG, FAILED, FAILED, OK]
        assert "said nothing for 1 s in phase 'time'" in outcomes[1].reason
        assert "status 139" in outcomes[2].reason
        assert "illegal" in outcomes[3].reason
        assert outcomes[4].median_ms == 1.25
        again = held.hold(contest("first"))
        assert [o.status for o in again] == [OK]
    assert ("hangs", "time") in told


def test_a_contest_of_the_guilty_alone_ends(command: tuple[str, ...]) -> None:
    with Watched(idle_seconds=5.0, command=command) as held:
        assert [o.status for o in held.hold(contest("crashes"))] == [FAILED]


def test_without_anybody_to_blame_it_gives_up(command: tuple[str, ...]) -> None:
    with Watched(idle_seconds=5.0, command=command) as held:
        with pytest.raises(BenchError, match="status 1"):
            held.hold(contest("silent death"))
        with pytest.raises(BenchError, match="die"):
            held.ask("die")
        assert held.ask("facts", more=1) == {"job": "facts", "more": 1}


def test_the_true_worker_says_what_it_lacks() -> None:
    with Watched(idle_seconds=60.0) as held:
        try:
            facts = held.ask("facts")
        except BenchError as error:
            assert "PyTorch" in str(error)  # noqa: PT017
        else:
            assert facts["name"]
