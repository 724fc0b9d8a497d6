"""What a kernel depends on of the cache that a call gives it."""

from __future__ import annotations

from typing import Any

from fmhagen.errors import InvalidSpecError
from fmhagen.runtime.tensors import view
from fmhagen.select import SHARED_ROWS, class_of_rows
from fmhagen.spec import CacheLayout

Cache = tuple[Any, int | None, str, int | None, int]
"""Element type, page size and layout of a cache; hints: query rows, and the heads of a group."""


def cache_of(
    q: Any,
    k: Any,
    layout: str,
    is_paged: bool,
    cache_layout: str,
    is_packed: bool,
    most_rows: int | None,
    asks_head: bool,
) -> Cache:
    """Return what a kernel depends on of a cache, and of how many query rows there are."""
    q_shape, k_shape = (
        t.shape if hasattr(t, "shape") else view(name, t).shape for name, t in (("q", q), ("k", k))
    )
    if len(k_shape) != 4:
        raise InvalidSpecError("k", tuple(k_shape), "a cache has four dimensions")
    if not is_packed and len(q_shape) != 4:
        limit = "must have four dimensions where queries are not packed"
        raise InvalidSpecError("q", tuple(q_shape), limit)
    heads_first = cache_layout == CacheLayout.HND
    page_size = k_shape[2 if heads_first else 1] if is_paged else None
    dtype = k.dtype if hasattr(k, "dtype") else view("k", k).dtype
    # NOTE: shapes that do not fit are refused by the kernel.
    heads = q_shape[str(layout).index("h") - 4] if len(q_shape) > 2 else 1
    heads_kv = k_shape[1 if heads_first else 2]
    group = 1 if asks_head or not heads_kv else max(1, heads // heads_kv)
    if is_packed:
        hint = None if most_rows is None else class_of_rows(most_rows, group, heads) or SHARED_ROWS
    else:
        hint = class_of_rows(q_shape[str(layout).index("s")], group, q_shape[0] * heads)
    return dtype, page_size, str(cache_layout), hint, group
