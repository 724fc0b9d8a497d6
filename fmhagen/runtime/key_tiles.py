"""How many key tiles the query tiles of a call visit, as far as the host knows."""

from __future__ import annotations

from fmhagen.expr.evaluate import evaluate
from fmhagen.expr.nodes import walk
from fmhagen.plan.attention import Plan
from fmhagen.runtime.checks import Problem


def key_tiles(plan: Plan, problem: Problem) -> tuple[int, ...]:
    """Return how many key tiles each query tile of a causal kernel visits, first rows first."""
    tile_m, tile_n = plan.grid.tile_m, plan.schedule.tile_n
    off = causal_offset(plan, problem)
    counts = []
    for first in range(0, problem.seqlen_q, tile_m):
        end = min(first + tile_m, problem.seqlen_q) + off
        counts.append(max(1, -(-min(max(end, 0), problem.seqlen_k) // tile_n)))
    return tuple(counts)


def band_tiles(plan: Plan, problem: Problem) -> tuple[int, ...]:
    """Return how many key tiles each query tile visits under a mask of one band, first rows first.

    Where the band reads memory, or the mask is more than a band, all are taken to be the same.
    """
    import numpy as np

    tile_m, tile_n, keys = plan.grid.tile_m, plan.schedule.tile_n, problem.seqlen_k
    rows = np.arange(0, problem.seqlen_q, tile_m)
    bounds = plan.language.bounds
    bands = [
        band
        for band in bounds.bands
        if not any(node.op in ("load", "param") for node in walk(band.first, band.end))
    ]
    if len(bounds.bands) != 1 or not bands or bounds.rest is not None or plan.language.mapped:
        return (1,) * len(rows)
    (band,) = bands
    place = {"b": 0, "h": 0, "seqlen_q": problem.seqlen_q, "seqlen_k": keys}
    last_rows = np.minimum(rows + tile_m, problem.seqlen_q) - 1
    first = np.clip(evaluate(band.first, {**place, "q_idx": rows}), 0, keys) // tile_n
    end = -(-np.clip(evaluate(band.end, {**place, "q_idx": last_rows}), 0, keys) // tile_n)
    return tuple(np.broadcast_to(np.maximum(end - first, 1), rows.shape).tolist())


def causal_offset(plan: Plan, problem: Problem) -> int:
    """Return off: key m + off is the last that query m sees."""
    return 0 if plan.top_left else problem.seqlen_k - problem.seqlen_q
