"""Many query rows over a cache whose keys are cut: how many parts, and both launches of a call.

Lengths are not read: the kernel cuts each sequence into equal parts by its own length. How many
they are follows from the shapes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fmhagen.errors import TensorError
from fmhagen.plan.attention import Plan
from fmhagen.runtime.base import Memories
from fmhagen.runtime.checks import Problem
from fmhagen.runtime.launch_values import scale_log2_of
from fmhagen.runtime.outputs import Allocate
from fmhagen.runtime.prepared import MAX_LAUNCHES, Prepared
from fmhagen.runtime.tensors import view
from fmhagen.schedule import COMBINE_THREADS

MOST_PARTS = 32  # a lane of the second kernel has one
FIELDS = ("partial_o", "partial_lse")
"""Parameter fields that a call fills with places in its workspace."""

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


class PreparedParts(Prepared):
    """One layout of a call that takes two launches, and a workspace between them."""

    __slots__ = ("_new_workspace", "_o_bytes", "_second")

    def __init__(
        self, *, second: Prepared, new_workspace: Allocate, o_bytes: int, **first: Any
    ) -> None:
        """Take the second launch, what makes a workspace, and the bytes of the parts of O in it."""
        super().__init__(**first)
        self._second = second
        self._new_workspace = new_workspace
        self._o_bytes = o_bytes

    def launch_of(
        self,
        key: tuple[Any, ...],
        addresses: tuple[int | float, ...],
        scale: float | None,
        stream: int,
    ) -> Callable[[], object]:
        """Return both launches as one, with a workspace of its own each time; see `Prepared`."""
        scale_log2 = self.scale_log2 if scale is None else scale_log2_of(scale)
        second = self._second
        kept: dict[int, tuple[Callable[[], object], Callable[[], object]]] = {}

        def launch() -> object:
            workspace = self._new_workspace()
            at = workspace.data_ptr()
            pair = kept.get(at)
            if pair is None:
                full = (*addresses, at, at + self._o_bytes)
                if len(kept) >= MAX_LAUNCHES:
                    kept.clear()
                pair = kept[at] = (
                    self.bind(self.filled(full, scale_log2), self.blocks, stream, Memories()),
                    second.bind(second.filled(full, scale_log2), second.blocks, stream, Memories()),
                )
            return pair[0]() or pair[1]()

        if len(self.launches) >= MAX_LAUNCHES:
            self.launches.clear()
        self.launches[key] = launch
        return launch

    def run(
        self,
        addresses: tuple[int | float, ...],
        scale_log2: float,
        stream: int,
        memories: Memories,
    ) -> None:
        """Fill in the values and launch both; see `Prepared`."""
        workspace = view("workspace", self._new_workspace())
        at = workspace.address
        full = (*addresses, at, at + self._o_bytes)
        first = Memories(
            inputs=memories.inputs,
            outputs=(workspace,),
            updated=memories.updated,
            is_complete=False,
        )
        super().run(full, scale_log2, stream, first)
        second = Memories(inputs=(workspace,), outputs=memories.outputs)
        self._second.run(full, scale_log2, stream, second)


def second_blocks(problem: Problem) -> int:
    """Return the blocks of the second launch, a warp for each row."""
    rows = problem.batch * problem.heads * problem.seqlen_q
    return -(-rows * 32 // COMBINE_THREADS)
