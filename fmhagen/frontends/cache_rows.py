"""Lengths, tables and packed rows of a call over a cache, by the framework of its tensors.

NumPy and PyTorch alike. Nothing here waits for a device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fmhagen.paging.csr import CsrTables, tables_on_device
from fmhagen.paging.tables import PageTables


def lengths_of(cache_seqlens: Any, q: Any, batch: int) -> Any:
    """Return the lengths as (B,) int32 beside q; None stays None."""
    if cache_seqlens is None or len(getattr(cache_seqlens, "shape", ())) > 0:
        return cache_seqlens
    if hasattr(cache_seqlens, "expand"):
        return cache_seqlens.expand(batch).int().contiguous()  # a tensor that may lie on a device
    if hasattr(q, "new_full"):
        import torch

        return q.new_full((batch,), int(cache_seqlens), dtype=torch.int32)
    return np.full(batch, int(cache_seqlens), np.int32)


def table_of_batch(index: Any) -> Any:
    """Return a block table of one page a sequence: an entry of a contiguous cache."""
    table = index[:, None]
    return table.int() if hasattr(table, "int") else np.ascontiguousarray(table, np.int32)


def table_and_lengths(tables: PageTables | CsrTables) -> tuple[Any, Any]:
    """Return block table and lengths of tables in either form, where they lie."""
    if isinstance(tables, CsrTables):
        width = tables.indices.shape[0] if tables.max_pages is None else tables.max_pages
        tables = tables_on_device(
            *(tables.indptr, tables.indices, tables.last_page_len),
            page_size=tables.page_size,
            width=max(1, width),
        )
    return tables.block_table, tables.cache_seqlens


class PackedRows:
    """Packed sequences of rows, and the same rows with every sequence at the right of its own line.

    A diagonal that ends bottom-right is then where it was, whatever stands left of the rows.
    """

    def __init__(self, offsets: Any, q: Any, rows: int, used: Any = None) -> None:
        """Take (B + 1,) offsets of (total, H, d) rows, and the most rows of a sequence.

        Of each sequence the first `used` rows count, (B,); the others come back as any row.
        """
        total, last = q.shape[0], max(q.shape[0] - 1, 0)
        offsets = _wide(offsets)
        count = _count(offsets, rows)
        ends = offsets[1:]
        if used is not None:
            ends = ends - (ends - offsets[:-1] - _wide(used).clip(0)).clip(0)
        self._source = (ends[:, None] - rows + count[None]).clip(0, last)
        place = _count(offsets, total)
        if hasattr(offsets, "new_full"):
            import torch

            owner = torch.searchsorted(offsets, place, right=True) - 1
        else:
            owner = np.searchsorted(offsets, place, side="right") - 1
        self._owner = owner.clip(0, offsets.shape[0] - 2)
        self._column = (rows + place - ends[self._owner]).clip(0, max(rows - 1, 0))

    def spread(self, q: Any) -> Any:
        """Return packed rows as (B, rows, H, d)."""
        return q[self._source]

    def gather(self, spread: Any) -> Any:
        """Return the packed rows of (B, rows, ...)."""
        return spread[self._owner, self._column]


def _wide(tensor: Any) -> Any:
    return tensor.long() if hasattr(tensor, "long") else tensor.astype(np.int64)


def _count(like: Any, count: int) -> Any:
    if hasattr(like, "new_full"):
        import torch

        return torch.arange(count, device=like.device)
    return np.arange(count)
