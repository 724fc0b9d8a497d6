"""What a kernel depends on of the cache that a call gives it."""

from __future__ import annotations

from typing import Any

from fmhagen.errors import InvalidSpecError
from fmhagen.runtime.tensors import view
from fmhagen.select.rules.rows import class_of_heads, class_of_packed_rows, class_of_rows
from fmhagen.spec import CacheLayout

Cache = tuple[Any, int | None, str]
"""Element type, page size and layout of a cache."""

Hints = tuple[int | None, int | None, int | None]
"""Query rows in classes, query heads of a group, and of all; None where they choose nothing."""


def cache_of(k: Any, is_paged: bool, cache_layout: str) -> Cache:
    """Return what a kernel depends on of a cache.

    Raises:
        InvalidSpecError: it has other dimensions than a cache.
    """
    shape = _shape("k", k)
    if len(shape) != 4:
        raise InvalidSpecError("k", tuple(shape), "a cache has four dimensions")
    page_size = shape[2 if cache_layout == CacheLayout.HND else 1] if is_paged else None
    dtype = k.dtype if hasattr(k, "dtype") else view("k", k).dtype
    return dtype, page_size, str(cache_layout)


def hints_of(
    q: Any,
    k: Any,
    layout: str,
    key_layout: str,
    is_packed: bool,
    most_rows: int | None,
    heads_may_share: bool,
) -> Hints:
    """Return hints of the queries of a call: packed, or over a cache.

    Shapes that do not fit are refused by the kernel.

    Args:
        q, k: tensors; k may be a cache.
        layout: order of q's axes, bshd or bhsd; packed sequences have no batch.
        key_layout: the same of k.
        is_packed: sequences of q lie one behind another.
        most_rows: of them, if they are packed and the caller knows.
        heads_may_share: nothing asks for the head, so that heads of a group may share tiles.

    Raises:
        InvalidSpecError: queries that are not packed have other dimensions than four.
    """
    shape, k_shape = _shape("q", q), _shape("k", k)
    if not is_packed and len(shape) != 4:
        limit = "must have four dimensions where queries are not packed"
        raise InvalidSpecError("q", tuple(shape), limit)
    if len(shape) < 3 or len(k_shape) < 3:
        return None, None, None
    heads = shape[layout.index("h") - 4]
    group = max(1, heads // max(1, k_shape[key_layout.index("h") - 4])) if heads_may_share else 1
    if is_packed:
        return class_of_packed_rows(most_rows), group, None
    rows, all_heads = shape[layout.index("s")], shape[0] * heads
    few = class_of_heads(rows, group, all_heads)
    return class_of_rows(rows, group, all_heads), group, few


def _shape(name: str, tensor: Any) -> Any:
    return tensor.shape if hasattr(tensor, "shape") else view(name, tensor).shape
