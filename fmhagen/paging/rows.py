"""Rows: the block table of all sequences, kept up to date so that a batch's is one gather."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_FIRST_ROWS, _FIRST_WIDTH = 8, 8


class TableRows:
    """A row of page numbers for each sequence; grows by doubling; unused entries are 0."""

    __slots__ = ("_table", "_unused")

    def __init__(self) -> None:
        """Start small."""
        self._table = np.zeros((_FIRST_ROWS, _FIRST_WIDTH), np.int32)
        self._unused = list(range(_FIRST_ROWS - 1, -1, -1))  # a stack

    def take(self, pages: Sequence[int]) -> int:
        """Return an unused row, with these pages written at its beginning."""
        if not self._unused:
            rows = len(self._table)
            self._table = np.concatenate((self._table, np.zeros_like(self._table)))
            self._unused = list(range(2 * rows - 1, rows - 1, -1))
        row = self._unused.pop()
        self.write(row, 0, pages)
        return row

    def give_back(self, row: int) -> None:
        """Take a row back, whose entries are 0 again."""
        self._unused.append(row)

    def write(self, row: int, begin: int, pages: Sequence[int]) -> None:
        """Write page numbers from column `begin` on."""
        end = begin + len(pages)
        rows, width = self._table.shape
        if end > width:
            more = np.zeros((rows, max(end, 2 * width) - width), np.int32)
            self._table = np.concatenate((self._table, more), axis=1)
        self._table[row, begin:end] = pages

    def clear(self, row: int, begin: int, end: int) -> None:
        """Write 0 over the columns from `begin` to before `end`."""
        self._table[row, begin:end] = 0

    def slots(self, row: int, begin: int, end: int, page_size: int) -> npt.NDArray[np.int64]:
        """Return page * page_size + offset of the tokens from `begin` to before `end`."""
        tokens = np.arange(begin, end)
        pages = self._table[row, tokens // page_size].astype(np.int64)
        return np.asarray(pages * page_size + tokens % page_size)

    def gather(self, rows: Sequence[int], out: npt.NDArray[np.int32], width: int) -> None:
        """Copy the first `width` columns of some rows to the beginning of `out`."""
        out[: len(rows), :width] = self._table[rows, :width]
