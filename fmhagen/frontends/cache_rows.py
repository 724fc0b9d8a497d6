"""Rows of a key/value cache by the framework of its tensors: where they go, how they are rotated.

NumPy and PyTorch alike. Nothing here waits for a device.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def lengths_of(cache_seqlens: Any, q: Any, batch: int) -> Any:
    """Return the lengths as (B,) int32 beside q; None stays None."""
    if cache_seqlens is None or hasattr(cache_seqlens, "shape"):
        return cache_seqlens
    if hasattr(q, "new_full"):
        import torch

        return q.new_full((batch,), int(cache_seqlens), dtype=torch.int32)
    return np.full(batch, int(cache_seqlens), np.int32)


def table_of_batch(index: Any) -> Any:
    """Return a block table of one page a sequence: an entry of a contiguous cache."""
    table = index[:, None]
    return table.int() if hasattr(table, "int") else np.ascontiguousarray(table, np.int32)


class PackedRows:
    """Packed sequences of rows, and the same rows with every sequence at the right of its own line.

    A diagonal that ends bottom-right is then where it was, whatever stands left of the rows.
    """

    def __init__(self, offsets: Any, q: Any, rows: int) -> None:
        """Take (B + 1,) offsets of (total, H, d) rows, and the most rows of a sequence."""
        total, last = q.shape[0], max(q.shape[0] - 1, 0)
        offsets = _wide(offsets)
        count = _count(offsets, rows)
        self._source = (offsets[1:, None] - rows + count[None]).clip(0, last)
        place = _count(offsets, total)
        if hasattr(offsets, "new_full"):
            import torch

            owner = torch.searchsorted(offsets, place, right=True) - 1
        else:
            owner = np.searchsorted(offsets, place, side="right") - 1
        self._owner = owner.clip(0, offsets.shape[0] - 2)
        self._column = (rows + place - offsets[self._owner + 1]).clip(0, rows - 1)

    def spread(self, q: Any) -> Any:
        """Return packed rows as (B, rows, H, d)."""
        return q[self._source]

    def gather(self, spread: Any) -> Any:
        """Return the packed rows of (B, rows, ...)."""
        return spread[self._owner, self._column]


def place_of_rows(lengths: Any, rows: Any, cache: Any, table: Any) -> tuple[Any, Any, Any]:
    """Return (page or batch entry, row in it, whether there is room) of each new row, (B, n).

    A row without room gets a place of its own that no other new row of its sequence has.
    """
    count, page_size = rows.shape[1], cache.shape[1]
    capacity = page_size if table is None else page_size * table.shape[1]
    position = _wide(lengths)[:, None] + _count(lengths, count)[None]
    fits = position < capacity
    position = position % capacity
    if table is None:
        page = _count(lengths, rows.shape[0])[:, None] + 0 * position
        return page, position, fits
    batch = _count(lengths, rows.shape[0])[:, None]
    return _wide(table)[batch, position // page_size], position % page_size, fits


def add_rows(cache: Any, rows: Any, place: tuple[Any, Any, Any]) -> None:
    """Write rows (B, n, Hk, depth) to their places, those that have room."""
    page, row, fits = place
    old = cache[page, row]
    fits = fits[..., None, None]
    if hasattr(cache, "new_full"):
        import torch

        cache[page, row] = torch.where(fits, rows, old)
    else:
        cache[page, row] = np.where(fits, rows, old)


def rotate(x: Any, lengths: Any, cos: Any, sin: Any, interleaved: bool, *, advances: bool) -> Any:
    """Return rows (B, n, heads, d) with their first columns rotated by their positions.

    Args:
        x: the rows.
        lengths: (B,): position of the first row of each sequence.
        cos: (positions, rotary_dim / 2).
        sin: the same.
        interleaved: columns 2i and 2i + 1 are a pair, else i and rotary_dim / 2 + i.
        advances: each row is one position further; else all have the first's.
    """
    half = cos.shape[1]
    position = _wide(lengths)[:, None] + (1 if advances else 0) * _count(lengths, x.shape[1])[None]
    position = position.clip(0, cos.shape[0] - 1)
    c, s = (_float(t[position])[:, :, None] for t in (cos, sin))
    turned = x.clone() if hasattr(x, "clone") else x.copy()
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if interleaved
        else (slice(0, half), slice(half, 2 * half))
    )
    a, b = _float(x[..., first]), _float(x[..., second])
    turned[..., first] = _like(a * c - b * s, x)
    turned[..., second] = _like(a * s + b * c, x)
    return turned


def _wide(tensor: Any) -> Any:
    return tensor.long() if hasattr(tensor, "long") else tensor.astype(np.int64)


def _float(tensor: Any) -> Any:
    return tensor.float() if hasattr(tensor, "float") else tensor.astype(np.float32)


def _like(tensor: Any, other: Any) -> Any:
    return tensor.to(other.dtype) if hasattr(tensor, "to") else tensor.astype(other.dtype)


def _count(like: Any, count: int) -> Any:
    if hasattr(like, "new_full"):
        import torch

        return torch.arange(count, device=like.device)
    return np.arange(count)
