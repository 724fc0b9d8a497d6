"""Keys and values of a cache in the warp-specialised loop: how a tile of them is copied.

In bulk, a tile of keys is copied in pieces, each of which lies in one page: as many rows as divide
both. A piece may have fewer rows than the swizzle has, since the swizzle is one of addresses
(https://docs.nvidia.com/cuda/cuda-c-programming-guide/, 'TMA swizzle'). A gather is made by lanes,
16 bytes each, of rows that lie anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fmhagen.errors import ScheduleError
from fmhagen.formula import is_mapped, mask_of, score_of
from fmhagen.plan.attention import Constant
from fmhagen.plan.language import Language
from fmhagen.schedule import COMBINE_THREADS, Copy, Schedule
from fmhagen.spec import AttentionSpec

LANES = 32  # of the warp that copies
BARRIER_BYTES = 8
COPY_WARPS = 2  # of a gather of K, and as many of one of V
CHUNK_COLUMNS = 8  # 16-bit elements that a lane copies at once
SMALL_CHUNK_COLUMNS = 16  # 8-bit ones
BOX_COLUMNS = 64  # of one box of a copy

V_LANDED = (
    "V_LANDED",
    BARRIER_BYTES,
    "V that is to be cleared: producer arrives (1 + bytes)",
)
"""A row of the shared-memory map."""


def piece_rows(spec: AttentionSpec, schedule: Schedule) -> int:
    """Return the rows of one copy of keys or values."""
    if spec.page_size is None:
        return schedule.tile_n
    return math.gcd(spec.page_size, schedule.tile_n)


def check_copy(spec: AttentionSpec, schedule: Schedule) -> None:
    """Refuse ways to copy K and V that this loop does not have.

    Raises:
        ScheduleError: says what it has.
    """
    if schedule.copy == Copy.DIRECT:
        limit = "the matrix instructions read K and V from shared memory"
        raise ScheduleError("copy", str(schedule.copy), limit, "use copy='bulk'")
    if spec.kv_dtype is not None and schedule.copy != Copy.GATHER:
        limit = "numbers of 8 bits are widened by lanes on their way to the matrix instructions"
        raise ScheduleError("copy", str(schedule.copy), limit, "use copy='gather'")
    if spec.kv_dtype is None and schedule.copy == Copy.GATHER and spec.page_size is None:
        limit = "lanes gather the rows of pages, and there are none"
        raise ScheduleError("copy", str(schedule.copy), limit, "use copy='bulk'")


def check_packing(spec: AttentionSpec, schedule: Schedule) -> None:
    """Refuse tiles that heads share where they may not.

    Raises:
        ScheduleError: says why.
    """
    if schedule.pack_heads and not may_pack(spec):
        limit = (
            "heads share tiles over a cache and of packed sequences, where no mask or score"
            " function asks for the head and no largest logit is kept"
        )
        raise ScheduleError("pack_heads", True, limit, "use pack_heads=False")


def check_split(spec: AttentionSpec, schedule: Schedule) -> None:
    """Refuse parts of keys where they are not written.

    Raises:
        ScheduleError: says why.
    """
    if schedule.split_keys and not may_split(spec):
        limit = (
            "keys are cut over a cache, of queries that are not packed, where no block map says"
            " what is visible and a row's bits may depend on the cut"
        )
        raise ScheduleError("split_keys", True, limit, "use split_keys=False")


def may_split(spec: AttentionSpec) -> bool:
    """Return whether the keys of a sequence may be cut into parts."""
    return spec.kv_cache and not spec.varlen and not spec.batch_invariant and not is_mapped(spec)


def may_pack(spec: AttentionSpec) -> bool:
    """Return whether heads of a group may share tiles."""
    asked = (node for node in (mask_of(spec), score_of(spec)) if node is not None)
    ordered = spec.kv_cache or spec.varlen
    return ordered and not spec.max_logit and not any(node.reads("h") for node in asked)


def _small_copies(number: Callable[[str, int, str], Constant]) -> tuple[Constant, ...]:
    return (
        number("CHUNK_COLUMNS", SMALL_CHUNK_COLUMNS, "that a lane copies at once: 16 bytes"),
        number("EIGHT_BYTES", 8 * BOX_COLUMNS, "columns of a box of eight keys of 8 bits"),
    )


def cache_constants(
    spec: AttentionSpec, schedule: Schedule, language: Language
) -> tuple[Constant, ...]:
    """Return the constants of the copies."""

    def number(name: str, value: int, comment: str) -> Constant:
        return Constant(ctype="u32", name=name, value=value, comment=comment)

    split = (number("COMBINE_THREADS", COMBINE_THREADS, "of a block that adds up parts"),)
    page = (number("PAGE_SIZE", spec.page_size or 0, "keys of a page"),)
    if schedule.copy == Copy.GATHER:
        keys = schedule.tile_n // COPY_WARPS
        in_flight = (
            number("IN_FLIGHT", int(schedule.stages > 2), "tiles behind one that is handed on"),
            number("CHUNK_COLUMNS", CHUNK_COLUMNS, "that a lane copies at once: 16 bytes"),
        )
        return (
            *(split if schedule.split_keys else ()),
            *(page if spec.page_size is not None else ()),
            number("COPY_WARPS", COPY_WARPS, "warps that copy K, and as many V"),
            number("COPY_KEYS", keys, "keys of a tile that one of them copies"),
            number("LANE_KEYS", -(-keys // LANES), "of them that a lane looks up"),
            *(_small_copies(number) if spec.kv_dtype is not None else in_flight),
            number("BANDS", len(language.bands), "ranges of keys that the mask shows a row"),
        )
    rows = piece_rows(spec, schedule)
    pieces = schedule.tile_n // rows
    return (
        *(split if schedule.split_keys else ()),
        *(page if spec.page_size is not None else ()),
        number("PIECE_ROWS", rows, "keys of one copy, which lie in one page"),
        number("TILE_PIECES", pieces, "copies that a tile of K or V takes, of each box"),
        number("LANE_PIECES", -(-pieces // LANES), "of them that a lane makes"),
        number("BANDS", len(language.bands), "ranges of keys that the mask shows a row"),
    )
