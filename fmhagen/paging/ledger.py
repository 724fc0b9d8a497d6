"""Ledger: the pages of sequences: what an append takes, what is copied first, what becomes known.

The rules of a page that is not full, and so may be written:
- held by one sequence: written in place; a name that it has (it was full once, and truncated) is
  forgotten first;
- held by more: every holder that writes copies it first, but the last, who has it alone by then.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fmhagen.errors import OutOfPagesError
from fmhagen.paging.arguments import NewTokens
from fmhagen.paging.pool import PagePool
from fmhagen.paging.prefix import page_key
from fmhagen.paging.rows import TableRows

_FEW_TOKENS = 16  # up to here a Python loop makes slots quicker than NumPy does

CopyPages = Callable[[Sequence[int], Sequence[int]], None]


@dataclass(slots=True, kw_only=True)
class SequenceState:
    """One sequence: always `len(pages) == ceil(length / page_size)`.

    Attributes:
        row: its row of the block table.
        pages: its pages, in order.
        length: its tokens.
        tokens: their ids, up to the first whose id is not known.
        root: the name that stands before its first page.
        keys: names of its first pages, as far as they were committed.
    """

    row: int
    pages: list[int]
    length: int
    tokens: array[int]
    root: bytes
    keys: list[bytes]


class Ledger:
    """Pages of sequences over one pool.

    Attributes:
        page_size: slots a page.
        pool: who holds each page.
        rows: the block table.
        copied: pages copied on write so far.
    """

    __slots__ = ("copied", "page_size", "pool", "rows")

    def __init__(self, num_pages: int, page_size: int) -> None:
        """Start with every page free."""
        self.page_size = page_size
        self.pool = PagePool(num_pages)
        self.rows = TableRows()
        self.copied = 0

    def match(self, root: bytes, ids: array[int]) -> tuple[list[bytes], list[int]]:
        """Return names and pages of the longest prefix that is there, less the last token."""
        keys: list[bytes] = []
        pages: list[int] = []
        key, size = root, self.page_size
        for i in range((len(ids) - 1) // size):
            key = page_key(key, ids[i * size : (i + 1) * size])
            page = self.pool.index.find(key)
            if page is None:
                break
            keys.append(key)
            pages.append(page)
        return keys, pages

    def require(self, needed: int, *, spared: int, sequences: int) -> None:
        """Refuse a request for pages that cannot be met.

        Args:
            needed: pages that will be taken.
            spared: available pages that the request holds besides, and so cannot be taken.
            sequences: sequences alive, for the message.

        Raises:
            OutOfPagesError: too few pages are available.
        """
        available = self.pool.num_available - spared
        if needed > available:
            raise OutOfPagesError(needed, available, self.pool.num_pages, sequences)

    def hold(
        self, root: bytes, keys: list[bytes], pages: list[int], ids: array[int]
    ) -> SequenceState:
        """Return a sequence of full pages that are there, each with one reference more.

        Args:
            root: the name before the first page.
            keys: names of the pages, as far as they are known.
            pages: the pages.
            ids: the tokens in them.
        """
        for page in pages:
            self.pool.retain(page)
        return SequenceState(
            row=self.rows.take(pages),
            pages=pages,
            length=len(pages) * self.page_size,
            tokens=ids,
            root=root,
            keys=keys,
        )

    def fork(self, parent: SequenceState) -> SequenceState:
        """Return a sequence that shares all pages of its parent."""
        ids, keys = parent.tokens[:], parent.keys.copy()
        child = self.hold(parent.root, keys, parent.pages.copy(), ids)
        child.length = parent.length
        return child

    def demand(
        self, states: Sequence[SequenceState], counts: Sequence[int]
    ) -> tuple[int, list[SequenceState]]:
        """Return how many new pages appends take, and whose last page is copied besides."""
        size, references = self.page_size, self.pool.references
        needed = 0
        shared: list[SequenceState] = []
        holders: dict[int, int] = {}
        for state, count in zip(states, counts, strict=True):
            room = len(state.pages) * size - state.length
            if count > room:
                needed -= (room - count) // size  # rounded up
            if room and count:
                page = state.pages[-1]
                if references[page] > 1:
                    left = holders.get(page, references[page])
                    if left > 1:
                        shared.append(state)
                        holders[page] = left - 1
        return needed, shared

    def copy_on_write(
        self, shared: Sequence[SequenceState], copy_pages: CopyPages | None
    ) -> tuple[tuple[int, int], ...]:
        """Give each of some sequences its own copy of its last page.

        Returns:
            (source, destination) of each.

        Raises:
            Exception: whatever `copy_pages` raises; no sequence is changed then.
        """
        pool = self.pool
        old = [state.pages[-1] for state in shared]
        new = [pool.take() for _ in shared]
        if copy_pages is not None:
            try:
                copy_pages(old, new)
            except BaseException:
                for page in reversed(new):
                    pool.release(page)
                raise
        for state, source, destination in zip(shared, old, new, strict=True):
            pool.release(source)
            state.pages[-1] = destination
            self.rows.write(state.row, len(state.pages) - 1, (destination,))
        self.copied += len(old)
        return tuple(zip(old, new, strict=True))

    def extend(
        self, state: SequenceState, ids: NewTokens | None, count: int, slots: list[int]
    ) -> bool:
        """Add tokens to a sequence whose last page is its own; the pages must be available.

        Args:
            state: the sequence.
            ids: ids of the tokens, None where they are not known.
            count: how many.
            slots: where the slot of each is appended.

        Returns:
            Whether pages may have been filled that have no name yet.
        """
        size, first, pages = self.page_size, state.length, state.pages
        end = state.length = first + count
        offset = first % size
        if offset and count and pages[-1] in self.pool.index:
            self.pool.index.forget(pages[-1])
        if ids is not None and len(state.tokens) == first:
            if isinstance(ids, int):
                state.tokens.append(ids)
            else:
                state.tokens.extend(ids)
        if offset and offset + count < size:  # the common step: no page begins or ends
            first_slot = pages[-1] * size + offset
            if count == 1:
                slots.append(first_slot)
            else:
                slots.extend(range(first_slot, first_slot + count))
            return False
        begin = len(pages)
        while len(pages) * size < end:
            pages.append(self.pool.take())
        self.rows.write(state.row, begin, pages[begin:])
        if count <= _FEW_TOKENS:
            slots += [pages[n // size] * size + n % size for n in range(first, end)]
        else:
            slots += self.rows.slots(state.row, first, end, size).tolist()
        return len(state.tokens) // size > len(state.keys)

    def truncate(self, state: SequenceState, length: int) -> None:
        """Drop the tokens from `length` on; the last page goes first, so it is evicted first."""
        keep = -(-length // self.page_size)
        for page in reversed(state.pages[keep:]):
            self.pool.release(page)
        self.rows.clear(state.row, keep, len(state.pages))
        del state.pages[keep:]
        del state.tokens[length:]
        del state.keys[length // self.page_size :]
        state.length = length

    def publish(self, state: SequenceState) -> int:
        """Name the full pages of a sequence whose tokens are known; return how many are new."""
        size, keys, published = self.page_size, state.keys, 0
        key = keys[-1] if keys else state.root
        for i in range(len(keys), len(state.tokens) // size):
            key = page_key(key, state.tokens[i * size : (i + 1) * size])
            keys.append(key)
            published += self.pool.index.publish(state.pages[i], key)
        return published
