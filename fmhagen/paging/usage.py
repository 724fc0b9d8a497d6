"""Usage: where the slots of a paged cache went."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fmhagen.paging.ledger import Ledger, SequenceState


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a paged cache holds, and what it wastes.

    A slot is the place of one token's keys and values; a page has `page_size` slots.

    Attributes:
        num_pages: pages of the cache.
        page_size: slots a page.
        pages_free: pages that hold nothing.
        pages_kept: pages that no sequence holds, kept for their prefix until space is needed.
        pages_held: pages that sequences hold, each counted once.
        pages_shared: held pages with more than one holder.
        sequences: sequences alive.
        tokens: tokens of all sequences, shared ones counted for each holder.
        slots_used: slots of held pages with a token, each counted once.
        longest: tokens of the longest sequence.
        prefix_tokens_asked: prompt tokens given to `allocate` so far.
        prefix_tokens_found: those whose keys and values were there already.
        pages_copied: pages copied on write so far.
        pages_evicted: kept pages whose space was needed so far.
    """

    num_pages: int
    page_size: int
    pages_free: int
    pages_kept: int
    pages_held: int
    pages_shared: int
    sequences: int
    tokens: int
    slots_used: int
    longest: int
    prefix_tokens_asked: int
    prefix_tokens_found: int
    pages_copied: int
    pages_evicted: int

    @property
    def slots_held(self) -> int:
        """Slots of the pages that sequences hold."""
        return self.pages_held * self.page_size

    @property
    def slots_wasted(self) -> int:
        """Slots of held pages without a token: the internal fragmentation."""
        return self.slots_held - self.slots_used

    @property
    def waste(self) -> float:
        """`slots_wasted` as a share of `slots_held`; 0 when nothing is held."""
        return self.slots_wasted / self.slots_held if self.slots_held else 0.0

    @property
    def tokens_saved(self) -> int:
        """Tokens that need no slot of their own since sequences share pages."""
        return self.tokens - self.slots_used

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that were found; 0 when none were asked for."""
        asked = self.prefix_tokens_asked
        return self.prefix_tokens_found / asked if asked else 0.0

    def slots_contiguous(self, max_length: int | None = None) -> int:
        """Slots that one contiguous cache a sequence would take.

        Args:
            max_length: slots of each, which must be reserved before the length is known; None
                means the longest sequence of now, the least that a rectangle can have.
        """
        return self.sequences * (self.longest if max_length is None else max_length)

    def __str__(self) -> str:
        """Return a few lines for people."""
        return (
            f"pages: {self.pages_held} held ({self.pages_shared} shared), {self.pages_kept} kept,"
            f" {self.pages_free} free, of {self.num_pages} x {self.page_size} slots\n"
            f"slots: {self.slots_used} used, {self.slots_wasted} wasted ({self.waste:.1%})"
            f" for {self.tokens} tokens of {self.sequences} sequences,"
            f" {self.tokens_saved} saved by sharing\n"
            f"prefixes: {self.prefix_tokens_found} of {self.prefix_tokens_asked} prompt tokens"
            f" found ({self.hit_rate:.1%}); {self.pages_copied} pages copied on write,"
            f" {self.pages_evicted} evicted"
        )


def usage_of(ledger: Ledger, states: Collection[SequenceState], *, asked: int, found: int) -> Usage:
    """Count what sequences hold.

    Args:
        ledger: whose pages they are.
        states: the sequences.
        asked: prompt tokens given so far.
        found: those found in the cache.
    """
    size, pool = ledger.page_size, ledger.pool
    filled: dict[int, int] = {}  # slots in use of each held page; forks may have been truncated
    for state in states:
        last = len(state.pages) - 1
        for i, page in enumerate(state.pages):
            slots = size if i < last else state.length - last * size
            filled[page] = max(slots, filled.get(page, 0))
    return Usage(
        num_pages=pool.num_pages,
        page_size=size,
        pages_free=pool.num_free,
        pages_kept=pool.num_kept,
        pages_held=len(filled),
        pages_shared=sum(pool.references[page] > 1 for page in filled),
        sequences=len(states),
        tokens=sum(state.length for state in states),
        slots_used=sum(filled.values()),
        longest=max((state.length for state in states), default=0),
        prefix_tokens_asked=asked,
        prefix_tokens_found=found,
        pages_copied=ledger.copied,
        pages_evicted=pool.evictions,
    )
