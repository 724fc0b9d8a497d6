"""Many query rows over caches of 8 bits on the emulator, against float64 with poison everywhere."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from cache_cases import Cache, make_cache
from test_cache_small import scales_of
from test_prefill_kernels import CAUSAL, LENGTHS, ROWS, kernel, run, run_packed

from fmhagen.spec import AttentionSpec

TARGETS = ("gfx942",)


def spec_of(kv_dtype: str, **more: Any) -> AttentionSpec:
    return dataclasses.replace(CAUSAL, **{"kv_dtype": kv_dtype, **more})


def roundings(spec: AttentionSpec) -> float:
    """Return the roundings that O may show: a value times its own factor is rounded, too."""
    return 1.5 if spec.kv_scale == "token" else 1.0


def drawn(spec: AttentionSpec, target: str, **more: Any) -> tuple[Cache, dict[str, Any]]:
    """Return a cache and its factors; those of tokens that belong to no sequence are NaN."""
    small = spec.kv_dtype == "int8"
    cache = make_cache(spec, target=target, spread=0.02 if small else 1, **more)
    scales = scales_of(spec, cache)
    if spec.kv_scale == "token" and not small:
        belongs = np.isfinite(cache.k.astype(np.float64)).all(axis=3)
        for scale in scales.values():
            scale[~belongs] = np.nan
    return cache, scales


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("kv_dtype", "changes"),
    [
        ("e4m3", {"page_size": 16}),
        ("e5m2", {"page_size": 24, "kv_scale": "head"}),
        ("int8", {"kv_scale": "tensor"}),
        ("e4m3", {"page_size": 1, "kv_scale": "token"}),
        ("int8", {"page_size": 48, "kv_scale": "token"}),
        ("e5m2", {"kv_scale": "token"}),
    ],
)
def test_packed_rows(kv_dtype: str, changes: dict[str, Any], target: str) -> None:
    spec = spec_of(kv_dtype, varlen=True, **changes)
    cache, scales = drawn(spec, target, lengths=LENGTHS, heads=2, heads_kv=2, room=40)
    gap = 3 if spec.page_size == 24 else 0
    run_packed(spec, cache, ROWS, gap=gap, target=target, roundings=roundings(spec), **scales)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("kv_dtype", "changes"),
    [
        ("e4m3", {"head_dim": 64, "page_size": 16, "kv_scale": "token", "soft_cap": 3.0}),
        ("e4m3", {"head_dim": 192, "kv_scale": "token", "page_size": 16}),
        ("int8", {"head_dim": 256, "kv_scale": "head", "dtype": "fp16", "cache_layout": "hnd"}),
        ("e5m2", {"head_dim": 80, "kv_scale": "head", "page_size": 7, "soft_cap": 2.0}),
        ("e4m3", {"head_dim": 16, "page_size": 16, "kv_scale": "token"}),
        ("e4m3", {"kv_scale": "token", "window_left": 40, "page_size": 16, "causal": False}),
        ("int8", {"kv_scale": "head", "window_left": 40, "max_logit": True}),
        ("e4m3", {"kv_scale": "head", "sink": True, "dtype": "fp16", "page_size": 3}),
        ("e5m2", {"kv_scale": "token", "mask_mod": "kv_idx % 3 != 1"}),
    ],
)
def test_kinds_of_spec(kv_dtype: str, changes: dict[str, Any], target: str) -> None:
    spec = spec_of(kv_dtype, **changes)
    lengths = (0, 200, 70)
    cache, scales = drawn(spec, target, lengths=lengths, seqlen_q=100, heads=4, heads_kv=2, room=40)
    if spec.sink:
        scales["sinks"] = np.array((0.5, -3.0, 9.0, -np.inf), np.float32)
    assert kernel(spec, target=target).plan.split is None
    run(spec, cache, target=target, roundings=roundings(spec), **scales)
