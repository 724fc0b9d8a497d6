"""Split plan: what the plan of a kernel over a key/value cache has besides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBand:
    """One band of the mask.

    Attributes:
        first: function that gives a row's first key.
        end: function that gives what lies behind its last.
        heads_differ: they depend on the head.
    """

    first: str
    end: str
    heads_differ: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """The structure of a kernel that splits keys among blocks, and of the one that adds up.

    Attributes:
        combine_symbol: the second kernel of the file; it takes the same parameter block.
        combine_threads: threads of one of its blocks.
        combine_shared_bytes: shared memory of one of its blocks.
        is_paged: K and V lie in pages that a block table names.
        uses_bulk_copies: K and V are copied by the copy engine, else by the lanes.
        copies_in_turn: lanes find the rows of a few copies at once, as registers are short.
        uses_registers: K and V are loaded straight into registers.
        lanes: threads of a warp or wave.
        step_keys: keys of one step of a block; sequences are cut at multiples of it.
        piece_rows: rows of one copy of the copy engine; a divisor of the page.
        bands: of the mask.
        heads_differ: the mask of a row depends on its head.
        needs_places: the score function or the mask is asked for each of a thread's rows.
        reads_place: some band does not depend on the head, and so says where keys begin and end.
        keeps_queries: each warp has Q in registers, else all read it from shared memory.
        is_invariant: the cut of a sequence follows from its own length alone.
        most_parts: that a sequence has then; 0 where that is free.
        least_steps: of such a part.
        is_small: elements of the cache have 8 bits; they are widened to fp16.
        is_bf16: Q and O are bf16.
        element_type: the C type of an element of the cache.
        output: suffix of the instruction that rounds O.
        scales_heads: one factor for all keys of a sequence and head.
        scales_tokens: one factor for each key and head.
        natural_scale: what scores are multiplied by before a score function.
        sink: a logit without a value is in the denominator.
        score_factor: what turns scores into units of log2.
        score_text: scores in these units, for comments.
    """

    combine_symbol: str
    combine_threads: int
    combine_shared_bytes: int
    is_paged: bool
    uses_bulk_copies: bool
    copies_in_turn: bool
    uses_registers: bool
    lanes: int
    step_keys: int
    piece_rows: int
    bands: tuple[SplitBand, ...]
    heads_differ: bool
    needs_places: bool
    reads_place: bool
    keeps_queries: bool
    is_invariant: bool
    most_parts: int
    least_steps: int
    is_small: bool
    is_bf16: bool
    element_type: str
    output: str
    scales_heads: bool
    scales_tokens: bool
    natural_scale: str
    sink: bool
    score_factor: str
    score_text: str

    @property
    def has_o_factor(self) -> bool:
        """Whether O is multiplied by a factor at the end."""
        return self.scales_heads or self.scales_tokens

    @property
    def clear_call(self) -> str:
        """The function that sets all of an array to zero."""
        return "set_to_zero" if self.uses_registers else "clear"

    @property
    def lanes_bytes(self) -> int:
        """Bytes that a warp writes at once, 16 a lane."""
        return 16 * self.lanes

    @property
    def widens_queries(self) -> bool:
        """Whether Q is bf16 and multiplied as fp16."""
        return self.is_small and self.is_bf16

    @property
    def row_place(self) -> str:
        """What the range of keys of one row is asked with."""
        return "row_place" if self.heads_differ else "place"

    @property
    def has_several_bands(self) -> bool:
        """Whether the steps with visible keys may lie in several places."""
        return len(self.bands) > 1
