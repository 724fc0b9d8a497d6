"""Masks and sinks over a key/value cache: right, and hidden pages are never read."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from cache_cases import HUGE_PAGE, make_cache
from test_cache_kernels import PLAIN, kernel, run

from fmhagen.spec import AttentionSpec

LENGTHS = (0, 130, 1, 333, 700)


def hide(cache: Any, spec: AttentionSpec, visible: list[tuple[int, int]]) -> Any:
    """Take the table entries of pages without a visible key away, and fill the keys with NaN."""
    page = spec.page_size
    assert page is not None
    table, k, v = cache.table.copy(), cache.k.copy(), cache.v.copy()
    for b, (begin, end) in enumerate(visible):
        for n in range(int(cache.lengths[b])):
            if begin <= n < end:
                continue
            k[table[b, n // page], n % page] = v[table[b, n // page], n % page] = np.nan
    for b, (begin, end) in enumerate(visible):
        pages = np.arange(table.shape[1])
        seen = (pages * page < end) & ((pages + 1) * page > begin) & (end > begin)
        table[b, ~seen] = HUGE_PAGE
    return dataclasses.replace(cache, table=table, k=k, v=v)


@pytest.mark.parametrize("page_size", [1, 3, 8, 16, 64])
@pytest.mark.parametrize(("left", "seqlen_q"), [(20, 1), (100, 4), (0, 3), (500, 2)])
def test_pages_left_of_a_window_are_never_read(page_size: int, left: int, seqlen_q: int) -> None:
    spec = dataclasses.replace(PLAIN, page_size=page_size, causal=True, window_left=left)
    cache = make_cache(spec, lengths=LENGTHS, seqlen_q=seqlen_q)
    visible = [(max(0, n - seqlen_q - left), n) for n in LENGTHS]
    right = run(spec, cache)
    # The reference gathers whole pages, and so cannot follow entries that name none.
    hidden = hide(cache, spec, visible)
    o, lse = kernel(spec, 0, 4)(
        hidden.q,
        hidden.k,
        hidden.v,
        cache_seqlens=hidden.lengths,
        block_table=hidden.table,
        return_lse=True,
    )
    assert np.array_equal(o.view(np.uint16), right[0].view(np.uint16))
    assert np.array_equal(lse, right[1])


@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize("window", [(10, 3), (None, 2), (200, None), (0, 0), (64, 64)])
def test_windows(page_size: int | None, window: tuple[int | None, int | None]) -> None:
    spec = dataclasses.replace(
        PLAIN, page_size=page_size, window_left=window[0], window_right=window[1]
    )
    run(spec, make_cache(spec, lengths=LENGTHS, seqlen_q=5))


MASKS = {
    "sinks and a window": "((kv_idx < 4) | (q_idx + seqlen_k - seqlen_q - kv_idx < 40))"
    " & (kv_idx <= q_idx + seqlen_k - seqlen_q)",
    "two bands": "((kv_idx >= 70) & (kv_idx < 90)) | ((kv_idx >= 300) & (kv_idx < 310))",
    "prefix": "(kv_idx < 30) | (kv_idx <= q_idx)",
    "every third key": "kv_idx % 3 == 0",
    "by head": "kv_idx < 50 * (h + 1)",
    "by head and row": "kv_idx % (h + 2) == q_idx % 2",
    "nothing": "kv_idx < 0",
    "all": "kv_idx >= 0",
}


@pytest.mark.parametrize("page_size", [None, 16, 1])
@pytest.mark.parametrize("mask", MASKS.values(), ids=list(MASKS))
def test_masks(mask: str, page_size: int | None) -> None:
    spec = dataclasses.replace(PLAIN, page_size=page_size, mask_mod=mask)
    run(spec, make_cache(spec, lengths=LENGTHS, seqlen_q=3), compute_units=6)


@pytest.mark.parametrize("seqlen_q", [1, 3])
def test_sinks(seqlen_q: int) -> None:
    spec = dataclasses.replace(PLAIN, causal=True, sink=True, page_size=16)
    sinks = np.array((0.5, -3.0, 9.0, -np.inf), np.float32)
    cache = make_cache(spec, lengths=LENGTHS, seqlen_q=seqlen_q)
    whole = run(spec, cache, sinks=sinks)
    for splits in (1, 4):
        o, lse = run(spec, cache, sinks=sinks, num_splits=splits)
        seen = np.isfinite(lse)
        assert np.abs(lse[seen] - whole[1][seen]).max() < 1e-4
        assert np.abs(o.astype(np.float64) - whole[0].astype(np.float64)).max() < 0.02
