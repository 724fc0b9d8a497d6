"""Masks for tests of the language: name, spec, what is known of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

import fmhagen
from fmhagen.expr.functions import call_named
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
    "exact_ratios": MaskCase(
        spec=_mask(
            lambda b, h, q, k: (
                ((q / 41).astype(np.int32) == np.floor(k / 41))
                & ((q * 1.0) % 47 <= (k * 1.0) % 47 + 5)
                & (np.hypot(q - 7, k - 9) >= 12)
            )
        ),
        tight=False,
    ),
    "ratio": MaskCase(spec=_mask(lambda b, h, q, k: (k / 2 <= q) & (q / 3 <= k)), tight=False),
    "squares": MaskCase(spec=_mask(lambda b, h, q, k: k * k <= 50 * q), tight=False),
    "doubled": MaskCase(spec=_mask(lambda b, h, q, k: (2 * k <= q + 3) & (3 * k >= q - 40))),
}


def _score(function: Any, **fields: Any) -> AttentionSpec:
    return AttentionSpec(score_mod=function, **fields)


_SLOPES = np.array([[0.5, 0.25, 0.125]], np.float32)
_BIAS = rng.standard_normal((2, 3, 130, 130)).astype(np.float32)
_RELATIVE = rng.standard_normal((3, 64)).astype(ml_dtypes.bfloat16)
_HALVES = rng.standard_normal(130).astype(np.float16)
_LONGS = rng.integers(-3, 3, 130)
_FLAGS = rng.integers(0, 2, (130,)).astype(bool)
_WEIGHT = np.array(0.75, np.float32)

SCORES: dict[str, MaskCase] = {
    "soft_cap": MaskCase(spec=AttentionSpec(soft_cap=5.0)),
    "alibi": MaskCase(spec=AttentionSpec(alibi=True), params={"alibi_slopes": _SLOPES}),
    "cap_alibi_and_mod": MaskCase(
        spec=_score(lambda s, b, h, q, k: s * 1.5 + (q - k) % 7, soft_cap=5.0, alibi=True),
        params={"alibi_slopes": _SLOPES},
    ),
    "bias": MaskCase(
        spec=_score(lambda s, b, h, q, k: s + _BIAS[b, h, q, k]), params={"BIAS": _BIAS}
    ),
    "relative_bias": MaskCase(
        spec=_score(lambda s, b, h, q, k: s + _RELATIVE[h, np.clip(q - k, -31, 32) + 31]),
        params={"RELATIVE": _RELATIVE},
    ),
    "several_dtypes": MaskCase(
        spec=_score(
            lambda s, b, h, q, k: np.where(_FLAGS[k], s * _HALVES[q], s + _LONGS[k]) * _WEIGHT
        ),
        params={"FLAGS": _FLAGS, "HALVES": _HALVES, "LONGS": _LONGS, "WEIGHT": _WEIGHT},
    ),
    "hiding": MaskCase(spec=_score(lambda s, b, h, q, k: np.where(q == k, -np.inf, s))),
    "functions": MaskCase(
        spec=_score(
            lambda s, b, h, q, k: (
                np.exp(-abs(s))
                + np.log(s * s + 1)
                + np.sqrt(abs(s) + 0.5)
                + np.exp2(s / 8)
                + np.log2(abs(s) + 2)
                + 1 / (2 + s**2)
                + np.floor(s)
                + np.ceil(s)
                + np.trunc(s)
                + np.sign(s)
                + np.minimum(s, 1)
                + np.maximum(s, k)
                + np.clip(s, -1, 1)
            )
        )
    ),
    "made_of_others": MaskCase(
        spec=_score(
            lambda s, b, h, q, k: (
                np.sin(s)
                + np.cos((q - k) * 0.1)
                + np.round(s * 2)
                + np.logaddexp(s, 0.1 * k)
                + np.isinf(np.where(q > k, -np.inf, s))
                + np.log10(abs(s) + 1)
                + (-1) ** (q + k)
                + (0.3 * s) ** 9
                + np.hypot(s, 0.1 * q)
            )
        )
    ),
    "sigmoid": MaskCase(
        spec=_score(lambda s, b, h, q, k: fmhagen.sigmoid(s) * fmhagen.rsqrt(abs(s) + 1))
    ),
    "bits": MaskCase(
        spec=_score(
            lambda s, b, h, q, k: s + ((q ^ k) & 5) + (~q | 2) + ((q << 2) >> 1) - (-q // 3) % 4
        )
    ),
    "logic": MaskCase(
        spec=_score(
            lambda s, b, h, q, k: (
                np.where(((q < k) & ~(k == 3)) | ((h != 1) ^ (q > 2 * k)), s, -s)
                + (q < k)
                + (s > 0) * 2
            )
        )
    ),
    "float_floor": MaskCase(spec=_score(lambda s, b, h, q, k: (k * 0.5) // 3 + (k * 1.5) % 4 + s)),
    "power": MaskCase(
        spec=_score(lambda s, b, h, q, k: 0.5 ** (k / 16.0) + s**3 + (abs(s) + 1) ** -0.5)
    ),
    "angles": MaskCase(
        spec=_score(
            lambda s, b, h, q, k: (
                np.arctan(s)
                + np.arctan2(s - 1.25, q - k + 0.5)
                + np.arcsin(0.9 * np.tanh(s))
                + np.arccos(0.9 * np.sin(s))
                + np.sinc(0.2 * s)
            )
        )
    ),
    "hyperbolas": MaskCase(
        spec=_score(
            lambda s, b, h, q, k: (
                np.arcsinh(s)
                + np.arccosh(1.5 + abs(s))
                + np.arctanh(0.9 * np.tanh(s))
                + np.cbrt(s)
                + np.logaddexp2(s, 0.1 * q)
            )
        )
    ),
    "shapes": MaskCase(
        spec=_score(
            lambda s, b, h, q, k: (
                call_named("mish", "mish", (s,))
                + call_named("hardswish", "hardswish", (s,))
                + call_named("selu", "selu", (s,))
                + call_named("celu", "celu", (s, 1.5))
                + call_named("softshrink", "softshrink", (s,))
                + call_named("erfc", "erfc", (s,))
                + call_named("special_ndtr", "ndtr", (s,))
            )
        )
    ),
    "choices": MaskCase(
        spec=_score(
            lambda s, b, h, q, k: (
                np.select([np.isin(k % 7, [1, 3]), k > q], [s * 0.5, np.copysign(s, q - k)], s + 1)
                + np.heaviside(s, 0.5)
                + np.isclose(q * 0.1, k * 0.1)
                + call_named("xlogy", "xlogy", (q % 3, abs(s) + 1))
                + np.nan_to_num(np.where(q == k, np.inf, s), posinf=2.0)
            )
        )
    ),
}
