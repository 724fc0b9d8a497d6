"""Calls over a key/value cache for tests: caches full of poison, and the answer in float64."""

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fmhagen.kernel import Kernel
from fmhagen.oracle.attention import reference
from fmhagen.spec import AttentionSpec

HUGE_PAGE = 2_147_480_000
DTYPES: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "int8": np.int8,
}
FNUZ: dict[str, Any] = {
    "e4m3": ml_dtypes.float8_e4m3fnuz,
    "e5m2": ml_dtypes.float8_e5m2fnuz,
}


def cache_type(spec: AttentionSpec, target: str) -> Any:
    """Return the NumPy type of the elements of a cache as a target reads them."""
    types = DTYPES | FNUZ if target == "gfx942" else DTYPES
    return types[spec.cache_dtype]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A cache and the queries of a call.

    Everything in it that belongs to no sequence is NaN, and every table entry without a page is
    huge.
    """

    q: npt.NDArray[Any]
    k: npt.NDArray[Any]
    v: npt.NDArray[Any]
    lengths: npt.NDArray[np.int32]
    table: npt.NDArray[np.int32] | None


def aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy at a multiple of 128 bytes."""
    raw = np.empty(array.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 128
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def make_cache(
    spec: AttentionSpec,
    *,
    lengths: tuple[int, ...],
    seqlen_q: int = 1,
    heads: int = 4,
    heads_kv: int = 2,
    seed: int = 0,
    spread: float = 1.0,
    room: int = 0,
    target: str = "sm90",
) -> Cache:
    """Fill a cache at random, its pages in random order; `room` more keys fit each sequence."""
    rng = np.random.default_rng(seed)
    dtype = cache_type(spec, target)
    d, dv, page = spec.d, spec.dv, spec.page_size
    batch = len(lengths)

    def draw(*shape: int) -> npt.NDArray[Any]:
        if dtype == np.int8:
            return rng.integers(-128, 128, shape).astype(np.int8)
        return rng.standard_normal(shape).astype(dtype)

    q = (spread * rng.standard_normal((batch, seqlen_q, heads, d))).astype(DTYPES[spec.dtype])
    poison = 99 if dtype == np.int8 else np.nan
    keys = [draw(n, heads_kv, d) for n in lengths]
    values = [draw(n, heads_kv, dv) for n in lengths]
    most = max(1, *lengths) + room
    table = None
    if page is None:
        k = np.full((batch, most, heads_kv, d), poison, dtype)
        v = np.full((batch, most, heads_kv, dv), poison, dtype)
        for b, n in enumerate(lengths):
            k[b, :n], v[b, :n] = keys[b], values[b]
    else:
        counts = [-(-n // page) for n in lengths]
        pages = sum(counts) + 2
        free = iter(rng.permutation(pages))
        k = np.full((pages, page, heads_kv, d), poison, dtype)
        v = np.full((pages, page, heads_kv, dv), poison, dtype)
        table = np.full((batch, -(-most // page)), HUGE_PAGE, np.int32)
        for b, n in enumerate(lengths):
            for i in range(counts[b]):
                at = table[b, i] = next(free)
                part = slice(i * page, min((i + 1) * page, n))
                k[at, : part.stop - part.start] = keys[b][part]
                v[at, : part.stop - part.start] = values[b][part]
    if spec.cache_layout == "hnd":
        k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    if spec.layout == "bhsd":
        q = q.transpose(0, 2, 1, 3)
    return Cache(
        q=aligned(q),
        k=aligned(k),
        v=aligned(v),
        lengths=np.array(lengths, np.int32),
        table=table,
    )


def largest_value(spec: AttentionSpec, cache: Cache, **more: Any) -> float:
    """Return the largest value, its factor included; O is a mean of them."""
    values = np.abs(cache.v.astype(np.float64))
    if more.get("v_scale") is not None:
        factors = np.asarray(more["v_scale"], np.float64)
        values = values * (factors[..., None] if spec.kv_scale == "token" else factors.max())
    return float(np.nanmax(values, initial=0))


def cache_arguments(cache: Cache) -> dict[str, Any]:
    """Return the arguments of a call that a cache is, beside Q, K and V."""
    table = {} if cache.table is None else {"block_table": cache.table}
    return {"cache_seqlens": cache.lengths, **table}


def call_kernel(
    kernel: Kernel, cache: Cache, **more: Any
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Call a kernel over a cache; return O and LSE. `more` are further arguments."""
    o, lse = kernel(cache.q, cache.k, cache.v, return_lse=True, **cache_arguments(cache), **more)
    return o, lse


def assert_right(
    spec: AttentionSpec,
    cache: Cache,
    o: npt.NDArray[Any],
    lse: npt.NDArray[Any],
    *,
    roundings: float = 1.0,
    **more: Any,
) -> None:
    """Compare a result with the reference: first what is infinite or NaN, then the values.

    `roundings` of values besides that of O, where they are not exact.
    """
    o_right, lse_right = reference(
        spec, cache.q, cache.k, cache.v, **cache_arguments(cache), **more
    )
    o_right = o_right.transpose(0, 2, 1, 3) if spec.layout == "bhsd" else o_right
    o64 = o.astype(np.float64)
    o64 = o64.transpose(0, 2, 1, 3) if spec.layout == "bhsd" else o64
    assert not np.isnan(o64).any()
    assert np.array_equal(np.isneginf(lse), np.isneginf(lse_right))
    seen = np.isfinite(lse_right)
    assert np.abs(lse[seen] - lse_right[seen]).max(initial=0) < 2e-5
    # One rounding of O, and one of P in each product: relative to what a row may hold.
    epsilon = {"bf16": 2.0**-8, "fp16": 2.0**-10}[spec.dtype]
    worst = np.abs(o64 - o_right).max(initial=0)
    largest = largest_value(spec, cache, **more)
    bound = roundings * epsilon * largest
    assert worst <= bound, (worst, bound)
    unseen = ~o_right.any(axis=3)
    assert not o64[unseen].any()
