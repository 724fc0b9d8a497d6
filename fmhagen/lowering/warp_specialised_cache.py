"""Keys and values of a cache in the warp-specialised loop: how a tile of them is copied.

A tile of keys is copied in pieces, each of which lies in one page: as many rows as divide both. A
piece may have fewer rows than the swizzle has, since the swizzle is one of addresses
(https://docs.nvidia.com/cuda/cuda-c-programming-guide/, 'TMA swizzle').
"""

from __future__ import annotations

import math

from fmhagen.language import Language
from fmhagen.plan import Constant
from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec

LANES = 32  # of the warp that copies
BARRIER_BYTES = 8

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


def cache_constants(
    spec: AttentionSpec, schedule: Schedule, language: Language
) -> tuple[Constant, ...]:
    """Return the constants of the copies."""

    def number(name: str, value: int, comment: str) -> Constant:
        return Constant(ctype="u32", name=name, value=value, comment=comment)

    rows = piece_rows(spec, schedule)
    pieces = schedule.tile_n // rows
    page = (number("PAGE_SIZE", spec.page_size or 0, "keys of a page"),)
    return (
        *(page if spec.page_size is not None else ()),
        number("PIECE_ROWS", rows, "keys of one copy, which lie in one page"),
        number("TILE_PIECES", pieces, "copies that a tile of K or V takes, of each box"),
        number("LANE_PIECES", -(-pieces // LANES), "of them that a lane makes"),
        number("BANDS", len(language.bands), "ranges of keys that the mask shows a row"),
    )
