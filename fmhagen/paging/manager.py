"""PagedKVCache: which pages hold the keys and values of which sequence.

    cache = PagedKVCache(storage=storage)     # or num_pages=, page_size=: integers alone
    new = cache.allocate(prompt)              # pages of a known prefix are found, not computed
    ...                                       # in every layer: compute prompt[new.cached:], write
    ...                                       # its keys and values to new.slots
    cache.commit()                            # they are written: full pages can be found
    samples = cache.fork(new.sequence, 8)     # share every page, copy on write
    step = cache.append_batch(samples, ids)   # step.slots: where to write
    tables = cache.tables(samples)            # int32, ready for the kernel

An operation that fails changes nothing. The manager is for one thread at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fmhagen.errors import PagingError
from fmhagen.paging import arguments
from fmhagen.paging.arguments import NewTokens, Tokens
from fmhagen.paging.ledger import Ledger, SequenceState
from fmhagen.paging.places import Allocation, Appended, CopiesPages
from fmhagen.paging.prefix import root_key
from fmhagen.paging.readers import Readers


class PagedKVCache(Readers):
    """Sequences over a pool of pages: allocate, append, fork, truncate, free.

    Page numbers are the same in every layer: a page is `page_size` slots of keys and values in
    each of the storage's tensors.

    Attributes:
        num_pages: pages of the cache.
        page_size: slots a page.
        storage: the tensors, or None.
        share_prefixes: whether the pages of a prompt that are there already are found.
    """

    def __init__(
        self,
        *,
        storage: CopiesPages | None = None,
        num_pages: int | None = None,
        page_size: int | None = None,
        share_prefixes: bool = True,
    ) -> None:
        """Start with every page free.

        Args:
            storage: the tensors; it says how many pages there are, and copies pages on write.
                Without one the copies are the caller's (`Appended.copies`).
            num_pages: pages, where there is no storage.
            page_size: slots a page, where there is no storage; any number from 1 up.
            share_prefixes: find the pages of a prompt that are there already.

        Raises:
            PagingError: a size is missing, below 1, too large, or given twice.
        """
        for name, size in (("num_pages", num_pages), ("page_size", page_size)):
            if (size is None) == (storage is None):
                limit = "must be given where there is no storage, and only there"
                raise PagingError(name, size, limit)
        if storage is not None:
            num_pages, page_size = storage.num_pages, storage.page_size
        self.num_pages = arguments.size("num_pages", num_pages)
        self.page_size = arguments.size("page_size", page_size)
        self.storage = storage
        self.share_prefixes = share_prefixes
        self._ledger = Ledger(self.num_pages, self.page_size)
        self._sequences: dict[int, SequenceState] = {}
        self._next = 0
        self._to_commit: set[int] = set()
        self._asked = self._found = 0

    # --- sequences ---

    def allocate(
        self, tokens: Tokens | None = None, *, count: int | None = None, salt: bytes = b""
    ) -> Allocation:
        """Begin a sequence with its prompt.

        Full pages whose tokens and all tokens before them are in the cache are shared. At least
        the last token is always left to compute, since its output is wanted.

        Args:
            tokens: ids of the prompt; none for an empty sequence.
            count: tokens of the prompt where their ids are not known; such pages are not shared.
            salt: what else keys and values depend on (an adapter, a tenant): only sequences of the
                same salt share a prefix.

        Raises:
            OutOfPagesError: too few pages are available.
            PagingError: the arguments mean nothing.
        """
        known, number = arguments.new_tokens(tokens, count, default=0)
        ids = array("q") if known is None else known
        root = root_key(salt)
        ledger, references = self._ledger, self._ledger.pool.references
        keys, pages = ledger.match(root, ids) if self.share_prefixes else ([], [])
        ledger.require(
            -(-number // self.page_size) - len(pages),
            spared=sum(not references[page] for page in pages),
            sequences=len(self._sequences),
        )
        cached = len(pages) * self.page_size
        sequence = self._add(ledger.hold(root, keys, pages, ids[:cached]))
        self._asked += len(ids)
        self._found += cached
        rest = None if known is None else ids[cached:]
        slots = self._extend((sequence,), (self._sequences[sequence],), (rest,), (number - cached,))
        return Allocation(sequence=sequence, cached=cached, slots=slots)

    def append(
        self, sequence: int, tokens: Tokens | None = None, *, count: int | None = None
    ) -> Appended:
        """Make room for more tokens of one sequence.

        A partly filled page with other holders is copied first (copy on write).

        Args:
            sequence: its number.
            tokens: ids of the new tokens.
            count: how many, where their ids are not known: pages from there on cannot be found by
                their content. Without either it is one token of unknown id.

        Raises:
            OutOfPagesError: too few pages are available.
            PagingError: there is no such sequence, or the arguments mean nothing.
        """
        ids, number = arguments.new_tokens(tokens, count, default=1)
        return self._append((sequence,), (self._state(sequence),), (ids,), (number,))

    def append_batch(
        self,
        sequences: Sequence[int],
        tokens: Sequence[Any] | Any | None = None,
        *,
        counts: Sequence[int] | int | None = None,
    ) -> Appended:
        """Make room for more tokens of several sequences: for all of them, or for none.

        Args:
            sequences: their numbers, each once.
            tokens: for each an id, or a list of ids.
            counts: for each how many, or one number for all, where ids are not known; see `append`.

        Raises:
            OutOfPagesError: too few pages are available.
            PagingError: there is no such sequence, or the arguments mean nothing.
        """
        states = self._states(sequences)
        if len(set(sequences)) != len(states):
            twice = next(s for i, s in enumerate(sequences) if s in sequences[:i])
            raise PagingError("sequences", twice, "must name each sequence once")
        ids, numbers = arguments.batch_tokens(tokens, counts, len(states))
        return self._append(sequences, states, ids, numbers)

    def commit(self, sequences: Iterable[int] | None = None) -> int:
        """State that the keys and values of all tokens so far are written.

        Full pages can be found by their content from then on. What is never committed is never
        found; forks share pages without it.

        Args:
            sequences: their numbers; None means all.

        Returns:
            How many pages became known.

        Raises:
            PagingError: there is no such sequence.
        """
        numbers = sorted(self._to_commit) if sequences is None else list(sequences)
        states = self._states(numbers)
        published = 0
        for sequence, state in zip(numbers, states, strict=True):
            if sequence in self._to_commit:
                self._to_commit.discard(sequence)
                published += self._ledger.publish(state)
        return published

    def fork(self, sequence: int, count: int = 1) -> tuple[int, ...]:
        """Make `count` copies of a sequence that share all its pages; takes no page.

        The first append of each writes into a copy of the last page if that is partly filled; the
        parent's own writes must be made, or enqueued on the same stream, before.

        Raises:
            PagingError: there is no such sequence, or the count is negative.
        """
        parent = self._state(sequence)
        number = arguments.count("count", count)
        children = tuple(self._add(self._ledger.fork(parent)) for _ in range(number))
        if sequence in self._to_commit:
            self._to_commit.update(children)
        return children

    def truncate(self, sequence: int, length: int) -> None:
        """Drop the tokens of a sequence from `length` on, as after rejected drafts.

        Raises:
            PagingError: there is no such sequence, or it is shorter.
        """
        state = self._state(sequence)
        if arguments.count("length", length) > state.length:
            limit = f"sequence {sequence} has only {state.length} tokens"
            raise PagingError("length", length, limit)
        self._ledger.truncate(state, length)

    def free(self, sequence: int) -> None:
        """End a sequence. Its committed pages stay findable until their space is needed.

        Raises:
            PagingError: there is no such sequence.
        """
        state = self._state(sequence)
        self._ledger.truncate(state, 0)
        self._ledger.rows.give_back(state.row)
        self._to_commit.discard(sequence)
        del self._sequences[sequence]

    def drop_prefixes(self) -> int:
        """Free the pages that are kept for their prefix alone; return how many there were."""
        return self._ledger.pool.forget_kept()

    def __repr__(self) -> str:
        """Return sizes, and how much is taken."""
        return (
            f"PagedKVCache(num_pages={self.num_pages}, page_size={self.page_size}):"
            f" {len(self._sequences)} sequences, {self.num_available} pages available"
        )

    # --- inside ---

    def _add(self, state: SequenceState) -> int:
        sequence = self._next
        self._next += 1
        self._sequences[sequence] = state
        return sequence

    def _append(
        self,
        sequences: Sequence[int],
        states: Sequence[SequenceState],
        ids: Sequence[NewTokens | None],
        counts: Sequence[int],
    ) -> Appended:
        ledger, storage = self._ledger, self.storage
        needed, shared = ledger.demand(states, counts)
        ledger.require(needed + len(shared), spared=0, sequences=len(self._sequences))
        copies: tuple[tuple[int, int], ...] = ()
        if shared:
            copies = ledger.copy_on_write(shared, None if storage is None else storage.copy_pages)
        return Appended(slots=self._extend(sequences, states, ids, counts), copies=copies)

    def _extend(
        self,
        sequences: Sequence[int],
        states: Sequence[SequenceState],
        ids: Sequence[NewTokens | None],
        counts: Sequence[int],
    ) -> npt.NDArray[np.int64]:
        slots: list[int] = []
        extend = self._ledger.extend
        for sequence, state, new, count in zip(sequences, states, ids, counts, strict=True):
            if extend(state, new, count, slots) and self.share_prefixes:
                self._to_commit.add(sequence)
        return np.array(slots, np.int64)
