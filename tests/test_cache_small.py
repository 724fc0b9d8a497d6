"""Caches of 8-bit numbers: every bit pattern, scales of every kind, garbage without effect."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cache_cases import DTYPES, call_kernel, make_cache
from test_cache_kernels import PLAIN, kernel, run

from fmhagen.errors import InvalidSpecError, TensorError
from fmhagen.spec import AttentionSpec

LENGTHS = (0, 130, 1, 333)
SMALL = ("e4m3", "e5m2", "int8")


def spec_of(kv_dtype: str, **more: Any) -> AttentionSpec:
    return dataclasses.replace(PLAIN, **{"kv_dtype": kv_dtype, "causal": True, **more})


def scales_of(spec: AttentionSpec, cache: Any, seed: int = 0) -> dict[str, Any]:
    """Draw factors that keep scores and values of ordinary size, over several powers of two."""
    rng = np.random.default_rng(seed)
    shapes = {"tensor": (1,), "head": (len(cache.lengths), 2), "token": cache.k.shape[:3]}
    if spec.kv_scale == "none":
        return {}
    size = 1 / 64 if spec.kv_dtype == "int8" else 1.0
    return {
        name: (size * 2.0 ** rng.uniform(-3, 1, shapes[spec.kv_scale])).astype(np.float32)
        for name in ("k_scale", "v_scale")
    }


@pytest.mark.parametrize("kv_scale", ["none", "tensor", "head", "token"])
@pytest.mark.parametrize("page_size", [None, 16, 1])
@pytest.mark.parametrize("kv_dtype", SMALL)
def test_small_caches(kv_dtype: str, page_size: int | None, kv_scale: str) -> None:
    spec = spec_of(kv_dtype, page_size=page_size, kv_scale=kv_scale)
    cache = make_cache(spec, lengths=LENGTHS, seqlen_q=3, spread=0.02 if kv_dtype == "int8" else 1)
    scales = scales_of(spec, cache)
    run(spec, cache, **scales)


@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(16, 16), (64, 64), (80, 96), (192, 128)])
@pytest.mark.parametrize("page_size", [None, 16, 1])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_head_dims(head_dim: int, head_dim_v: int, page_size: int | None, dtype: str) -> None:
    spec = spec_of(
        "e4m3",
        dtype=dtype,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        page_size=page_size,
        kv_scale="token",
    )
    cache = make_cache(spec, lengths=(100, 290))
    run(spec, cache, compute_units=6, **scales_of(spec, cache))


@pytest.mark.parametrize("kv_dtype", SMALL)
def test_every_bit_pattern_is_read_exactly(kv_dtype: str) -> None:
    # One key: O is its value. 256 columns of 16 heads hold every pattern.
    spec = spec_of(kv_dtype, head_dim=16, dtype="fp16")
    patterns = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    v = np.ascontiguousarray(patterns).view(DTYPES[kv_dtype])
    finite = np.isfinite(v.astype(np.float64))
    q, k = np.zeros((1, 1, 16, 16), np.float16), np.zeros_like(v)
    v = np.where(finite, v, np.zeros_like(v))
    o = kernel(spec)(q, k, v, cache_seqlens=np.array([1], np.int32))
    assert np.array_equal(o[0], v[0].astype(np.float16))


def test_scales_of_values_may_differ_by_any_amount() -> None:
    spec = spec_of("e4m3", kv_scale="token", causal=False)
    cache = make_cache(spec, lengths=(200,))
    k_scale = np.ones(cache.k.shape[:3], np.float32)
    for exponent in (-40, 0, 40):
        v_scale = np.full(cache.k.shape[:3], 2.0**exponent, np.float32)
        v_scale[:, ::7] *= 2.0**-20
        v_scale[:, 90:] *= 2.0**6
        run(spec, cache, k_scale=k_scale, v_scale=v_scale)


def test_scales_of_hidden_keys_may_be_garbage() -> None:
    spec = spec_of("e4m3", kv_scale="token", page_size=16)
    cache = make_cache(spec, lengths=LENGTHS)
    scales = scales_of(spec, cache)
    right = run(spec, cache, **scales)
    belongs = np.isfinite(cache.k.astype(np.float64)).all(axis=3)
    for scale in scales.values():
        scale[~belongs] = np.nan
    o, lse = call_kernel(kernel(spec, 0, 4), cache, **scales)
    assert np.array_equal(o.view(np.uint16), right[0].view(np.uint16))
    assert np.array_equal(lse, right[1])


def test_what_does_not_fit_is_refused() -> None:
    spec = spec_of("e4m3", kv_scale="head")
    cache = make_cache(spec, lengths=(5, 7))
    call = kernel(spec)
    with pytest.raises(TensorError, match="k_scale"):
        call(cache.q, cache.k, cache.v, cache_seqlens=cache.lengths)
    with pytest.raises(TensorError, match="k_scale"):
        call(cache.q, cache.k, cache.v, k_scale=np.ones(3, np.float32), v_scale=None)
    other = cache.k.view(ml_dtypes.float8_e4m3fnuz)
    scale = np.ones(2, np.float32)
    with pytest.raises(TensorError, match="e4m3"):
        call(cache.q, other, cache.v, k_scale=scale, v_scale=scale)
    with pytest.raises(InvalidSpecError, match="kv_scale"):
        AttentionSpec(kv_cache=True, kv_scale="head")
    with pytest.raises(InvalidSpecError, match="kv_dtype"):
        AttentionSpec(kv_dtype="e4m3")
    assert AttentionSpec(kv_cache=True, kv_dtype="bf16").kv_dtype is None
