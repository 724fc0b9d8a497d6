"""Tables: which pages a batch of sequences reads, as the kernels take it.

Two forms of the same: a rectangle with a row of page numbers for each sequence (FlashAttention,
vLLM), or the rows one after another with where each begins (FlashInfer).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fmhagen.errors import PagingError
from fmhagen.paging.interop import array_like, assign

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTables:
    """Block table and lengths of a batch, int32.

    Attributes:
        block_table: (B, width) page numbers; entries behind a sequence's last page are 0.
        cache_seqlens: (B,) keys of each sequence.
        page_size: keys a page.
    """

    block_table: Any
    cache_seqlens: Any
    page_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CsrTables:
    """The pages of a batch one sequence after another, int32, as FlashInfer takes them.

    Attributes:
        indptr: (B + 1,) where each sequence's pages begin in `indices`, and their end.
        indices: (indptr[B],) page numbers.
        last_page_len: (B,) keys in the last page of each sequence, 1 to page_size; 0 for a
            sequence without keys, which has no page.
        page_size: keys a page.
    """

    indptr: Any
    indices: Any
    last_page_len: Any
    page_size: int


def tables_of(
    fill: Callable[[Int32], None],
    lengths: Int32,
    longest: int,
    page_size: int,
    *,
    width: int | None,
    like: Any,
    out: PageTables | None,
) -> PageTables:
    """Make the tables of a batch, or write over given ones.

    Args:
        fill: writes the page numbers into the beginning of a zeroed table.
        lengths: (B,) keys of each sequence.
        longest: pages of the longest sequence.
        page_size: keys a page.
        width: columns; None means `longest`, at least 1.
        like: a tensor that names framework and device of the result; None means NumPy.
        out: tables to write over.

    Raises:
        PagingError: a length is negative, or `width` or `out` is too small.
    """
    if len(lengths) and lengths.min() < 0:
        where = int(lengths.argmin())
        limit = "more tokens are unwritten than the sequence has"
        raise PagingError(f"cache_seqlens[{where}]", int(lengths[where]), limit)
    rows = len(lengths)
    if out is not None:
        if width is not None:
            raise PagingError("width", width, "must not be given beside out, which has its own")
        rows, width = (int(n) for n in out.block_table.shape)
        if rows < len(lengths) or tuple(out.cache_seqlens.shape) != (rows,):
            limit = f"must have room for the {len(lengths)} sequences, with as many lengths as rows"
            raise PagingError("out", f"{rows} rows, {len(out.cache_seqlens)} lengths", limit)
    if width is None:
        width = max(1, longest)
    elif width < longest:
        limit = f"the longest sequence of the batch has {longest} pages"
        raise PagingError("width", width, limit, "make the table wider")
    table = np.zeros((rows, width), np.int32)
    fill(table)
    all_lengths = np.zeros(rows, np.int32)
    all_lengths[: len(lengths)] = lengths
    if out is None:
        return PageTables(
            block_table=array_like(table, like),
            cache_seqlens=array_like(all_lengths, like),
            page_size=page_size,
        )
    assign(out.block_table, table)
    assign(out.cache_seqlens, all_lengths)
    return out


def csr_of(block_table: Int32, cache_seqlens: Int32, page_size: int, like: Any = None) -> CsrTables:
    """Turn a block table into CSR form.

    Args:
        block_table: (B, width) page numbers.
        cache_seqlens: (B,) keys of each sequence.
        page_size: keys a page.
        like: a tensor that names the framework and device of the result; None means NumPy.

    Raises:
        PagingError: a length does not fit the table's width, or is negative.
    """
    capacity = block_table.shape[1] * page_size
    wrong = (cache_seqlens < 0) | (cache_seqlens > capacity)
    if wrong.any():
        where = int(np.flatnonzero(wrong)[0])
        limit = f"must be between 0 and the {capacity} keys of a row of the block table"
        raise PagingError(f"cache_seqlens[{where}]", int(cache_seqlens[where]), limit)
    pages = -(-cache_seqlens // page_size)
    indptr = np.zeros(len(pages) + 1, np.int32)
    np.cumsum(pages, out=indptr[1:])
    indices = block_table[np.arange(block_table.shape[1]) < pages[:, None]]
    last = np.where(pages > 0, cache_seqlens - (pages - 1) * page_size, 0).astype(np.int32)
    return CsrTables(
        indptr=array_like(indptr, like),
        indices=array_like(indices.astype(np.int32, copy=False), like),
        last_page_len=array_like(last, like),
        page_size=page_size,
    )
