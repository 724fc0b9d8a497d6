"""Launch values of the kernels over a key/value cache: how keys are cut, grid, workspace.

All of it follows from shapes. What depends on lengths is decided by the kernel on the device,
within the bounds that are set here for the longest sequences that there is room for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fmhagen.errors import TensorError
from fmhagen.plan.attention import Plan
from fmhagen.runtime.cache_checks import CacheAxes
from fmhagen.runtime.checks import MAX_ROWS, Problem
from fmhagen.runtime.launch_values import Operand, Value, scale_log2_of
from fmhagen.runtime.tensors import TensorView

BOX_BYTES = 128  # columns of one box of a copy; heads of whole boxes are copied at once
STEPS_PER_PART = 10  # a step of a part takes as long as adding up this many parts more
CHEAP_PARTS = 64  # that a second kernel which starts while the first one ends adds up in no time
WARPS_FOR_ROWS = 16  # of the second kernel on a compute unit: more would come in a second wave


class CacheOperand(Operand):
    """K or V of a cache: its batch is pages, and a map has (column, row, box, head, page)."""

    __slots__ = ()

    @property
    def map_sizes(self) -> tuple[int, ...]:
        """Sizes for a tensor map, innermost first: a map has no size below 1."""
        box = BOX_BYTES // self.element_bytes
        whole = self.depth % box == 0
        columns, boxes = (box, self.depth // box) if whole else (self.depth, 1)
        return columns, max(1, self.rows), boxes, max(1, self.heads), max(1, self.batch)

    @property
    def map_strides_bytes(self) -> tuple[int, ...]:
        """Byte strides of (row, box, head, page) for a tensor map."""
        row, head, page = (
            stride * self.element_bytes for stride in (self.stride_m, self.stride_h, self.stride_b)
        )
        return row, BOX_BYTES, head, page


def cache_operand(name: str, tensor: TensorView, axes: CacheAxes) -> CacheOperand:
    """Return K or V as the kernel addresses it."""
    depth = tensor.shape[3]
    page, row, head = (
        tensor.strides[axis] if tensor.shape[axis] > 1 and 0 not in tensor.shape else depth
        for axis in (axes.page, axes.row, axes.head)
    )
    return CacheOperand(
        name=name,
        depth=depth,
        batch=tensor.shape[axes.page],
        heads=tensor.shape[axes.head],
        rows=tensor.shape[axes.row],
        stride_b=page,
        stride_h=head,
        stride_m=row,
        element_bytes=tensor.element_bytes,
        dtype=tensor.dtype,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How the keys of a call may be cut, whatever the lengths.

    Attributes:
        head_tiles: blocks of a group: key heads times tiles of rows.
        row_tiles: tiles of rows of one key head.
        num_groups: groups of blocks that share the steps of all sequences.
        splits: equal parts of each sequence, where sequences are cut so.
        always_even: sequences are always cut so.
        items: sequences or shares that the second kernel looks at; 0 where nothing can be cut.
        items_are_sequences: which of the two.
        batch: sequences.
        rows: rows of O of one sequence, all heads.
        row_warps: warps of the second kernel that add up one row.
        parts: the most that a sequence has where its cut follows from its length; else 0.
        combine_warps: warps of one of its blocks.
    """

    head_tiles: int
    row_tiles: int
    num_groups: int
    splits: int
    always_even: bool
    items: int
    items_are_sequences: bool
    batch: int
    rows: int
    row_warps: int
    parts: int
    combine_warps: int

    @property
    def groups(self) -> int:
        """Groups of blocks of the grid."""
        parts = self.splits * self.batch
        return parts if self.always_even else max(self.num_groups, 1)

    @property
    def blocks(self) -> int:
        """Blocks of the first kernel."""
        return self.groups * self.head_tiles

    @property
    def combine_blocks(self) -> int:
        """Blocks of the second kernel."""
        return -(-self.items * self.rows * self.row_warps // self.combine_warps)

    @property
    def slots(self) -> int:
        """Partial results that a block's heads and rows may leave."""
        if not self.items:
            return 0
        return self.parts * self.batch or 2 * self.groups


def choose_cut(
    plan: Plan, problem: Problem, compute_units: int, num_splits: int | None = None
) -> Cut:
    """Choose the numbers of the cut from the shapes of a call.

    Args:
        plan: the kernel.
        problem: the sizes of the call.
        compute_units: of the device.
        num_splits: parts that every sequence is cut into; None lets the kernel choose.

    Raises:
        TensorError: the call has more blocks or steps than are counted.
    """
    assert plan.split is not None
    group = problem.heads // problem.heads_kv
    row_tiles = -(-group * problem.seqlen_q // plan.grid.tile_m)
    head_tiles = problem.heads_kv * row_tiles
    steps = -(-problem.seqlen_k // plan.split.step_keys)
    slots = plan.schedule.blocks_per_unit * compute_units
    groups = max(1, min(slots // head_tiles, problem.batch * (steps + 1)))
    if num_splits is not None and plan.split.is_invariant:
        limit = "the spec is batch_invariant, which fixes the cut of a sequence"
        raise TensorError("num_splits", num_splits, limit, "leave num_splits out")
    if num_splits is not None:
        splits, even = max(1, num_splits), True
    else:
        # NOTE: parts cost time too; their sum and that of a part's steps is least here.
        few = math.isqrt(STEPS_PER_PART * steps)
        if plan.is_dependent:
            few = max(few, CHEAP_PARTS)
        splits = max(1, min(groups // problem.batch, steps, few))
        # NOTE: one sequence is cut into equal parts whatever its length: no block has to find out.
        even = problem.batch == 1 and not plan.split.is_invariant
    parts = min(plan.split.most_parts, -(-steps // plan.split.least_steps))
    by_sequence = even or problem.batch < groups or plan.split.is_invariant
    items = problem.batch if by_sequence else groups - 1
    if plan.split.is_invariant:
        splits = max(1, parts)
    if (splits == 1) if even or plan.split.is_invariant else (groups == 1):
        items = 0
    rows = problem.heads * problem.seqlen_q
    warps = plan.split.combine_threads // plan.target.lanes_per_warp
    cut = Cut(
        head_tiles=head_tiles,
        row_tiles=row_tiles,
        num_groups=groups,
        splits=splits,
        always_even=even,
        items=items,
        items_are_sequences=by_sequence,
        batch=problem.batch,
        rows=rows,
        # NOTE: how a row is added up must not depend on the batch either.
        row_warps=warps // 2
        if plan.split.is_invariant
        else _row_warps(warps, items * rows, splits if by_sequence else 1, compute_units),
        parts=parts,
        combine_warps=warps,
    )
    most = max(cut.blocks, items * rows, problem.batch * (steps + 1 + splits))
    if most > MAX_ROWS:
        shape = (problem.batch, problem.heads, problem.seqlen_q)
        limit = f"gives {most} blocks or steps; the limit is {MAX_ROWS}"
        raise TensorError("q", shape, limit, "split the batch")
    return cut


def _row_warps(warps: int, rows: int, parts: int, compute_units: int) -> int:
    """Return how many warps of the second kernel add up a row: many where rows are few."""
    while warps > 1 and (warps >= 2 * parts or rows * warps > WARPS_FOR_ROWS * compute_units):
        warps //= 2
    return warps


def workspace_bytes(plan: Plan, cut: Cut) -> tuple[int, int]:
    """Return the bytes of the partial O and of the partial LSE of a call."""
    rows = cut.slots * cut.rows
    return rows * plan.spec.dv * 4, rows * 4


def cache_values(
    plan: Plan,
    problem: Problem,
    cut: Cut,
    rows: tuple[Operand, Operand],
    keys: tuple[CacheOperand, CacheOperand],
) -> dict[str, Value]:
    """Return the values of the parameter block; 0 or b"" for what a call fills in.

    Args:
        plan: the kernel.
        problem: the sizes of the call.
        cut: how its keys may be cut.
        rows: Q and O.
        keys: K and V.
    """
    values: dict[str, Value] = {
        "q": 0,
        "k": 0,
        "v": 0,
        "o": 0,
        "lse": 0,
        "k_map": b"",
        "v_map": b"",
        "block_table": 0,
        "cache_seqlens": 0,
        "partial_o": 0,
        "partial_lse": 0,
        "scale_log2": scale_log2_of(plan.spec.scale_value),
        "batch": problem.batch,
        "num_heads": problem.heads,
        "heads_per_group": problem.heads // problem.heads_kv,
        "seqlen_q": problem.seqlen_q,
        "row_tiles": cut.row_tiles,
        "num_pages": keys[0].batch,
        "num_groups": cut.num_groups,
        "splits": cut.splits,
        "always_even": int(cut.always_even),
        "items": cut.items,
        "row_warps": cut.row_warps,
        "items_are_sequences": int(cut.items_are_sequences),
    }
    for item in rows:
        values[f"{item.name}_stride_b"] = item.stride_b
        values[f"{item.name}_stride_h"] = item.stride_h
        values[f"{item.name}_stride_m"] = item.stride_m
    for cache in keys:
        values[f"{cache.name}_stride_b"] = cache.stride_b
        values[f"{cache.name}_stride_h"] = cache.stride_h
        values[f"{cache.name}_stride_n"] = cache.stride_m
    return values
