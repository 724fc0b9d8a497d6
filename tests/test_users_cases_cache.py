"""Problems that users met with key/value caches: paging, decoding, 8-bit caches, splits.

Each is run on every target that has kernels over a cache.
"""

from __future__ import annotations

import dataclasses
import functools
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cache_cases import Cache, aligned, assert_right, cache_type, call_kernel, make_cache

from fmhagen import AttentionSpec, compile_kernel
from fmhagen.kernel import Kernel
from fmhagen.lowering import lower
from fmhagen.runtime.cache_values import choose_cut
from fmhagen.runtime.checks import MAX_ROWS, Problem
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.select import PREFILL_ROWS, default_schedule, is_prefill
from fmhagen.targets import TARGETS, find_target
from fmhagen.validate import is_supported

Array = npt.NDArray[Any]
PLAIN = AttentionSpec(head_dim=64, kv_cache=True, causal=True)
PAGED = dataclasses.replace(PLAIN, page_size=16)
CACHE_TARGETS = [target.name for target in TARGETS if target.cache_template]
pytestmark = pytest.mark.parametrize("target", CACHE_TARGETS)


@functools.cache
def kernel_of(spec: AttentionSpec, target: str, query_hint: int | None = None) -> Kernel:
    if not is_supported(spec, find_target(target)):
        pytest.skip(f"{target} has no kernel for this cache")
    options = EmulatorOptions(compute_units=6)
    return compile_kernel(
        spec, device="emulator", target=target, emulator=options, query_hint=query_hint
    )


def run(spec: AttentionSpec, target: str, cache: Cache, **more: Any) -> tuple[Array, Array]:
    """Call the kernel; `more` are further arguments of the call."""
    return call_kernel(kernel_of(spec, target), cache, **more)


def assert_same_bits(one: tuple[Array, Array], other: tuple[Array, Array]) -> None:
    assert np.array_equal(one[0].view(np.uint16), other[0].view(np.uint16))
    assert np.array_equal(one[1].view(np.uint32), other[1].view(np.uint32))


def index_probe(
    keys: int, *, rows: int = 1, heads: int = 1, spec: AttentionSpec = PAGED
) -> dict[str, Array]:
    """Return a call with q = 0 and v[j] = j, of which O is the mean of the visible indices."""
    page = spec.page_size or keys
    pages = -(-keys // page)
    v = np.broadcast_to(np.arange(pages * page)[:, None, None], (pages * page, 1, spec.dv))
    return {
        "q": aligned(np.zeros((1, rows, heads, spec.d), np.float16)),
        "k": aligned(
            np.random.default_rng(0).standard_normal((pages, page, 1, spec.d)).astype("e")
        ),
        "v": aligned(v.reshape(pages, page, 1, spec.dv).astype("e")),
        "block_table": np.arange(pages, dtype=np.int32)[None],
        "cache_seqlens": np.array([keys], np.int32),
    }


# ---- what a mask shows ----


@pytest.mark.parametrize("query_hint", [None, PREFILL_ROWS], ids=["few", "many"])
def test_more_queries_than_keys(target: str, query_hint: int | None) -> None:
    spec = dataclasses.replace(PAGED, dtype="fp16")
    if query_hint and not is_prefill(spec, find_target(target), query_hint):
        pytest.skip("no main loop for many rows over a cache")
    call = index_probe(2, rows=5)
    o, lse = kernel_of(spec, target, query_hint)(**call, return_lse=True)
    assert (o[0, :, 0] == np.array([0, 0, 0, 0, 0.5])[:, None]).all()
    assert np.array_equal(lse[0, 0, :3], [-np.inf] * 3)
    assert lse[0, 0, 3:] == pytest.approx([0.0, np.log(2)], abs=1e-6)


@pytest.mark.parametrize(
    ("left", "mean", "sink"), [(127, 191.5, True), (128, 191.0, False)], ids=["sink", "none"]
)
def test_the_window_of_one_query(target: str, left: int, mean: float, sink: bool) -> None:
    spec = dataclasses.replace(PAGED, dtype="fp16", window_left=left, sink=sink)
    call = index_probe(256, heads=8)
    logits = np.full(8, np.log(left + 1), np.float32)  # as heavy as all keys together
    o, lse = kernel_of(spec, target)(**call, return_lse=True, **({"sinks": logits} if sink else {}))
    assert np.abs(o - mean / (2 if sink else 1)).max() <= 0.125
    assert lse == pytest.approx(np.log((left + 1) * (2 if sink else 1)), abs=1e-5)


def test_a_window_of_everything_is_the_causal_mask(target: str) -> None:
    cache = make_cache(PAGED, lengths=(130, 7, 64), seqlen_q=3)
    causal = run(PAGED, target, cache)
    for left in (129, 5000):
        spec = dataclasses.replace(PAGED, window_left=left)
        assert_same_bits(run(spec, target, cache), causal)


@pytest.mark.parametrize(("page_size", "left"), [(None, 511), (16, 128)])
def test_a_window_over_a_cache_of_8_bits(target: str, page_size: int | None, left: int) -> None:
    spec = dataclasses.replace(PLAIN, page_size=page_size, kv_dtype="e4m3", window_left=left)
    cache = make_cache(spec, lengths=(257, 512, 1024), heads=8, heads_kv=2, target=target)
    o, lse = run(spec, target, cache)
    assert_right(spec, cache, o, lse)


# ---- numbers ----


@pytest.mark.parametrize("kv_scale", ["none", "token"])
def test_many_small_probabilities_are_not_lost(target: str, kv_scale: str) -> None:
    """One key of logit 0 and value 0, 1023 of logit -9.9 and value 1."""
    spec = AttentionSpec.from_dict(
        {**PLAIN.to_dict(), "dtype": "fp16", "kv_dtype": "e4m3", "kv_scale": kv_scale, "scale": 1.0}
    )
    q, k = np.zeros((1, 1, 1, 64), np.float16), np.zeros((1, 1024, 1, 64))
    q[..., 0], k[..., 0], k[0, 500] = 9.9, -1.0, 0.0
    v = np.ones_like(k)
    v[0, 500] = 0.0
    e4m3 = cache_type(spec, target)
    ones = np.ones((1, 1024, 1), np.float32)
    scales = {} if kv_scale == "none" else {"k_scale": ones, "v_scale": ones}
    tensors = (aligned(x) for x in (q, k.astype(e4m3), v.astype(e4m3)))
    o = kernel_of(spec, target)(*tensors, cache_seqlens=np.array([1024], np.int32), **scales)
    mass = 1023 * np.exp(-float(q[0, 0, 0, 0]))
    assert o.astype(np.float64) == pytest.approx(mass / (1 + mass), rel=0.01)
    assert mass / (1 + mass) == pytest.approx(0.0488, abs=2e-4)


@pytest.mark.parametrize("seqlen_q", [4])
def test_every_drafted_token_has_the_sink(target: str, seqlen_q: int) -> None:
    spec = dataclasses.replace(PAGED, sink=True)
    sinks = np.arange(8, dtype=np.float32)
    cache = make_cache(spec, lengths=(20,), seqlen_q=seqlen_q, heads=8, heads_kv=1)
    o, lse = run(spec, target, cache, sinks=sinks)
    for m in range(seqlen_q):
        alone = dataclasses.replace(
            cache,
            q=aligned(cache.q[:, m : m + 1]),
            lengths=cache.lengths - (seqlen_q - 1 - m),
        )
        one, lse_of_one = run(spec, target, alone, sinks=sinks)
        # The rows of a tile share the moments at which the softmax moves its reference.
        assert lse_of_one[0, :, 0] == pytest.approx(lse[0, :, m], abs=1e-5)
        near = np.abs(one[0, 0].astype(np.float64) - o[0, m].astype(np.float64))
        assert near.max() <= 2.0**-8 * np.abs(cache.v[np.isfinite(cache.v)].astype(float)).max()


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_deep_heads_in_pages_whatever_the_batch(target: str, batch: int) -> None:
    spec = dataclasses.replace(PAGED, head_dim=256, page_size=32)
    lengths = tuple(20 + 7 * b % 50 for b in range(batch))
    cache = make_cache(spec, lengths=lengths, heads=4, heads_kv=2)
    o, lse = run(spec, target, cache)
    assert_right(spec, cache, o, lse)


# ---- memory ----


def far_pages(values: Array, ids: list[int], stride: int) -> Array:
    """Return pages of lazily mapped memory `stride` elements apart, with values in those named."""
    pages = max(ids) + 1
    memory = mmap.mmap(
        -1,
        2 * pages * stride,
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000),
    )
    strides = (2 * stride, *values.strides[1:])
    view: Array = np.ndarray((pages, *values.shape[1:]), values.dtype, memory, 0, strides)
    for page, at in enumerate(ids):
        view[at] = values[page]
    return view


@pytest.mark.parametrize(
    ("page_size", "stride", "first"),
    [(16, 1_039_680, 2066), (32, 16384, 262_144), (1, 16384, 262_144), (None, 2**31 + 64, 0)],
    ids=["interleaved layers", "2^32 exactly", "pages of one key", "contiguous"],
)
def test_offsets_beyond_31_bits(
    target: str, page_size: int | None, stride: int, first: int
) -> None:
    """The same bits as where the pages lie side by side."""
    spec = dataclasses.replace(PLAIN, page_size=page_size)
    cache = make_cache(spec, lengths=(40, 33))
    near = run(spec, target, cache)
    ids = [first + page for page in range(len(cache.k))]
    table = None
    if cache.table is not None:
        huge = cache.table > len(cache.k)
        table = np.where(huge, cache.table, cache.table + first).astype(np.int32)
    far = dataclasses.replace(
        cache, k=far_pages(cache.k, ids, stride), v=far_pages(cache.v, ids, stride), table=table
    )
    assert_same_bits(run(spec, target, far), near)


@pytest.mark.parametrize("page_size", [None, 16])
def test_expanded_heads(target: str, page_size: int | None) -> None:
    """One key/value head under several names, by a stride of 0; 1 key in the last 32."""
    spec = dataclasses.replace(PLAIN, page_size=page_size)
    cache = make_cache(spec, lengths=(97, 65), heads_kv=1)
    wide = tuple(np.broadcast_to(x, (*x.shape[:2], 2, 64)) for x in (cache.k, cache.v))
    whole = dataclasses.replace(cache, k=aligned(wide[0]), v=aligned(wide[1]))
    expected = run(spec, target, whole)
    expanded = dataclasses.replace(cache, k=wide[0], v=wide[1])
    assert_same_bits(run(spec, target, expanded), expected)
    assert_right(spec, whole, *expected)


def test_one_contiguous_cache_for_all_sequences(target: str) -> None:
    cache = make_cache(PLAIN, lengths=(65, 65, 65))
    k, v = (np.broadcast_to(x[:1], x.shape) for x in (cache.k, cache.v))
    whole = dataclasses.replace(
        cache, k=aligned(k), v=aligned(v), lengths=np.array([65, 3, 40], np.int32)
    )
    expected = run(PLAIN, target, whole)
    assert_right(PLAIN, whole, *expected)
    assert_same_bits(run(PLAIN, target, dataclasses.replace(whole, k=k, v=v)), expected)


def test_tables_and_lengths_of_any_layout(target: str) -> None:
    """int64, and int32 that is not dense: converted, never reinterpreted."""
    cache = make_cache(PAGED, lengths=(100, 7, 64))
    assert cache.table is not None
    expected = run(PAGED, target, cache)
    wide = np.full((6, 16), -1, np.int64)
    wide[::2, ::2][:, : cache.table.shape[1]] = cache.table
    lengths = np.full(9, 2**40, np.int64)
    lengths[::3] = cache.lengths
    views = (
        (cache.table.astype(np.int64), cache.lengths.astype(np.int64)),
        (wide[::2, ::2][:, : cache.table.shape[1]], lengths[::3]),
        (wide.astype(np.int32)[::2, ::2][:, : cache.table.shape[1]], cache.lengths),
        (np.asfortranarray(cache.table), cache.lengths),
    )
    for table, given in views:
        other = dataclasses.replace(cache, table=table, lengths=given)
        assert_same_bits(run(PAGED, target, other), expected)


def test_an_output_within_a_larger_buffer(target: str) -> None:
    cache = make_cache(PAGED, lengths=(300, 20), seqlen_q=2)
    expected = run(PAGED, target, cache, num_splits=3)
    buffer = aligned(np.full((2, 4, 8, 128), 7.0, cache.q.dtype))
    out = buffer[:, 1:3, 2:6, 32:96]
    found = run(PAGED, target, cache, num_splits=3, out=out)
    assert_same_bits((np.ascontiguousarray(out), found[1]), expected)
    buffer[:, 1:3, 2:6, 32:96] = 7.0
    assert (buffer == 7.0).all()


# ---- sizes ----


def test_no_sequences(target: str) -> None:
    cache = make_cache(PAGED, lengths=(5,))
    assert cache.table is not None
    none = dataclasses.replace(
        cache, q=cache.q[:0], lengths=cache.lengths[:0], table=cache.table[:0]
    )
    o, lse = run(PAGED, target, none)
    assert (o.shape, lse.shape) == ((0, 1, 4, 64), (0, 4, 1))


@pytest.mark.parametrize(
    ("batch", "heads", "keys"), [(70_000, 8, 16), (1, 71_280, 64), (70_000, 64, 1)]
)
def test_more_sequences_and_heads_than_a_grid_dimension_holds(
    target: str, batch: int, heads: int, keys: int
) -> None:
    """All blocks lie along one dimension of the grid, and its limit is counted."""
    chip = find_target(target)
    plan = lower(PAGED, default_schedule(PAGED, chip), chip)
    sizes = Problem(batch=batch, heads=heads, heads_kv=heads, seqlen_q=1, seqlen_k=keys)
    cut = choose_cut(plan, sizes, compute_units=chip.compute_units)
    assert cut.blocks % heads == 0
    assert 0 < cut.blocks <= MAX_ROWS
    assert cut.combine_blocks * cut.combine_warps >= cut.items * cut.rows * cut.row_warps


@pytest.mark.parametrize("rows", [(0, 0, 0, 1), (0, 1, 0, 1), (0, 0, 0, 0)])
def test_fewer_packed_rows_than_sequences(target: str, rows: tuple[int, ...]) -> None:
    """Groups of three heads; each row is what a call for its sequence alone gives."""
    spec = dataclasses.replace(PAGED, varlen=True)
    if not is_supported(spec, find_target(target)):
        pytest.skip("no main loop for packed rows over a cache")
    cache = make_cache(PAGED, lengths=(5, 40, 0, 33), heads=9, heads_kv=3)
    offsets = np.cumsum((0, *rows)).astype(np.int32)
    q = aligned(cache.q[np.array(rows) > 0, 0])
    o, lse = run(spec, target, dataclasses.replace(cache, q=q), cu_seqlens_q=offsets)
    assert (o.shape, lse.shape) == (q.shape, (9, sum(rows)))
    expected, expected_lse = run(PAGED, target, cache)
    for b, row in zip(np.flatnonzero(rows), range(sum(rows)), strict=True):
        difference = o[row].astype(np.float64) - expected[b, 0].astype(np.float64)
        assert np.abs(difference).max() < 0.02
        assert lse[:, row] == pytest.approx(expected_lse[b, :, 0], abs=1e-5)
