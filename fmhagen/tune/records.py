"""Records of a search: how it goes and what it found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fmhagen.bench.report import geometric_mean
from fmhagen.bench.workloads import Workload
from fmhagen.tune.candidates import Space
from fmhagen.tune.prebuild import Built
from fmhagen.tune.store import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """How carefully a contest times: see `bench.contest.Contest`."""

    rounds: int
    window_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a search goes.

    Attributes:
        seconds: the budget.
        first: candidates of the first generation; later ones are neighbours of the leaders.
        group: candidates of one contest, beside the reference.
        rungs: the careless look at all, then the careful one at the better third.
        final: the last contest, of the finalists alone.
        finalists: how many.
        space: what is drawn from; None means the usual one.
        fixed: (field, value) that every candidate has.
        seed: of the order in which the space is drawn.
    """

    seconds: float = 300.0
    first: int = 48
    group: int = 12
    rungs: tuple[Rung, Rung] = (
        Rung(rounds=1, window_ms=8.0),
        Rung(rounds=3, window_ms=20.0),
    )
    final: Rung = Rung(rounds=7, window_ms=30.0)
    finalists: int = 4
    space: Space | None = None
    fixed: tuple[tuple[str, Any], ...] = ()
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class Score:
    """What is known of one kernel: its measurement on each workload."""

    built: Built
    measured: dict[str, Measured] = field(default_factory=dict)

    def mean(self, workloads: Iterable[Workload]) -> float:
        """Return the geometric mean of the ratios, 0 where one has no time."""
        ratios = [self.ratio(workload) for workload in workloads]
        return (geometric_mean(ratios) or 0.0) if all(ratios) else 0.0

    def ratio(self, workload: Workload) -> float:
        """Return the ratio on one workload, 0 if there is none."""
        found = self.measured.get(workload.name)
        return found.ratio if found else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a search found.

    Attributes:
        reference: what the rules choose, beside which all was timed.
        best: the best over all workloads.
        by_workload: the best on each workload alone, by its name.
        scores: of everything that was timed, best first.
        refused: what did not compile cleanly, with the reason.
        seconds: how long it took.
        is_exhausted: whether the budget ended it, rather than the want of candidates.
    """

    reference: Score
    best: Score
    by_workload: dict[str, Score]
    scores: tuple[Score, ...]
    refused: tuple[Built, ...]
    seconds: float
    is_exhausted: bool
