"""Shapes of the split main loop: what its tiles, boxes and stages are."""

from __future__ import annotations

import math

from fmhagen.schedule import Copy, Schedule
from fmhagen.spec import AttentionSpec

# Shapes of the matrix unit and the copy engine that this main loop is written for.
TILE_ROWS = 16  # rows of one warp's matrix instruction
MATRIX_K = 16  # depth of one 16-bit matrix instruction
SWIZZLE_BYTES = 128
QUERY_BOX_COLUMNS = 64  # of Q, in rows as long as the swizzle
SWIZZLE_ROWS = 8  # rows after which the swizzle repeats: a copy has a multiple of them
BARRIER_BYTES = 8
LANES = 32
CHUNK_BYTES = 16
COMBINE_WARPS = 8
LINE_BYTES = 128  # of L2
MEET_STEPS = 4  # after which a block's warps meet: those that drift apart read rows that lie apart
PARTS_AHEAD = 4  # of a row, that a warp of the second kernel asks for before it knows their weights
MOST_PARTS = 32  # of a sequence, where the cut follows from its own length
LEAST_KEYS = 512  # of such a part


def least_steps(schedule: Schedule) -> int:
    """Return the steps of the shortest part of a sequence whose cut follows from its length."""
    return max(1, LEAST_KEYS // (schedule.consumers * schedule.tile_n))


def element_bytes(spec: AttentionSpec) -> int:
    """Return the bytes of an element of the cache."""
    return 2 if spec.kv_dtype is None else 1


def box_columns(spec: AttentionSpec) -> int:
    """Return the columns of a box: its rows are those of the 128-byte swizzle."""
    return SWIZZLE_BYTES // element_bytes(spec)


def keeps_queries(spec: AttentionSpec) -> bool:
    """Return whether each warp has Q in registers: a quarter of its depth of them."""
    return max(spec.d, spec.dv) <= 128


def stage_bytes(spec: AttentionSpec, tile_n: int) -> int:
    """Return the bytes of one tile of K and V in shared memory."""
    return tile_n * SWIZZLE_BYTES * (boxes_of(spec, spec.d) + boxes_of(spec, spec.dv))


def bulk_piece_rows(spec: AttentionSpec, tile_n: int) -> int:
    """Return the most rows of a tile that one copy of the copy engine can hold."""
    return tile_n if spec.page_size is None else math.gcd(spec.page_size, tile_n)


def piece_rows(spec: AttentionSpec, schedule: Schedule) -> int:
    """Return the rows of a tile that one copy holds; lanes copy a tile at once."""
    if schedule.copy != Copy.BULK:
        return schedule.tile_n
    return bulk_piece_rows(spec, schedule.tile_n)


def combine_values(spec: AttentionSpec, lanes: int = LANES) -> int:
    """Return how many columns of O a lane of the second kernel adds up."""
    return -(-spec.dv // (4 * lanes)) * 4


def boxes_of(spec: AttentionSpec, depth: int) -> int:
    """Return how many boxes of columns hold a head's depth; the last one may be padded."""
    return -(-depth // box_columns(spec))


def boxes_of_copy(spec: AttentionSpec, depth: int) -> int:
    """Return how many boxes of columns one copy takes: all, unless the last one is padded."""
    return 1 if depth % box_columns(spec) else boxes_of(spec, depth)
