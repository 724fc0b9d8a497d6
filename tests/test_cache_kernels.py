"""Kernels over a key/value cache on the emulator: right against float64, with poison everywhere."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from cache_cases import Cache, assert_right, cache_arguments, call_kernel, make_cache

from fmhagen import AttentionSpec, compile_kernel
from fmhagen.compile.driver import compile_source
from fmhagen.emission import emit_source
from fmhagen.errors import TensorError
from fmhagen.kernel import Kernel
from fmhagen.lowering import lower
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.select import candidates
from fmhagen.targets import find_target

PLAIN = AttentionSpec(kv_cache=True)


@functools.cache
def kernel(
    spec: AttentionSpec, seed: int = 0, compute_units: int = 4, target: str = "sm90"
) -> Kernel:
    """Compile for the emulator; units enough that blocks of several groups meet sequences."""
    options = EmulatorOptions(seed=seed, compute_units=compute_units)
    return compile_kernel(spec, device="emulator", emulator=options, target=target)


def run(
    spec: AttentionSpec,
    cache: Cache,
    *,
    seed: int = 0,
    compute_units: int = 4,
    num_splits: int | None = None,
    target: str = "sm90",
    **more: Any,
) -> tuple[Any, Any]:
    """Call the kernel and check what it gives; `more` goes to the reference, too."""
    compiled = kernel(spec, seed, compute_units, target)
    o, lse = call_kernel(compiled, cache, num_splits=num_splits, **more)
    assert_right(spec, cache, o, lse, **more)
    return o, lse


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("page_size", [None, 1, 3, 8, 16, 24, 64])
def test_lengths_of_every_kind(page_size: int | None, seed: int) -> None:
    spec = dataclasses.replace(PLAIN, page_size=page_size, causal=True)
    cache = make_cache(spec, lengths=(0, 130, 1, 333, 64), seqlen_q=3, seed=seed)
    run(spec, cache, seed=seed)


@pytest.mark.parametrize("compute_units", [1, 2, 5, 40])
@pytest.mark.parametrize("lengths", [(700,), (65, 63, 64), (5, 0, 300, 64, 65, 63, 1, 2, 17, 129)])
def test_every_way_to_cut_is_right(lengths: tuple[int, ...], compute_units: int) -> None:
    cache = make_cache(PLAIN, lengths=lengths, heads_kv=1)
    run(PLAIN, cache, compute_units=compute_units)


@pytest.mark.parametrize("batch", [32, 33, 70])
@pytest.mark.parametrize("compute_units", [6, 30])
def test_more_sequences_than_lanes(batch: int, compute_units: int) -> None:
    lengths = tuple((37 * b) % 150 for b in range(batch))
    cache = make_cache(PLAIN, lengths=lengths, heads=2, heads_kv=1)
    run(PLAIN, cache, compute_units=compute_units)


def test_splits_agree_within_a_rounding() -> None:
    spec = dataclasses.replace(PLAIN, causal=True, page_size=16)
    # Large logits: a mistake in the weights of parts shows only there.
    cache = make_cache(spec, lengths=(1000, 130, 0, 5), seqlen_q=2, spread=10.0)
    results = [run(spec, cache, num_splits=n) for n in (1, 2, 4, 8)]
    for o, lse in results[1:]:
        near = np.abs(o.astype(np.float64) - results[0][0].astype(np.float64))
        assert near.max() <= 2.0**-7 * np.abs(results[0][0].astype(np.float64)).max()
        seen = np.isfinite(lse)
        assert np.abs(lse[seen] - results[0][1][seen]).max() < 1e-4


@pytest.mark.parametrize("group", [1, 3, 4, 16, 20])
@pytest.mark.parametrize("seqlen_q", [1, 5, 16])
def test_groups_of_every_size_are_packed(group: int, seqlen_q: int) -> None:
    spec = dataclasses.replace(PLAIN, causal=True)
    cache = make_cache(spec, lengths=(70, 9), seqlen_q=seqlen_q, heads=2 * group)
    run(spec, cache, compute_units=8)


@pytest.mark.parametrize("anchor", ["bottom_right", "top_left"])
@pytest.mark.parametrize("causal", [True, False])
def test_masks(causal: bool, anchor: Any) -> None:
    spec = dataclasses.replace(PLAIN, causal=causal, anchor=anchor)
    run(spec, make_cache(spec, lengths=(40, 3, 7), seqlen_q=7))


@pytest.mark.parametrize(
    ("head_dim", "head_dim_v"),
    [(16, 16), (64, 64), (80, 80), (96, 96), (192, 192), (192, 128), (64, 128)],
)
@pytest.mark.parametrize("page_size", [None, 16, 1])
def test_head_dims(head_dim: int, head_dim_v: int, page_size: int | None) -> None:
    spec = dataclasses.replace(PLAIN, head_dim=head_dim, head_dim_v=head_dim_v, page_size=page_size)
    run(spec, make_cache(spec, lengths=(100, 290)), compute_units=6)


@pytest.mark.parametrize("cache_layout", ["nhd", "hnd"])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("page_size", [None, 16, 7])
def test_layouts(layout: Any, cache_layout: Any, page_size: int | None) -> None:
    spec = dataclasses.replace(
        PLAIN, dtype="fp16", layout=layout, cache_layout=cache_layout, page_size=page_size
    )
    run(spec, make_cache(spec, lengths=(33, 80), seqlen_q=2))


def test_k_and_v_in_one_tensor() -> None:
    spec = dataclasses.replace(PLAIN, page_size=16)
    cache = make_cache(spec, lengths=(33, 80))
    both = np.stack((cache.k, cache.v), axis=1)  # (pages, 2, page_size, Hk, d)
    run(spec, dataclasses.replace(cache, k=both[:, 0], v=both[:, 1]))


def test_pages_may_be_shared() -> None:
    spec = dataclasses.replace(PLAIN, page_size=16)
    cache = make_cache(spec, lengths=(64, 64))
    assert cache.table is not None
    cache.table[1, :3] = cache.table[0, :3]
    run(spec, cache)


def test_a_length_beyond_the_room_reads_nothing_beyond_it() -> None:
    for page_size in (None, 16):
        spec = dataclasses.replace(PLAIN, page_size=page_size)
        cache = make_cache(spec, lengths=(48, 48))
        run(spec, dataclasses.replace(cache, lengths=np.array((1000, 2**31 - 1), np.int32)))
        run(spec, dataclasses.replace(cache, lengths=np.array((-5, 0), np.int32)))


def test_no_lengths_means_all_of_a_contiguous_cache() -> None:
    cache = make_cache(PLAIN, lengths=(70, 70))
    run(PLAIN, dataclasses.replace(cache, lengths=None))


def test_nothing_to_compute() -> None:
    cache = make_cache(PLAIN, lengths=(3,))
    call = kernel(PLAIN)
    o = call(cache.q[:, :0], cache.k, cache.v, cache_seqlens=cache.lengths)
    assert o.shape == (1, 0, 4, 128)
    o, lse = call(cache.q, cache.k[:, :0], cache.v[:, :0], return_lse=True)
    assert not o.astype(np.float64).any()
    assert np.isneginf(lse).all()


def test_a_call_reuses_what_it_is_given() -> None:
    cache = make_cache(PLAIN, lengths=(70, 5))
    out = np.full_like(cache.q, 7)
    o = kernel(PLAIN)(
        cache.q, cache.k, cache.v, cache_seqlens=cache.lengths.astype(np.int64), out=out
    )
    assert o is out
    same = kernel(PLAIN)(cache.q, cache.k, cache.v, cache_seqlens=cache.lengths)
    assert np.array_equal(o.view(np.uint16), same.view(np.uint16))


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"cache_seqlens": np.zeros(3, np.int32)}, "cache_seqlens", "(B,) = (2,)"),
        ({"cache_seqlens": np.zeros(2, np.float32)}, "cache_seqlens", "int32 or int64"),
        ({"cache_seqlens": None}, "cache_seqlens", "must be given"),
        ({"block_table": None}, "block_table", "must be given"),
        ({"block_table": np.zeros((3, 2), np.int32)}, "block_table", "(B, max_pages) = (2, 2)"),
        ({"num_splits": -1}, "num_splits", "from 0 to 1024"),
        ({"sinks": np.zeros(4, np.float32)}, "sinks", "no such argument"),
        ({"alibi_slopes": np.zeros(4)}, "alibi_slopes", "no such argument"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    changes: dict[str, Any], field: str, words: str
) -> None:
    spec = dataclasses.replace(PLAIN, page_size=16)
    cache = make_cache(spec, lengths=(33, 80))
    arguments = {**cache_arguments(cache), **changes}
    with pytest.raises(TensorError, match=field) as caught:
        kernel(spec)(cache.q, cache.k, cache.v, **arguments)
    assert words in str(caught.value)


def test_shapes_that_do_not_fit_are_refused() -> None:
    spec = dataclasses.replace(PLAIN, page_size=16)
    cache = make_cache(spec, lengths=(33, 80))
    rest = cache_arguments(cache)
    call = kernel(spec)
    with pytest.raises(TensorError, match="page_size=16"):
        call(cache.q, cache.k[:, :8], cache.v[:, :8], **rest)
    with pytest.raises(TensorError, match="key heads must divide"):
        call(cache.q[:, :, :3], cache.k, cache.v, **rest)
    raw = np.zeros(cache.k.size + 1, cache.k.dtype)[1:].reshape(cache.k.shape)
    with pytest.raises(TensorError, match="multiple of 16 bytes"):
        call(cache.q, raw, cache.v, **rest)
    with pytest.raises(TensorError, match="page_size"):
        kernel(PLAIN)(cache.q, cache.k, cache.v, **rest)


@pytest.mark.parametrize("page_size", [None, 16, 1])
@pytest.mark.parametrize("head_dim", [64, 128, 192])
def test_both_kernels_compile_without_a_spill(head_dim: int, page_size: int | None) -> None:
    spec = dataclasses.replace(PLAIN, head_dim=head_dim, page_size=page_size, causal=True)
    target = find_target("sm90")
    for schedule in candidates(spec, target)[:1]:
        binary = compile_source(emit_source(lower(spec, schedule, target)))
        assert binary.resources.spill_bytes == 0
        assert "bytes spill stores" not in binary.log.replace("0 bytes spill stores", "")
