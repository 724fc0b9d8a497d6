"""Launch values: spec, plan and the sizes of a call -> grid and packed parameter block."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from fmhagen.errors import InvalidSpecError, LaunchError, TensorError
from fmhagen.plan.attention import Plan
from fmhagen.plan.kernel import KernelPlan
from fmhagen.records import plain
from fmhagen.runtime.checks import MAX_ROWS, Axes, Problem
from fmhagen.runtime.dealing import Deal, choose_deal
from fmhagen.runtime.key_tiles import band_tiles, causal_offset, key_tiles
from fmhagen.runtime.tensors import DTYPE_BYTES, TensorView
from fmhagen.validate import check_scale

TENSORS = ("q", "k", "v", "o", "lse")
"""The tensors whose addresses change from call to call, in the order that `Prepared.run` takes."""

PACKED_ROWS = 2**30
"""Rows of a tensor map of packed sequences, more than any tensor has; see `Operand`."""

Value = int | float | bytes
"""Value of one field of the parameter block."""

LOG2_E = math.log2(math.e)
SMALLEST_NORMAL_F32 = 2.0**-126
LARGEST_F32 = (2 - 2**-23) * 2.0**127
_FORMATS = {"TensorMap": "128s", "i64": "q", "i32": "i", "u32": "I", "f32": "f"}


def scale_log2_of(scale: float) -> float:
    """Return the factor that the kernels put on scores: scale * log2(e) as a normal fp32 number.

    A scale of 0 becomes the smallest normal number, since -inf * 0 would be NaN for masked
    scores; a finite score times it is 0 to any precision that exp2 can tell.

    Raises:
        InvalidSpecError: the scale is negative, not finite, or too large for fp32.
    """
    scale = plain(scale)
    check_scale("scale", scale)
    value = scale * LOG2_E
    if value > LARGEST_F32:
        limit = f"must be at most {LARGEST_F32 / LOG2_E:.4g}"
        raise InvalidSpecError("scale", scale, limit)
    return max(value, SMALLEST_NORMAL_F32)


def block_packer(plan: KernelPlan) -> struct.Struct:
    """Return the packer of a plan's parameter block; it takes one value a field, in order."""
    text = "<"
    offset = 0
    for field in plan.params:
        text += f"{field.offset_bytes - offset}x"
        text += "Q" if field.ctype.endswith("*") else _FORMATS[field.ctype]
        offset = field.offset_bytes + field.size_bytes
    packer = struct.Struct(f"{text}{plan.params_bytes - offset}x")
    if packer.size != plan.params_bytes:
        raise LaunchError(f"{plan.symbol}: packs {packer.size} bytes, not {plan.params_bytes}")
    return packer


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One tensor as the kernel addresses it: sizes and element strides of (batch, head, row).

    Attributes:
        name: "q", "k", "v" or "o".
        depth: size of the last dimension.
        batch, heads, rows: sizes; packed sequences are a batch of one.
        stride_b, stride_h, stride_m: strides in elements; the depth where a size is below 2.
        element_bytes: bytes of an element.
        dtype: the spec's name of the element type.
        heads_first: its tensor map has the heads before the rows.
        is_packed: holds sequences of different lengths one behind another.
    """

    name: str
    depth: int
    batch: int
    heads: int
    rows: int
    stride_b: int
    stride_h: int
    stride_m: int
    element_bytes: int
    dtype: str
    is_packed: bool = False
    heads_first: bool = False

    @property
    def is_expanded(self) -> bool:
        """Whether a dimension with more than one element has stride 0."""
        return any(
            size > 1 and stride == 0
            for size, stride in (
                (self.batch, self.stride_b),
                (self.heads, self.stride_h),
                (self.rows, self.stride_m),
            )
        )

    # NOTE: the map of packed sequences lets a copy end where a sequence ends: row 2^30 - length + m
    # of its 2^30 rows, at `end` of a dimension that steps by one row, too, is row m of the sequence
    # that ends before row `end`, and past its last row lies the end of the map, where reads give
    # zeros. That is 2^30 rows too far; index 2^30 of the last dimension, whose stride is 2^34 bytes
    # less a row, takes them away again, as addresses wrap at 2^64. So the map's own address is that
    # of the tensor.

    @property
    def map_sizes(self) -> tuple[int, ...]:
        """Sizes for a tensor map, innermost first: a map has no size below 1."""
        rows, heads = max(1, self.rows), max(1, self.heads)
        first = PACKED_ROWS if self.is_packed else rows
        inner = (heads, first) if self.heads_first else (first, heads)
        if self.is_packed:
            return self.depth, *inner, rows + 1, PACKED_ROWS + 1
        return self.depth, *inner, max(1, self.batch)

    @property
    def map_strides_bytes(self) -> tuple[int, ...]:
        """Byte strides of (row, head, batch) for a tensor map; of (row, head, row, 0) if packed."""
        size = self.element_bytes
        row, head = self.stride_m * size, self.stride_h * size
        inner = (head, row) if self.heads_first else (row, head)
        if self.is_packed:
            return *inner, row, 2**64 // PACKED_ROWS - row
        return *inner, self.stride_b * size


def operand(name: str, tensor: TensorView, axes: Axes) -> Operand:
    """Return a tensor as the kernel addresses it."""
    # The stride of a size below 2 may be anything. NOTE: it must not become 0, since a kernel may
    # rely on rows behind the last to lie behind the tensor.
    depth = tensor.shape[-1]
    sizes = axes.sizes(tensor)
    stride_b, stride_h, stride_m = (
        stride if size > 1 and 0 not in tensor.shape else depth
        for size, stride in zip(sizes, axes.strides(tensor), strict=True)
    )
    batch, heads, rows = sizes
    return Operand(
        name=name,
        depth=depth,
        batch=batch,
        heads=heads,
        rows=rows,
        stride_b=stride_b,
        stride_h=stride_h,
        stride_m=stride_m,
        element_bytes=tensor.element_bytes,
        dtype=tensor.dtype,
        is_packed=axes.batch is None,
    )


def unfit_rows(plan: Plan, item: Operand) -> str | None:
    """Return why a kernel without tensor maps cannot address the rows of a tile, or None.

    Such a kernel counts bytes from a tile's first row in 32 bits, rows past the last included; one
    over a cache, in 64.
    """
    rows = max(plan.schedule.tile_m, plan.schedule.tile_n)
    if plan.tensor_maps or plan.split is not None:
        return None
    if plan.paged and item.name in ("k", "v"):
        if item.stride_b * item.element_bytes >= 2**32:
            return f"its pages, {item.stride_b} elements apart, are 4 GiB or more apart"
        rows = max(rows, plan.spec.page_size or 0)
    if rows * item.stride_m * item.element_bytes < 2**32:
        return None
    return f"{rows} of its rows, {item.stride_m} elements apart, span 4 GiB or more"


def count_tiles(plan: Plan, problem: Problem) -> int:
    """Return the tiles of a call; of packed sequences, whose lengths are not read, the most.

    Each sequence has at most one tile that is not full.
    """
    tiles = plan.grid.tiles(
        seqlen_q=max(1, problem.seqlen_q), heads=problem.heads, batch=problem.batch
    )
    if problem.total_q is None:
        return tiles
    return min(tiles, problem.heads * (problem.total_q // plan.grid.tile_m + problem.batch))


def deal_tiles(plan: Plan, problem: Problem, blocks: int) -> Deal:
    """Return how tiles are dealt to the blocks, see the tile order in the emitted file.

    Without a mask every tile takes equally long, so they are dealt one head after another. A
    group's heads share one K and V.
    """
    heads = problem.batch * problem.heads
    if not plan.longest_first or problem.is_packed:
        return Deal(heads_per_section=1, lane_shift=0, balance=1.0)
    group = problem.heads // problem.heads_kv
    m_tiles = -(-problem.seqlen_q // plan.grid.tile_m)
    if plan.causal and plan.language.right_only:
        steps = key_tiles(plan, problem)
    elif plan.sorted_tiles:
        steps = tuple(range(1, m_tiles + 1))  # the blocks know better, and even out what is left
    else:
        steps = band_tiles(plan, problem)
    head_bytes = problem.seqlen_k * (plan.spec.d + plan.spec.dv) * DTYPE_BYTES[plan.spec.dtype]
    l2_heads = heads if head_bytes == 0 else plan.heads_in_l2_bytes * group // head_bytes
    if plan.sorted_tiles:
        l2_heads *= 2  # of a head's keys a tile sees a part; and more tiles a round are more even
    return choose_deal(
        steps=steps,
        batch_heads=heads,
        blocks=blocks,
        most_heads=2 * l2_heads if plan.snake and not plan.sorted_tiles else l2_heads,
        l2_heads=l2_heads,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchValues:
    """What is fixed for all calls of one layout.

    Attributes:
        blocks: blocks of the grid, all in the first dimension.
        values: value of each parameter field; 0 or b"" for what a call fills in.
    """

    blocks: int
    values: dict[str, Value]


def launch_values(
    plan: Plan,
    problem: Problem,
    operands: tuple[Operand, ...],
    compute_units: int,
    more: dict[str, Value] | None = None,
    parts: int = 1,
) -> LaunchValues:
    """Return the grid and the parameter values of a call that computes at least one tile.

    Args:
        plan: the kernel.
        problem: the sizes of the call.
        operands: q, k, v and o.
        compute_units: of the device.
        more: values of the fields that the call's other arguments fill.
        parts: that the keys of each tile are cut into.

    Raises:
        TensorError: the call has more tiles than 31 bits count.
    """
    rows = max(1, problem.seqlen_q)
    tiles = count_tiles(plan, problem)
    if tiles > MAX_ROWS:
        limit = f"gives {tiles} tiles of {plan.grid.tile_m} rows; the limit is {MAX_ROWS}"
        raise TensorError("q", (problem.batch, problem.heads, problem.seqlen_q), limit, "split B")
    blocks = plan.grid.blocks(tiles * parts, compute_units)
    m_tiles = -(-rows // plan.grid.tile_m)
    walkers = blocks // plan.grid.cluster
    deal = deal_tiles(plan, problem, walkers)
    section = deal.heads_per_section
    values: dict[str, Value] = {
        "batch": problem.batch,
        "num_heads": problem.heads,
        "heads_per_group": problem.heads // problem.heads_kv,
        "seqlen_q": problem.seqlen_q,
        "seqlen_k": problem.seqlen_k,
        # NOTE: as the sizes of the tensor maps, which are at least 1.
        "total_q": max(1, problem.rows_q),
        "total_k": max(1, problem.rows_k),
        "num_pages": operands[1].batch,
        "packed_shift": problem.packed_heads.bit_length() - 1,
        "num_m_tiles": m_tiles,
        "num_tiles": tiles,
        "heads_per_section": section,
        "num_sections": problem.batch * problem.heads // section,
        "rounds_per_section": -(-section * m_tiles // walkers),
        "lane_shift": deal.lane_shift,
        "causal_offset": causal_offset(plan, problem),
        "scale_log2": scale_log2_of(plan.spec.scale_value),
        "scale": plan.spec.scale_value,
        **dict.fromkeys(TENSORS, 0),
        **(more or {}),
    }
    for item in operands:
        row = "n" if item.name in ("k", "v") else "m"
        values[f"{item.name}_map"] = b""
        values[f"{item.name}_stride_b"] = item.stride_b
        values[f"{item.name}_stride_h"] = item.stride_h
        values[f"{item.name}_stride_{row}"] = item.stride_m
    unknown = [field.name for field in plan.params if field.name not in values]
    if unknown:
        raise LaunchError(f"{plan.symbol}: no launch value is known for {', '.join(unknown)}")
    return LaunchValues(blocks=blocks, values=values)
