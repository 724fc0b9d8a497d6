"""NumPy model of the softmax without a maximum (docs/softmax.md): what it does and how often.

It repeats the algorithm of a warpgroup in fp32, with the dealing of columns to threads that decides
when a thread's sum overflows, checks the bounds that the proofs rely on after every step, and
counts, so that a run on the emulator can be held to the counts.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from fmhagen.plan.attention import Plan

SUM_LIMIT = np.float32(8192)
FINITE_LIMIT = np.float32(1e30)
GROUP_ROWS, WARP_ROWS = 64, 16
F32 = np.float32

Array = npt.NDArray[np.float32]


@dataclasses.dataclass(slots=True, kw_only=True)
class Counts:
    """What all warpgroups did: steps and votes; repairs and repairs that computed S again.

    Repairs are those of warpgroups, or of warps where these repair their rows alone.
    """

    steps: int = 0
    votes: int = 0
    shrinks: int = 0
    recomputations: int = 0


def count(plan: Plan, q: npt.NDArray, k: npt.NDArray, scale_log2: float) -> Counts:
    """Run the model over the one head of q and k, (1, s, 1, d) arrays.

    Raises:
        AssertionError: a bound of the proofs does not hold.
    """
    schedule = plan.schedule
    counts = Counts()
    rows, keys = q.shape[1], k.shape[1]
    tiles = -(-rows // schedule.tile_m)
    padded_q = np.zeros((tiles * schedule.tile_m, q.shape[3]))
    padded_q[:rows] = q[0, :, 0]
    padded_k = np.zeros((-(-keys // schedule.tile_n) * schedule.tile_n, q.shape[3]))
    padded_k[:keys] = k[0, :, 0]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        s = (padded_q @ padded_k.T).astype(F32)
        for m_first in range(0, len(s), schedule.tile_m):
            for group in range(schedule.consumers):
                m = m_first + group * GROUP_ROWS
                begin_of_tile = m if plan.skip_hidden else m_first
                end_of_tile = m + GROUP_ROWS if plan.skip_hidden else m_first + schedule.tile_m
                off = keys - rows
                unmasked, end = keys // schedule.tile_n, -(-keys // schedule.tile_n)
                visible = np.full(GROUP_ROWS, keys)
                if plan.causal:
                    unmasked = min(max(begin_of_tile + off + 1, 0), keys) // schedule.tile_n
                    last = min(end_of_tile, rows) if not plan.skip_hidden else end_of_tile
                    end = -(-min(max(last + off, 0), keys) // schedule.tile_n)
                    visible = np.clip(m + np.arange(GROUP_ROWS) + off + 1, 0, keys)
                _group(s[m : m + GROUP_ROWS], visible, plan, unmasked, end, F32(scale_log2), counts)
    return counts


def _group(
    scores: Array,
    visible: npt.NDArray[np.int64],
    plan: Plan,
    unmasked: int,
    end: int,
    sigma: F32,
    counts: Counts,
) -> None:
    """Walk over the key tiles of 64 rows, from the right."""
    n = plan.schedule.tile_n
    reference = np.full(GROUP_ROWS, -np.inf, F32)
    total = np.zeros((GROUP_ROWS, 4), F32)  # l, each thread's share
    largest = np.full(GROUP_ROWS, -np.inf)  # of sigma * s so far, exact
    for turn, tile in enumerate(range(end - 1, -1, -1)):
        counts.steps += 1
        s = scores[:, tile * n : (tile + 1) * n]
        if tile >= unmasked:
            s = np.where(tile * n + np.arange(n) < visible[:, None], s, F32(-np.inf))
        largest = np.maximum(largest, (s.astype(np.float64) * float(sigma)).max(1))
        if turn == 0 or tile >= unmasked:
            reference, total = _rescale(s, reference, total, sigma)
            guarded = np.where(np.isneginf(reference), F32(0), reference)
            p = _exp2(s, guarded, sigma)
            total = total + _thread_sums(p)
        else:
            counts.votes += not plan.spare_registers
            p = _exp2(s, reference, sigma)
            step = _thread_sums(p)
            for rows in _repaired_together(plan):
                if (step[rows] < SUM_LIMIT).all():
                    continue
                if not (step[rows] < FINITE_LIMIT).all():
                    counts.recomputations += 1
                    reference[rows], total[rows] = _rescale(
                        s[rows], reference[rows], total[rows], sigma
                    )
                    p[rows] = _exp2(s[rows], reference[rows], sigma)
                    step[rows] = _thread_sums(p[rows])
                else:
                    counts.shrinks += 1
                    growth = np.maximum(np.log2(step[rows].sum(1)), F32(0))
                    moved = reference[rows] + growth
                    alpha = np.exp2(reference[rows] - moved)
                    reference[rows] = moved
                    for x in (p, total, step):
                        x[rows] *= alpha[:, None]
            total = total + step
        _check_bounds(plan, p, reference, total, largest)


def _repaired_together(plan: Plan) -> tuple[slice, ...]:
    """Return the rows of a warpgroup that are repaired together: those of a warp, or all."""
    size = WARP_ROWS if plan.spare_registers else GROUP_ROWS
    return tuple(slice(first, first + size) for first in range(0, GROUP_ROWS, size))


def _check_bounds(
    plan: Plan, p: Array, reference: Array, total: Array, largest: npt.NDArray[np.float64]
) -> None:
    seen = largest > -np.inf
    spacing = np.spacing(np.abs(np.where(seen, reference, F32(0))).astype(F32))
    assert (p < SUM_LIMIT).all(), "P before it is rounded to 16 bits"
    assert (largest[seen] < reference[seen] + 13 + spacing[seen]).all(), "reference too low"
    highest = largest[seen] + np.log2(plan.schedule.tile_n) + spacing[seen] + 1e-5
    assert (reference[seen] <= highest).all(), "reference too high"
    floor = 1 - 1e-3 - 2 * spacing[seen]
    assert (total.sum(1)[seen] >= floor).all(), "l of a row that has seen a key"
    assert (total[~seen] == 0).all(), "l of a row that has seen none"


def _exp2(s: Array, reference: Array, sigma: F32) -> Array:
    exponent = s.astype(np.float64) * float(sigma) - reference[:, None].astype(np.float64)
    p = np.exp2(exponent.astype(F32))
    return np.where(p < F32(2.0**-126), F32(0), p)


def _thread_sums(p: Array) -> Array:
    """Sums over the columns of each of the four threads that share a row."""
    return p.reshape(len(p), -1, 4, 2).sum((1, 3), dtype=F32)


def _rescale(s: Array, reference: Array, total: Array, sigma: F32) -> tuple[Array, Array]:
    moved = np.fmax(s.max(1) * sigma, reference)
    alpha = np.where(np.isneginf(moved), F32(1), np.exp2(reference - moved))
    return moved, total * alpha[:, None]
