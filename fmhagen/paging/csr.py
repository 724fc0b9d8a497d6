"""CSR: the pages of a batch one sequence after another, as FlashInfer takes them.

Tables on the host are checked; those on a device are turned there by their own framework, which
reads nothing back, so that a captured graph serves any tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fmhagen.errors import PagingError
from fmhagen.paging import arguments
from fmhagen.paging.interop import array_like
from fmhagen.paging.tables import Int32, PageTables, tables_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CsrTables:
    """The pages of a batch one sequence after another, int32, as FlashInfer takes them.

    Attributes:
        indptr: (B + 1,) where each sequence's pages begin in `indices`, and their end.
        indices: (indptr[B],) page numbers.
        last_page_len: (B,) keys in the last page of each sequence, 1 to page_size; 0 for a
            sequence without keys, which has no page.
        page_size: keys a page.
        max_pages: the most pages of a sequence, where that is known; a block table has as many
            columns.
    """

    indptr: Any
    indices: Any
    last_page_len: Any
    page_size: int
    max_pages: int | None = None


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
        max_pages=int(pages.max(initial=0)),
    )


def tables_of_csr(
    indptr: Any,
    indices: Any,
    last_page_len: Any,
    page_size: int,
    *,
    width: int | None = None,
    like: Any = None,
) -> PageTables:
    """Turn FlashInfer's CSR form into a block table: the inverse of `csr_of`.

    On a device the values cannot be checked, since nothing waits for them: a sequence of more than
    `width` pages keeps its first ones, and entries that lie outside `indices` are any of its pages.

    Args:
        indptr: (B + 1,) integers, where each sequence's pages begin, and their end; on the host, or
            all three on one device.
        indices: at least indptr[B] page numbers.
        last_page_len: (B,) keys in the last page of each sequence; whatever stands there for a
            sequence without pages has no effect.
        page_size: keys a page.
        width: columns; None means those of the longest sequence, at least 1, which must be said
            of tables on a device.
        like: a tensor that names the framework and device of the result; None means NumPy, or the
            device of the tables.

    Raises:
        PagingError: a value is no integer, decreases, or does not fit the others.
    """
    places = [_is_on_device(part) for part in (indptr, indices, last_page_len)]
    if any(places):
        if width is None:
            limit = "must be given: the longest sequence of tables on a device is not known"
            raise PagingError("width", None, limit)
        if not all(places):
            name = ("indptr", "indices", "last_page_len")[places.index(False)]
            raise PagingError(name, "on the host", "must lie on the device of the others")
        return tables_on_device(indptr, indices, last_page_len, page_size, width)
    ends = _integers("indptr", indptr)
    pages = _integers("indices", indices)
    last = _integers("last_page_len", last_page_len)
    if not len(ends) or ends[0] != 0 or (np.diff(ends) < 0).any():
        raise PagingError("indptr", ends.tolist(), "must begin with 0 and never decrease")
    if ends[-1] > len(pages):
        limit = f"must be at most the {len(pages)} indices"
        raise PagingError(f"indptr[{len(ends) - 1}]", int(ends[-1]), limit)
    counts = np.diff(ends)
    if len(last) != len(counts):
        limit = f"must be as many as the {len(counts)} sequences of indptr"
        raise PagingError("last_page_len", len(last), limit)
    wrong = (counts > 0) & ((last < 1) | (last > page_size))
    if wrong.any():
        where = int(np.flatnonzero(wrong)[0])
        limit = f"must be between 1 and the page size of {page_size}"
        raise PagingError(f"last_page_len[{where}]", int(last[where]), limit)

    def fill(table: Int32) -> None:
        table[np.arange(table.shape[1]) < counts[:, None]] = pages[: ends[-1]]

    lengths = np.where(counts > 0, (counts - 1) * page_size + last, 0).astype(np.int32)
    longest = int(counts.max(initial=0))
    return tables_of(fill, lengths, longest, page_size, width=width, like=like, out=None)


def tables_on_device(
    indptr: Any, indices: Any, last_page_len: Any, page_size: int, width: int
) -> PageTables:
    """Turn CSR form into a block table by the framework of its tensors; see `tables_of_csr`.

    Raises:
        PagingError: a tensor has another number of sequences, or its elements are no integers.
    """
    batch, width = indptr.shape[0] - 1, arguments.size("width", width)
    for name, part, rows in (
        ("indptr", indptr, batch + 1),
        ("indices", indices, indices.shape[0]),
        ("last_page_len", last_page_len, batch),
    ):
        kind = str(part.dtype).removeprefix("torch.")
        if batch < 0 or tuple(part.shape) != (rows,) or kind not in ("int32", "int64"):
            limit = f"must be int32 or int64, on the device, of {rows} elements"
            raise PagingError(name, f"{kind} of shape {tuple(part.shape)}", limit)
    begin, end = indptr[:-1], indptr[1:]
    pages = end - begin
    column = _count(indptr, width)
    inside = column[None] < pages[:, None]
    if indices.shape[0]:
        at = (begin[:, None] + column[None]).clip(0, indices.shape[0] - 1)
        table = indices[at] * inside
    else:
        table = 0 * (begin[:, None] + column[None])
    kept = pages.clip(0, width)
    lengths = (pages - 1) * page_size + last_page_len
    lengths = lengths.clip(0, width * page_size) * (kept > 0)
    return PageTables(block_table=_int32(table), cache_seqlens=_int32(lengths), page_size=page_size)


def _is_on_device(part: Any) -> bool:
    device = getattr(part, "device", None)
    if hasattr(part, "data_ptr"):
        return str(device).partition(":")[0] != "cpu"
    return type(part).__module__.partition(".")[0] == "cupy"


def _count(like: Any, count: int) -> Any:
    if hasattr(like, "data_ptr"):
        import torch

        return torch.arange(count, device=like.device)
    if type(like).__module__.partition(".")[0] == "cupy":
        import importlib

        return importlib.import_module("cupy").arange(count)
    return np.arange(count)


def _int32(tensor: Any) -> Any:
    return tensor.int() if hasattr(tensor, "data_ptr") else tensor.astype(np.int32)


def _integers(name: str, values: Any) -> npt.NDArray[np.int64]:
    """Return integers of any width as int64: never the bytes of one read as another."""
    found = np.asarray(values)
    if found.ndim != 1 or not (np.issubdtype(found.dtype, np.integer) or not found.size):
        limit = "must be a one-dimensional list or array of integers"
        raise PagingError(name, f"{found.dtype} of shape {found.shape}", limit)
    return found.astype(np.int64)
