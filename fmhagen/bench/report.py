"""Report: ratios to the best peer, means, and what lies under a threshold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fmhagen.bench.contest import OURS, Outcome, Result
from fmhagen.bench.run import MATRIX_LOOP_TFLOPS, MEMORY_READ_TBPS, Report
from fmhagen.spec import AttentionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One workload, summed up.

    Attributes:
        result: what it is made of.
        ours: fmhagen's outcome, or None where there is no time.
        best: the quickest peer, or None.
        ratio: how many times quicker than the best peer, or None.
    """

    result: Result
    ours: Outcome | None
    best: Outcome | None
    ratio: float | None

    @property
    def share(self) -> float | None:
        """Speed as a share of the bare matrix loop's, or of memory's where the cache binds."""
        if self.ours is None:
            return None
        workload = self.result.workload
        if workload.is_bound_by_memory:
            return self.ours.terabytes(workload) / MEMORY_READ_TBPS
        return self.ours.tflops(workload) / MATRIX_LOOP_TFLOPS


def figure(result: Result, name: str) -> str:
    """Return how fast an entry was, or why it has no time.

    TFLOP/s over the visible pairs; where the cache's bytes are what a call waits for, microseconds
    and TB/s of keys and values; microseconds of host time.
    """
    outcome = result.find(name)
    if outcome is None:
        return next((o.status for o in result.outcomes if o.name == name), "-")
    workload, microseconds = result.workload, outcome.median_ms * 1000
    if outcome.method == "host":
        return f"{microseconds:.1f}"
    if workload.is_bound_by_memory:
        return f"{microseconds:.1f} ({outcome.terabytes(workload):.2f})"
    return f"{outcome.tflops(workload):.0f}"


def unit_of(table: Sequence[Row], *, on_host: bool = False) -> str:
    """Return what `figure`'s numbers are."""
    if on_host:
        return "us of host time a call"
    bound = {row.result.workload.is_bound_by_memory for row in table}
    units = ["TFLOP/s over visible pairs"] if False in bound else []
    units += ["us (TB/s of K and V)"] if True in bound else []
    return ", or ".join(units)


def peer_names(report: Report) -> tuple[str, ...]:
    """Return the peers that took part, in the order of the first result."""
    named = dict.fromkeys(
        outcome.name
        for result in report.results
        for outcome in result.outcomes
        if not outcome.name.startswith(OURS)
    )
    return tuple(named)


def variant_names(report: Report) -> tuple[str, ...]:
    """Return the kernels of fmhagen beside the default one."""
    named = dict.fromkeys(
        outcome.name
        for result in report.results
        for outcome in result.outcomes
        if outcome.name.startswith(OURS) and outcome.name != OURS
    )
    return tuple(named)


def rows(report: Report, ours: str = OURS) -> tuple[Row, ...]:
    """Return one row a result."""
    return tuple(_row(result, ours) for result in report.results)


def _row(result: Result, ours: str) -> Row:
    mine = result.find(ours)
    peers = [o for o in result.outcomes if o.ok and not o.name.startswith(OURS)]
    best = min(peers, key=lambda outcome: outcome.median_ms, default=None)
    ratio = None if mine is None or best is None else best.median_ms / mine.median_ms
    return Row(result=result, ours=mine, best=best, ratio=ratio)


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean, or None of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A geometric mean of ratios to the best peer.

    Attributes:
        title: over what.
        count: of how many workloads.
        ratio: the mean.
        lowest: the lowest ratio in it.
    """

    title: str
    count: int
    ratio: float
    lowest: float


def means(table: Sequence[Row]) -> tuple[Mean, ...]:
    """Return the means for each head dim or kind of cache, and over all."""
    groups: dict[str, list[float]] = {}
    for row in table:
        if row.ratio is not None:
            groups.setdefault(_kind(row.result.workload.spec), []).append(row.ratio)
    if groups:
        groups["all"] = [ratio for ratios in groups.values() for ratio in ratios]
    found = []
    for title, ratios in groups.items():
        mean = geometric_mean(ratios)
        if mean is not None:
            found.append(Mean(title=title, count=len(ratios), ratio=mean, lowest=min(ratios)))
    return tuple(found)


def _kind(spec: AttentionSpec) -> str:
    if spec.kv_cache:
        place = "contiguous" if spec.page_size is None else f"pages of {spec.page_size}"
        return f"{place}, {spec.kv_dtype or spec.dtype}"
    return f"head_dim {spec.d}" if spec.d == spec.dv else f"head_dim {spec.d}/{spec.dv}"


def under(table: Sequence[Row], threshold: float) -> tuple[Row, ...]:
    """Return the rows whose ratio is under a threshold, the lowest first."""
    low = [row for row in table if row.ratio is not None and row.ratio < threshold]
    return tuple(sorted(low, key=lambda row: row.ratio or 0.0))


def problems(report: Report) -> tuple[str, ...]:
    """Return one sentence for each entry that has no time, or another kind of time than the rest.

    And one for each workload that was not run.
    """
    sentences: dict[str, list[str]] = {}
    for result in report.results:
        for outcome in result.outcomes:
            if not outcome.ok:
                sentence = f"{outcome.name}: {outcome.status}: {outcome.reason}"
                sentences.setdefault(sentence, []).append(result.workload.name)
            elif outcome.method == "calls":
                sentence = f"{outcome.name}: timed by plain calls, no graph: {outcome.reason}"
                sentences.setdefault(sentence, []).append(result.workload.name)
    lines = []
    for sentence, names in sentences.items():
        where = names[0] if len(names) == 1 else f"{len(names)} workloads, first {names[0]}"
        lines.append(f"{sentence} [{where}]")
    lines.extend(f"not run: {item['name']}: {item['reason']}" for item in report.not_run)
    return tuple(lines)


def failed(report: Report) -> bool:
    """Return whether a kernel of fmhagen was wrong, crashed or hung."""
    return any(
        outcome.name.startswith(OURS) and outcome.status in ("wrong", "failed", "hung")
        for result in report.results
        for outcome in result.outcomes
    )
