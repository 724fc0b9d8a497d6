"""Run: a whole bench, workload after workload, within a budget of time."""

from __future__ import annotations

import datetime
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fmhagen.bench.contest import OURS, Contest, Entry, Result
from fmhagen.bench.watch import BenchError, Judge
from fmhagen.bench.workloads import Workload
from fmhagen.resources import package_version, templates_dir

SCHEMA = 1
MATRIX_LOOP_TFLOPS = 865.0
MEMORY_READ_TBPS = 4.53  # what plain reads of cold memory reach on an H200, measured
MATRIX_LOOP_SOURCE = (
    "a bare loop of 16-bit matrix instructions on N(0, 1) data, sustained at 700 W on an H200:"
    " 855 to 868 TFLOP/s"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a bench measures.

    Attributes:
        rounds, window_ms, check, seed: see `contest.Contest`.
        section: what the report is about: a suite, "ablation" or "custom".
        on_host: measure the host's part of calls.
        max_seconds: no workload is started after so long.
    """

    rounds: int = 5
    window_ms: float = 30.0
    check: bool = True
    seed: int = 0
    section: str = "custom"
    on_host: bool = False
    max_seconds: float = float("inf")


@dataclass(slots=True, kw_only=True)
class Report:
    """Everything that a bench found; grows as it runs.

    Attributes:
        command: the command line.
        date: UTC day.
        commit: of the checkout, if that is known.
        version: of fmhagen.
        settings: how it was measured.
        device: see `device.TorchDevice.facts`.
        peers: for each peer asked for, its version, or why it is missing.
        cublas_tflops: the vendor's matrix product in the same run.
        results: one a workload.
        not_run: names of the workloads that the budget left out, or that failed as a whole.
    """

    command: str
    date: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).date().isoformat()
    )
    commit: str | None = field(default_factory=lambda: current_commit())
    version: str = field(default_factory=package_version)
    settings: dict[str, Any] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=dict)
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    cublas_tflops: float | None = None
    results: list[Result] = field(default_factory=list)
    not_run: list[dict[str, str]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            "date": self.date,
            "commit": self.commit,
            "version": self.version,
            "settings": self.settings,
            "device": self.device,
            "peers": self.peers,
            "ceiling": {
                "cublas_tflops": self.cublas_tflops,
                "matrix_loop_tflops": MATRIX_LOOP_TFLOPS,
                "matrix_loop_source": MATRIX_LOOP_SOURCE,
            },
            "results": [result.to_dict() for result in self.results],
            "not_run": self.not_run,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        """Build a report from `to_dict`'s data.

        Raises:
            BenchError: it is of another schema.
        """
        if data.get("schema") != SCHEMA:
            raise BenchError(f"schema={data.get('schema')!r}: this fmhagen reads schema {SCHEMA}")
        plain = ("command", "date", "commit", "version", "settings", "device", "peers", "not_run")
        return cls(
            **{name: data[name] for name in plain},
            cublas_tflops=data["ceiling"]["cublas_tflops"],
            results=[Result.from_dict(result) for result in data["results"]],
        )


def current_commit() -> str | None:
    """Return the commit of the checkout that the templates belong to, "+" if it has changes."""
    root = templates_dir().parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ("git", "-C", str(root), *arguments), capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def entries_for(
    peers: Sequence[str], variants: Iterable[Entry] = (), *, on_host: bool = False
) -> tuple[Entry, ...]:
    """Return the contestants: fmhagen, its variants, the peers."""
    ours: tuple[Entry, ...] = (Entry(name=OURS),)
    if on_host:
        ours = (Entry(name=OURS, with_out=False), Entry(name=f"{OURS} out="))
    return (*ours, *variants, *(Entry(name=peer, peer=peer) for peer in peers))


def run(
    workloads: Sequence[Workload],
    entries: Callable[[Workload], tuple[Entry, ...]],
    judge: Judge,
    settings: Settings,
    report: Report,
    *,
    done: Callable[[Result | None], None] = lambda result: None,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Fill a report; `done` is called after each workload, with None if it was not run.

    Raises:
        BenchError: the device or its child process cannot be used at all.
    """
    end = clock() + settings.max_seconds
    report.settings = {
        "rounds": settings.rounds,
        "window_ms": settings.window_ms,
        "check": settings.check,
        "seed": settings.seed,
        "on_host": settings.on_host,
        "section": settings.section,
    }
    report.device = judge.ask("facts")
    names = sorted({e.peer for w in workloads for e in entries(w) if e.peer})
    report.peers = judge.ask("peers", names=names)
    if not settings.on_host:
        report.cublas_tflops = judge.ask("ceiling")
    for workload in workloads:
        if clock() >= end:
            why = f"the budget of {settings.max_seconds:g} s was spent"
            report.not_run.append({"name": workload.name, "reason": why})
            done(None)
            continue
        contest = Contest(
            workload=workload,
            entries=entries(workload),
            rounds=settings.rounds,
            window_ms=settings.window_ms,
            on_host=settings.on_host,
            check=settings.check,
            input_sets=workload.input_sets,
            seed=settings.seed,
        )
        try:
            result = Result(workload=workload, outcomes=judge.hold(contest))
        except BenchError as error:
            report.not_run.append({"name": workload.name, "reason": str(error)})
            done(None)
            continue
        report.results.append(result)
        done(result)
    return report
