"""Block tables with entries that name no page where a key is seen: no read leaves the cache."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from cache_cases import HUGE_PAGE, call_kernel, make_cache
from test_cache_kernels import PLAIN, kernel
from test_cache_small import scales_of


@pytest.mark.parametrize("target", ["sm90", "gfx942"])
@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("small", [{}, {"kv_dtype": "e4m3", "kv_scale": "token"}], ids=str)
def test_entries_that_name_no_page(target: str, page_size: int, small: dict[str, str]) -> None:
    """The emulator refuses any access outside a tensor; other sequences give the same bits."""
    spec = dataclasses.replace(PLAIN, page_size=page_size, causal=True, **small)
    cache = make_cache(spec, lengths=(70, 100, 33), target=target)
    assert cache.table is not None
    more = scales_of(spec, cache)
    compiled = kernel(spec, 0, 4, target)

    def outcome() -> tuple[np.ndarray, np.ndarray]:
        o, lse = call_kernel(compiled, cache, **more)
        return o.view(np.uint16), lse

    right = outcome()
    pages = cache.k.shape[0]
    used = -(-100 // page_size)
    for entry in (-1, HUGE_PAGE, pages, -(2**31)):
        before = cache.table[1].copy()
        cache.table[1, : used : max(1, used // 4)] = entry
        for found, wanted in zip(outcome(), right, strict=True):
            assert np.array_equal(found[[0, 2]], wanted[[0, 2]])
        cache.table[1] = before
    for found, wanted in zip(outcome(), right, strict=True):
        assert np.array_equal(found, wanted)
