"""Split plan: what the plan of a kernel over a key/value cache has besides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """The structure of a kernel that splits keys among blocks, and of the one that adds up.

    Attributes:
        combine_symbol: the second kernel of the file; it takes the same parameter block.
        combine_threads: threads of one of its blocks.
        combine_shared_bytes: shared memory of one of its blocks.
        is_paged: K and V lie in pages that a block table names.
        uses_bulk_copies: K and V are copied by the copy engine, else by the lanes.
        step_keys: keys of one step of a block; sequences are cut at multiples of it.
        piece_rows: rows of one copy of the copy engine; a divisor of the page.
    """

    combine_symbol: str
    combine_threads: int
    combine_shared_bytes: int
    is_paged: bool
    uses_bulk_copies: bool
    step_keys: int
    piece_rows: int
