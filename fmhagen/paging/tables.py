"""Tables: which pages a batch of sequences reads, as the kernels take it.

A rectangle with a row of page numbers for each sequence (FlashAttention, vLLM); `csr` has the other
form of the same, the rows one after another with where each begins (FlashInfer).
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
class CascadeTables:
    """A batch in two parts: the prefix that all sequences share, once, and the rest of each.

    Attributes:
        prefix: tables of a batch of 1, whose keys every query row of the whole batch sees.
        rest: tables of the batch, which begin behind the prefix.
        prefix_length: keys of the prefix, a multiple of the page size; 0 where nothing is shared.
    """

    prefix: PageTables
    rest: PageTables
    prefix_length: int


def split_tables(tables: PageTables, shared: int, queries: int, like: Any = None) -> CascadeTables:
    """Split the tables of a batch behind its shared prefix.

    Args:
        tables: NumPy tables of the batch, whose first `shared` keys lie in the same pages.
        shared: keys.
        queries: query rows of each sequence, the last of its keys' positions; the prefix is cut
            so that the first of them sees all of it under a causal mask.
        like: a tensor that names the framework and device of the result; None means NumPy.
    """
    size, lengths = tables.page_size, tables.cache_seqlens
    seen = int(lengths.min()) - queries + 1 if len(lengths) else 0
    pages = max(0, min(shared, seen)) // size
    prefix = PageTables(
        block_table=array_like(tables.block_table[:1, : max(1, pages)].copy(), like),
        cache_seqlens=array_like(np.full(len(lengths[:1]), pages * size, np.int32), like),
        page_size=size,
    )
    # A table has a column at least, so one of the prefix stays where it is all that there is.
    first = min(pages, tables.block_table.shape[1] - 1)
    rest = PageTables(
        block_table=array_like(tables.block_table[:, first:].copy(), like),
        cache_seqlens=array_like(lengths - pages * size, like),
        page_size=size,
    )
    return CascadeTables(prefix=prefix, rest=rest, prefix_length=pages * size)


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
