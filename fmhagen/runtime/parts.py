"""Many query rows over a cache whose keys are cut: how many parts there are.

Lengths are not read: the kernel cuts each sequence into equal parts by its own length. How many
they are follows from the shapes alone.
"""

from __future__ import annotations

from fmhagen.errors import TensorError
from fmhagen.plan.attention import Plan
from fmhagen.runtime.checks import Problem
from fmhagen.schedule import COMBINE_THREADS

MOST_PARTS = 32  # a lane of the second kernel has one

# In steps of a block: what a part takes besides its keys, what the second launch takes; and how
# many bytes of parts it reads in a step.
SEAM_STEPS = 3
SECOND_STEPS = 3
STEP_BYTES = 4 * 2**20


def choose_parts(plan: Plan, problem: Problem, compute_units: int, wished: int = 0) -> int:
    """Return into how many parts the keys of each sequence are cut.

    Args:
        plan: of a kernel with `split_keys`.
        problem: the sizes of the call; its seqlen_k is the capacity.
        compute_units: of the device.
        wished: what the call asks for; 0 where that is left open.

    Raises:
        TensorError: it asks for more than a kernel adds up.
    """
    if wished > MOST_PARTS:
        limit = f"many query rows are cut into at most {MOST_PARTS} parts"
        raise TensorError("num_splits", wished, limit, "leave num_splits out")
    if wished:
        return wished
    tiles = _tiles(plan, problem)
    steps = -(-problem.seqlen_k // plan.schedule.tile_n)
    part_bytes = 4 * problem.batch * problem.heads * problem.seqlen_q * plan.spec.dv

    def cost(parts: int) -> float:
        rounds = -(-tiles * parts // compute_units)
        second = SECOND_STEPS + parts * part_bytes / STEP_BYTES if parts > 1 else 0
        return rounds * (-(-steps // parts) + SEAM_STEPS) + second

    return min(range(1, min(MOST_PARTS, max(steps, 1)) + 1), key=cost)


def _tiles(plan: Plan, problem: Problem) -> int:
    """Return the tiles of work of a call whose keys are not cut."""
    shared = problem.packed_heads if plan.packs_heads else 1
    rows = problem.seqlen_q * shared
    return -(-rows // plan.schedule.tile_m) * (problem.heads // shared) * problem.batch


def second_blocks(problem: Problem) -> int:
    """Return the blocks of the second launch, a warp for each row."""
    rows = problem.batch * problem.heads * problem.seqlen_q
    return -(-rows * 32 // COMBINE_THREADS)
