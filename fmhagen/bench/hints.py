"""Hints: the sizes of a workload that choose a schedule, for every kernel that is timed."""

from __future__ import annotations

from typing import TypedDict

from fmhagen.bench.workloads import Workload


class Hints(TypedDict):
    """Keywords of `fmhagen.api.compile_kernel` and `fmhagen.select.choose`."""

    seqlen_hint: int
    query_hint: int
    group_hint: int
    heads_hint: int


def hints_of(workload: Workload) -> Hints:
    """Return what a caller who knows a workload's sizes would say of them."""
    return Hints(
        seqlen_hint=workload.seqlen_k,
        query_hint=workload.seqlen_q,
        group_hint=workload.heads // workload.heads_kv,
        heads_hint=workload.batch * workload.heads,
    )
