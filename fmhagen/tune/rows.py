"""Rows: what a search found, as rows of the shipped table and as data."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from fmhagen.bench.workloads import Workload
from fmhagen.schedules import ANY_LENGTH, Row, cache_of
from fmhagen.spec import AttentionSpec
from fmhagen.tune.records import Findings, Score

BUCKET_GAIN = 1.02  # what a schedule for short sequences must win over the one for any


def rows_of(
    spec: AttentionSpec,
    target: str,
    workloads: Sequence[Workload],
    findings: Findings,
    *,
    device: str,
    date: str | None = None,
) -> tuple[Row, ...]:
    """Return the row for any length, and one for each shorter length that earns its own.

    Each spec has at most two instances: the row for any length, and the shorter ones' best.
    """
    day = date or datetime.datetime.now(datetime.UTC).date().isoformat()

    def row(score: Score, over: Sequence[Workload], max_seqlen: int) -> Row:
        # Over a cache, the work that comes nearest to what memory gives.
        last = max(over, key=lambda w: w.cache_bytes if spec.kv_cache else w.seqlen_k)
        tflops = score.measured[last.name].tflops
        return Row(
            target=target,
            dtype=str(spec.dtype),
            head_dim=spec.d,
            head_dim_v=spec.dv,
            causal=spec.causal,
            max_seqlen=max_seqlen,
            schedule=score.built.schedule,
            **cache_of(spec),
            tflops=round(tflops, 1),
            terabytes=round(tflops * last.cache_bytes / last.flops, 2) if spec.kv_cache else 0.0,
            ratio=round(score.mean(over), 3),
            workloads=", ".join(workload.name for workload in over),
            device=device,
            date=day,
            digest=score.built.digest,
        )

    rows = [row(findings.best, workloads, ANY_LENGTH)]
    longest = max(workload.seqlen_k for workload in workloads)
    short = [
        workload
        for workload in sorted(workloads, key=lambda w: w.seqlen_k, reverse=True)
        if workload.seqlen_k < longest and _gain(findings, workload) >= BUCKET_GAIN
    ]
    if short:
        best = findings.by_workload[short[0].name]
        rows.append(row(best, short[:1], short[0].seqlen_k))
    return tuple(rows)


def _gain(findings: Findings, workload: Workload) -> float:
    everywhere = findings.best.ratio(workload)
    alone = findings.by_workload[workload.name].ratio(workload)
    return alone / everywhere if everywhere else 0.0


def findings_data(workloads: Sequence[Workload], findings: Findings) -> dict[str, Any]:
    """Return what a search found as JSON-ready data."""

    def data(score: Score) -> dict[str, Any]:
        return {
            "schedule": score.built.schedule.to_dict(),
            "digest": score.built.digest,
            "registers": score.built.registers,
            "mean": round(score.mean(workloads), 4),
            "measured": [measured.to_dict() for measured in score.measured.values()],
        }

    return {
        "reference": data(findings.reference),
        "best": data(findings.best),
        "by_workload": {name: data(score) for name, score in findings.by_workload.items()},
        "scores": [data(score) for score in findings.scores],
        "refused": [
            {"schedule": built.schedule.to_dict(), "reason": built.reason}
            for built in findings.refused
        ],
        "seconds": round(findings.seconds, 1),
        "is_exhausted": findings.is_exhausted,
    }
