"""Masks for tests of the language: name, spec, what is known of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fmhagen.spec import AttentionSpec

rng = np.random.default_rng(5)


@dataclass(frozen=True, kw_only=True)
class MaskCase:
    """One mask.

    Attributes:
        spec: it.
        params: what it reads at run time.
        tight: every tile is classified exactly.
        bands: how many ranges of keys it has.
    """

    spec: AttentionSpec
    params: dict[str, Any] = field(default_factory=dict)
    tight: bool = True
    bands: int = 1


def _mask(function: Any, **fields: Any) -> AttentionSpec:
    return AttentionSpec(mask_mod=function, **fields)


_PREFIX = np.array([5, 40], np.int32)
_DOCUMENT = np.sort(rng.integers(0, 6, 256)).astype(np.int32)
_START = np.searchsorted(_DOCUMENT, _DOCUMENT, "left").astype(np.int32)
_STOP = np.searchsorted(_DOCUMENT, _DOCUMENT, "right").astype(np.int32)

MASKS: dict[str, MaskCase] = {
    "none": MaskCase(spec=AttentionSpec()),
    "causal": MaskCase(spec=AttentionSpec(causal=True)),
    "causal_top_left": MaskCase(spec=AttentionSpec(causal=True, anchor="top_left")),
    "window": MaskCase(spec=AttentionSpec(causal=True, window_left=20)),
    "window_both": MaskCase(spec=AttentionSpec(window_left=9, window_right=14)),
    "window_right": MaskCase(spec=AttentionSpec(window_right=14, anchor="top_left")),
    "window_of_one": MaskCase(spec=AttentionSpec(window_left=0, window_right=0)),
    "sinks_and_window": MaskCase(
        spec=_mask(lambda b, h, q, k: ((k < 4) | (q - k < 20)) & (q >= k)), bands=2
    ),
    "many_sinks_and_window": MaskCase(
        spec=_mask(lambda b, h, q, k: (k <= q) & ((k < 37) | (k > q - 24))), bands=2
    ),
    "prefix": MaskCase(
        spec=_mask(lambda b, h, q, k: (k < _PREFIX[b]) | (q >= k)), params={"PREFIX": _PREFIX}
    ),
    "chunks": MaskCase(spec=_mask(lambda b, h, q, k: q // 24 == k // 24)),
    "causal_chunks": MaskCase(spec=_mask(lambda b, h, q, k: (q // 24 == k // 24) & (k <= q))),
    "chunks_by_shift": MaskCase(spec=_mask(lambda b, h, q, k: (q >> 4) == (k >> 4))),
    "block_causal": MaskCase(spec=_mask(lambda b, h, q, k: q // 32 >= k // 32)),
    "upper": MaskCase(spec=_mask(lambda b, h, q, k: k >= q)),
    "diagonal_hidden": MaskCase(spec=_mask(lambda b, h, q, k: k != q), bands=2),
    "some_rows": MaskCase(spec=_mask(lambda b, h, q, k: (q >= 30) & (q < 70) & (k <= q))),
    "rows_in_two_ways": MaskCase(
        spec=_mask(lambda b, h, q, k: np.where(q < 40, k < 10, (k > 20) & (k <= q))), bands=2
    ),
    "heads": MaskCase(
        spec=_mask(lambda b, h, q, k: np.where(h < 1, k <= q, abs(q - k) < 12)), bands=1
    ),
    "not": MaskCase(spec=_mask(lambda b, h, q, k: ~((k > q) | (q - k >= 20)))),
    "ends_of_documents": MaskCase(
        spec=_mask(
            "start: i32[1, non_decreasing]; stop: i32[1, non_decreasing];"
            "(start[q_idx] <= kv_idx) & (kv_idx < stop[q_idx])"
        ),
        params={"start": _START, "stop": _STOP},
    ),
    "sorted_documents": MaskCase(
        spec=_mask(
            "document: i32[1, non_decreasing]; document[q_idx] == document[kv_idx]", causal=True
        ),
        params={"document": _DOCUMENT},
        tight=False,
    ),
    "documents": MaskCase(
        spec=_mask(lambda b, h, q, k: _DOCUMENT[q] == _DOCUMENT[k], causal=True),
        params={"DOCUMENT": _DOCUMENT},
        tight=False,
    ),
    "dilated_blocks": MaskCase(
        spec=_mask(lambda b, h, q, k: (k <= q) & ((q // 32 - k // 32) % 3 == 0)), tight=False
    ),
    "dilated": MaskCase(spec=_mask(lambda b, h, q, k: (k <= q) & ((q - k) % 3 == 0)), tight=False),
    "neighbours_in_a_plane": MaskCase(
        spec=_mask(lambda b, h, q, k: (abs(q // 16 - k // 16) <= 2) & (abs(q % 16 - k % 16) <= 2)),
        tight=False,
    ),
    "falling": MaskCase(spec=_mask(lambda b, h, q, k: q + k < 100), tight=False),
    "xor": MaskCase(spec=_mask(lambda b, h, q, k: (k <= q) ^ (k < 50)), tight=False, bands=2),
    "nothing": MaskCase(spec=_mask(lambda b, h, q, k: (k < q) & (k > q))),
    "squares": MaskCase(spec=_mask(lambda b, h, q, k: k * k <= 50 * q), tight=False),
    "doubled": MaskCase(spec=_mask(lambda b, h, q, k: (2 * k <= q + 3) & (3 * k >= q - 40))),
}
