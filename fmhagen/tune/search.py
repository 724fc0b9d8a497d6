"""Search: successive halving of candidates, generation after generation, within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from fmhagen.bench.contest import OK, Contest, Entry, Outcome
from fmhagen.bench.watch import BenchError
from fmhagen.bench.workloads import Workload
from fmhagen.schedule import Schedule
from fmhagen.select import choose
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target
from fmhagen.tune.candidates import UNKNOWN, Sizes, candidates, drawn_order, neighbours, weighed
from fmhagen.tune.prebuild import Built
from fmhagen.tune.records import Findings, Rung, Score, Settings
from fmhagen.tune.store import Measured, Store

REFERENCE = "reference"
SEARCH_SHARE = 0.8  # of the budget; the rest is for the last contest
LEADERS = 3
NOISE = 1.01  # what a schedule must win over what the rules choose, to be the best


class Holder(Protocol):
    """What holds contests; `bench.watch` has two."""

    def hold(self, contest: Contest) -> tuple[Outcome, ...]: ...  # noqa: D102


Build = Callable[[Sequence[Schedule]], tuple[Built, ...]]


class Search:
    """One search for one spec over some workloads on one device."""

    def __init__(
        self,
        spec: AttentionSpec,
        workloads: Sequence[Workload],
        target: Target,
        *,
        holder: Holder,
        build: Build,
        device: str,
        store: Store,
        settings: Settings,
        hints: Sizes = UNKNOWN,
        tell: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start nothing yet.

        `build` compiles candidates, `tell` hears what goes on, and `hints` are the sizes that the
        rules are told: they say which main loop is searched.
        """
        self._hints = hints
        self._spec, self._workloads, self._target = spec, tuple(workloads), target
        self._holder, self._build, self._device = holder, build, device
        self._store, self._settings, self._tell, self._clock = store, settings, tell, clock
        self._scores: dict[str, Score] = {}
        self._seen: set[Schedule] = set()
        self._refused: list[Built] = []

    def run(self) -> Findings:
        """Search until the budget or the candidates end.

        Raises:
            UnsupportedSpecError: the target does not support the spec.
            BenchError: the reference cannot be timed.
        """
        started = self._clock()
        self._end = started + SEARCH_SHARE * self._settings.seconds
        rules = choose(self._spec, self._target, rows=(), **self._hints).schedule
        self._reference = self._compile((rules,), whole=True)[0]
        for workload in self._workloads:
            self._known(self._reference, workload, self._settings.rungs[0])
        space = self._drawn()
        generation: tuple[Schedule, ...] = space[: self._settings.first]
        number = 0
        while generation and not self._is_late():
            self._tell(f"generation {number}: {len(generation)} candidates: compiling")
            built = self._compile(generation)
            self._race(built, f"generation {number}")
            generation = self._next(space)
            number += 1
        finalists = self._finalists()
        self._tell(f"final: {len(finalists)} candidates")
        # NOTE: a budget may end before anything was timed; what the rules choose is always.
        if finalists or not self._scores[self._reference.digest].mean(self._workloads):
            last = finalists or (self._reference,)
            self._measure(last, self._settings.final, late_ends=False)
        return self._findings(self._clock() - started, is_exhausted=bool(generation))

    def _drawn(self) -> tuple[Schedule, ...]:
        hints = self._hints
        everything = candidates(self._spec, self._target, self._settings.space, hints)
        first = len([s for s in weighed(self._spec, self._target, hints) if s in everything])
        return self._allowed(drawn_order(everything, first=first, seed=self._settings.seed))

    def _allowed(self, schedules: Iterable[Schedule]) -> tuple[Schedule, ...]:
        fixed = self._settings.fixed
        return tuple(s for s in schedules if all(getattr(s, n) == value for n, value in fixed))

    def _is_late(self) -> bool:
        return self._clock() >= self._end

    def _compile(self, schedules: Sequence[Schedule], *, whole: bool = False) -> tuple[Built, ...]:
        """Compile what is new; return what is clean, one a digest."""
        new = [schedule for schedule in schedules if schedule not in self._seen]
        self._seen.update(new)
        good = []
        for built in self._build(new):
            if built.reason:
                self._refused.append(built)
            elif built.digest not in self._scores:
                self._scores[built.digest] = Score(built=built)
                good.append(built)
        if whole and len(good) != len(schedules):
            reasons = "; ".join(built.reason for built in self._refused)
            raise BenchError(f"what the rules choose does not compile cleanly: {reasons}")
        return tuple(good)

    def _race(self, built: Sequence[Built], title: str) -> None:
        quick, careful = self._settings.rungs
        self._tell(f"{title}: a quick look at {len(built)}")
        self._measure(built, quick)
        order = sorted(built, key=lambda b: -self._scores[b.digest].mean(self._workloads))
        kept = [b for b in order if self._scores[b.digest].mean(self._workloads) > 0]
        kept = kept[: max(LEADERS, len(built) // 3)]
        self._tell(f"{title}: a careful look at {len(kept)}")
        self._measure(kept, careful)
        leaders = self._leaders(1)
        if leaders:
            mean = leaders[0].mean(self._workloads)
            self._tell(f"{title}: best so far {mean:.3f}: {leaders[0].built.schedule!r}")

    def _next(self, space: Sequence[Schedule]) -> tuple[Schedule, ...]:
        near = [
            neighbour
            for score in self._leaders(LEADERS)
            for neighbour in neighbours(self._spec, score.built.schedule, self._target)
        ]
        fresh = [s for s in dict.fromkeys(self._allowed(near)) if s not in self._seen]
        if not fresh:
            fresh = [s for s in space if s not in self._seen]
        return tuple(fresh[: self._settings.first])

    def _leaders(self, count: int) -> list[Score]:
        scores = [s for s in self._scores.values() if s.mean(self._workloads) > 0]
        return sorted(scores, key=lambda s: -s.mean(self._workloads))[:count]

    def _finalists(self) -> tuple[Built, ...]:
        chosen = {s.built.digest: s.built for s in self._leaders(self._settings.finalists)}
        for workload in self._workloads:
            ranked = sorted(self._scores.values(), key=lambda s: -s.ratio(workload))
            for score in ranked[:2]:
                if score.ratio(workload):
                    chosen[score.built.digest] = score.built
        chosen.pop(self._reference.digest, None)
        return tuple(chosen.values())

    def _measure(self, built: Sequence[Built], rung: Rung, *, late_ends: bool = True) -> None:
        """Time kernels on every workload beside the reference, a group a contest."""
        for workload in self._workloads:
            left = [b for b in built if not self._known(b, workload, rung)]
            for start in range(0, len(left), self._settings.group):
                if late_ends and self._is_late():
                    return
                group = left[start : start + self._settings.group]
                self._contest(group, workload, rung)
                self._store.save()

    def _known(self, built: Built, workload: Workload, rung: Rung) -> bool:
        found = self._store.get(
            device=self._device,
            workload=workload.name,
            digest=built.digest,
            reference=self._reference.digest,
            rounds=rung.rounds,
        )
        if found is not None:
            self._scores[built.digest].measured[workload.name] = found
        return found is not None

    def _contest(self, group: Sequence[Built], workload: Workload, rung: Rung) -> None:
        others = [built for built in group if built.digest != self._reference.digest]
        entries = (
            Entry(name=REFERENCE, schedule=self._reference.schedule),
            *(Entry(name=built.digest, schedule=built.schedule) for built in others),
        )
        outcomes = self._holder.hold(
            Contest(
                workload=workload, entries=entries, rounds=rung.rounds, window_ms=rung.window_ms
            )
        )
        by_name = {outcome.name: outcome for outcome in outcomes}
        base = by_name[REFERENCE]
        if not base.ok:
            raise BenchError(f"what the rules choose has no time: {base.status}: {base.reason}")
        self._note(self._reference, workload, base, base, rung)
        for built in others:
            self._note(built, workload, by_name[built.digest], base, rung)

    def _note(
        self, built: Built, workload: Workload, outcome: Outcome, base: Outcome, rung: Rung
    ) -> None:
        measured = Measured(
            device=self._device,
            workload=workload.name,
            digest=built.digest,
            reference=self._reference.digest,
            schedule=built.schedule,
            status=outcome.status,
            reason=outcome.reason,
            ratio=base.median_ms / outcome.median_ms if outcome.ok else 0.0,
            tflops=outcome.tflops(workload) if outcome.ok else 0.0,
            rounds=rung.rounds,
        )
        if outcome.status != OK:
            self._tell(f"out: {outcome.status}: {outcome.reason}: {built.schedule!r}")
        kept = self._store.put(measured)
        self._scores[built.digest].measured[workload.name] = kept

    def _findings(self, seconds: float, *, is_exhausted: bool) -> Findings:
        reference = self._scores[self._reference.digest]
        # NOTE: only the last contest is careful enough to crown; a lucky quick look is not.
        careful = [s for s in self._scores.values() if self._is_final(s)] or [reference]

        def mean(score: Score) -> float:
            return score.mean(self._workloads)

        best = max([*careful, reference], key=mean)
        return Findings(
            reference=reference,
            best=best if mean(best) >= NOISE * mean(reference) else reference,
            by_workload={
                w.name: max([*careful, reference], key=lambda s, w=w: s.ratio(w))  # type: ignore[misc]
                for w in self._workloads
            },
            scores=tuple(sorted(self._scores.values(), key=lambda s: -mean(s))),
            refused=tuple(self._refused),
            seconds=seconds,
            is_exhausted=is_exhausted,
        )

    def _is_final(self, score: Score) -> bool:
        rounds = self._settings.final.rounds
        found = [score.measured.get(workload.name) for workload in self._workloads]
        return all(measured is not None and measured.rounds >= rounds for measured in found)
