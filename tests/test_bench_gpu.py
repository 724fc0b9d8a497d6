"""Contests on a true device, small enough for a test."""

from __future__ import annotations

import pytest

from fmhagen.bench.contest import MISSING, OK, OURS, REFUSED, Contest, Entry
from fmhagen.bench.watch import Watched
from fmhagen.bench.workloads import Workload
from fmhagen.spec import AttentionSpec

pytestmark = pytest.mark.gpu

WORKLOAD = Workload(
    spec=AttentionSpec(causal=True), batch=2, heads=8, heads_kv=8, seqlen_q=1024, seqlen_k=1024
)
PEERS = ("fa3", "fa4", "cudnn", "fa2")


def test_a_contest_of_all_who_are_here() -> None:
    entries = (Entry(name=OURS), *(Entry(name=peer, peer=peer) for peer in PEERS))
    with Watched(idle_seconds=180) as held:
        facts = held.ask("facts")
        outcomes = held.hold(Contest(workload=WORKLOAD, entries=entries, rounds=2, window_ms=5.0))
    assert facts["compute_units"] > 0
    ours, *peers = outcomes
    assert ours.status == OK, ours.reason
    assert ours.method == "graph", ours.reason
    assert ours.repeatable is True
    assert ours.facts is not None
    assert ours.facts["resources"]["spill_bytes"] == 0
    assert ours.error_rms is not None
    assert ours.error_rms < 5e-3
    assert 0 < ours.median_ms < 10
    assert all(peer.status in (OK, MISSING, REFUSED) for peer in peers), peers
    assert next(peer for peer in peers if peer.name == "cudnn").ok


def test_host_time() -> None:
    entries = (Entry(name=OURS, with_out=False), Entry(name="out=", with_out=True))
    with Watched(idle_seconds=180) as held:
        contest = Contest(workload=WORKLOAD, entries=entries, on_host=True, rounds=5)
        outcomes = held.hold(contest)
    assert [outcome.status for outcome in outcomes] == [OK, OK]
    assert all(0 < outcome.median_ms < 1 for outcome in outcomes)
