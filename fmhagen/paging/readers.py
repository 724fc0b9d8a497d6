"""Readers: what a PagedKVCache tells of its sequences, and the tables of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fmhagen.errors import PagingError
from fmhagen.paging import arguments
from fmhagen.paging.csr import CsrTables, csr_of
from fmhagen.paging.ledger import Ledger, SequenceState
from fmhagen.paging.tables import CascadeTables, PageTables, split_tables, tables_of
from fmhagen.paging.usage import Usage, usage_of


class Readers:
    """The part of `manager.PagedKVCache` that changes nothing."""

    page_size: int
    _ledger: Ledger
    _sequences: dict[int, SequenceState]
    _asked: int
    _found: int

    @property
    def sequences(self) -> tuple[int, ...]:
        """Numbers of the sequences alive, the oldest first."""
        return tuple(self._sequences)

    @property
    def num_available(self) -> int:
        """Pages that can be taken: free ones, and those kept for their prefix alone."""
        return self._ledger.pool.num_available

    def length(self, sequence: int) -> int:
        """Return the tokens of a sequence."""
        return self._state(sequence).length

    def pages(self, sequence: int) -> tuple[int, ...]:
        """Return the pages of a sequence, in order."""
        return tuple(self._state(sequence).pages)

    def shared_prefix(self, sequences: Sequence[int]) -> int:
        """Return how many first tokens all of some sequences read from the same full pages.

        Raises:
            PagingError: there is no such sequence.
        """
        states = self._states(sequences)
        shared = 0
        for same in zip(*(state.pages for state in states), strict=False):
            if len(set(same)) > 1:
                break
            shared += self.page_size
        # The last page that they share may be partly filled, and more so for one than for another.
        full = min((state.length for state in states), default=0) // self.page_size
        return min(shared, full * self.page_size)

    def pages_needed(self, sequences: Sequence[int], counts: Sequence[int] | int = 1) -> int:
        """Return how many pages `append_batch` would take, copies on write included."""
        states = self._states(sequences)
        needed, shared = self._ledger.demand(
            states, arguments.counts("counts", counts, len(states))
        )
        return needed + len(shared)

    def tables(
        self,
        sequences: Sequence[int],
        *,
        unwritten: Sequence[int] | int = 0,
        width: int | None = None,
        like: Any = None,
        out: PageTables | None = None,
    ) -> PageTables:
        """Return block table and lengths of a batch, int32, as the kernels read them.

        Args:
            sequences: their numbers, in the order of the batch.
            unwritten: leave so many of the last tokens out of `cache_seqlens`, for a call that
                writes them itself (`flash_attn_with_kvcache(k=, v=)`); their pages are listed.
            width: columns; None means those of the longest sequence, at least 1.
            like: a tensor that names framework and device of the result; None means NumPy.
            out: tables to write over in place, as a captured graph needs; further rows of it get
                length 0, and its width stands.

        Raises:
            PagingError: there is no such sequence, or `width`, `out` or a length is too small.
        """
        states = self._states(sequences)
        lengths = np.fromiter((state.length for state in states), np.int32, len(states))
        if not isinstance(unwritten, int) or unwritten:
            lengths -= np.array(arguments.counts("unwritten", unwritten, len(states)), np.int32)
        longest = max((len(state.pages) for state in states), default=0)

        def fill(table: npt.NDArray[np.int32]) -> None:
            self._ledger.rows.gather([state.row for state in states], table, longest)

        return tables_of(fill, lengths, longest, self.page_size, width=width, like=like, out=out)

    def csr(
        self,
        sequences: Sequence[int],
        *,
        unwritten: Sequence[int] | int = 0,
        like: Any = None,
    ) -> CsrTables:
        """Return the pages of a batch as FlashInfer takes them; see `tables`."""
        tables = self.tables(sequences, unwritten=unwritten)
        return csr_of(tables.block_table, tables.cache_seqlens, self.page_size, like)

    def cascade(
        self, sequences: Sequence[int], *, queries: int = 1, like: Any = None
    ) -> CascadeTables:
        """Return the tables of a batch split behind the prefix that its sequences share.

        Args:
            sequences: their numbers.
            queries: query rows of each in the call; all of them must see the whole prefix.
            like: a tensor that names framework and device of the result; None means NumPy.

        Raises:
            PagingError: there is no such sequence, or `queries` is no number.
        """
        shared = self.shared_prefix(sequences)
        rows = arguments.size("queries", queries)
        return split_tables(self.tables(sequences), shared, rows, like)

    def usage(self) -> Usage:
        """Return where the slots went; takes time in proportion to all pages held."""
        return usage_of(
            self._ledger, self._sequences.values(), asked=self._asked, found=self._found
        )

    def _state(self, sequence: int) -> SequenceState:
        state = self._sequences.get(sequence)
        if state is None:
            limit = f"is not one of the {len(self._sequences)} sequences alive"
            raise PagingError("sequence", sequence, limit, "was it freed?")
        return state

    def _states(self, sequences: Sequence[int]) -> list[SequenceState]:
        try:
            return [self._sequences[sequence] for sequence in sequences]
        except KeyError:
            return [self._state(sequence) for sequence in sequences]  # raises, and says which
