"""Kernels over a key/value cache for gfx942 on the emulator: the cases of the other target that can
go wrong otherwise here."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import test_cache_kernels
from cache_cases import FNUZ, cache_type, make_cache
from emulated import plan_of, with_text
from test_cache_invariance import some
from test_cache_kernels import PLAIN
from test_cache_masks import LENGTHS, MASKS, hide
from test_cache_small import scales_of
from test_cascade import make_batch

from fmhagen import AttentionSpec
from fmhagen.cascade import CascadeKernel
from fmhagen.compile.code_object import read_resources
from fmhagen.compile.driver import compile_source, find_compiler
from fmhagen.emission import emit_source
from fmhagen.errors import CompilerNotFoundError, EmulatorError, TensorError, UnsupportedSpecError
from fmhagen.frontends import kvcache
from fmhagen.frontends.kvcache import flash_attn_with_kvcache
from fmhagen.kernel import Kernel
from fmhagen.oracle.attention import reference
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.targets import find_target
from fmhagen.validate import check_support

TARGET = "gfx942"
FEW = (0, 130, 1, 333)
run = functools.partial(test_cache_kernels.run, target=TARGET)
make = functools.partial(make_cache, target=TARGET)


def spec_of(**changes: Any) -> AttentionSpec:
    return dataclasses.replace(PLAIN, **changes)


@pytest.mark.parametrize("page_size", [None, 1, 24])
def test_lengths_of_every_kind(page_size: int | None) -> None:
    spec = spec_of(page_size=page_size, causal=True)
    for seed in range(2):
        run(spec, make(spec, lengths=(0, 130, 1, 333, 64), seqlen_q=3, seed=seed), seed=seed)


@pytest.mark.parametrize("compute_units", [1, 5, 40])
@pytest.mark.parametrize("lengths", [(900,), (129, 127, 128), (5, 0, 300, 64, 65, 1, 17, 129)])
def test_every_way_to_cut_is_right(lengths: tuple[int, ...], compute_units: int) -> None:
    run(PLAIN, make(PLAIN, lengths=lengths, heads_kv=1), compute_units=compute_units)
    run(PLAIN, make(PLAIN, lengths=lengths, heads_kv=1, spread=10.0), num_splits=3)


@pytest.mark.parametrize("batch", [33, 70])
def test_more_sequences_than_half_a_wave_has_lanes(batch: int) -> None:
    lengths = tuple((37 * b) % 150 for b in range(batch))
    for units in (6, 30):
        run(PLAIN, make(PLAIN, lengths=lengths, heads=2, heads_kv=1), compute_units=units)


@pytest.mark.parametrize("group", [1, 5, 20])
@pytest.mark.parametrize("compute_units", [3, 8])
def test_groups_of_every_size_are_packed(group: int, compute_units: int) -> None:
    # Several tiles of rows, of as many units as are dealt to all XCDs alike and of more.
    spec = spec_of(causal=True, head_dim=64)
    for seqlen_q in (1, 16):
        cache = make(spec, lengths=(300, 9), seqlen_q=seqlen_q, heads=2 * group)
        run(spec, cache, compute_units=compute_units)


@pytest.mark.parametrize(
    ("head_dim", "head_dim_v", "page_size"),
    [(16, 16, 16), (80, 112, None), (192, 128, 1), (256, 240, 16)],
)
def test_head_dims(head_dim: int, head_dim_v: int, page_size: int | None) -> None:
    spec = spec_of(head_dim=head_dim, head_dim_v=head_dim_v, page_size=page_size)
    run(spec, make(spec, lengths=(100, 290)), compute_units=6)


def test_layouts_and_a_length_beyond_the_room() -> None:
    spec = spec_of(dtype="fp16", layout="bhsd", cache_layout="hnd", page_size=7)
    cache = make(spec, lengths=(35, 84), seqlen_q=2)
    run(spec, cache)
    run(spec, dataclasses.replace(cache, lengths=np.array((-5, 2**31 - 1), np.int32)))


def test_pages_left_of_a_window_are_never_read() -> None:
    spec = spec_of(page_size=8, causal=True, window_left=100)
    cache = make(spec, lengths=LENGTHS, seqlen_q=4)
    right = run(spec, cache)
    hidden = hide(cache, spec, [(max(0, n - 4 - 100), n) for n in LENGTHS])
    o, lse = test_cache_kernels.kernel(spec, 0, 4, TARGET)(
        hidden.q,
        hidden.k,
        hidden.v,
        cache_seqlens=hidden.lengths,
        block_table=hidden.table,
        return_lse=True,
    )
    assert np.array_equal(o.view(np.uint16), right[0].view(np.uint16))
    assert np.array_equal(lse, right[1])


@pytest.mark.parametrize("mask", ["sinks and a window", "two bands", "by head", "by head and row"])
def test_masks(mask: str) -> None:
    spec = spec_of(page_size=16, mask_mod=MASKS[mask])
    run(spec, make(spec, lengths=LENGTHS, seqlen_q=3), compute_units=6)


def test_sinks_and_a_score_function() -> None:
    spec = spec_of(causal=True, sink=True, soft_cap=8.0, page_size=16)
    sinks = np.array((0.5, -3.0, 9.0, -np.inf), np.float32)
    cache = make(spec, lengths=LENGTHS, seqlen_q=3)
    run(spec, cache, sinks=sinks)
    run(spec, cache, sinks=sinks, num_splits=4)


def test_bits_do_not_depend_on_batch_mates() -> None:
    spec = spec_of(batch_invariant=True, causal=True, page_size=16, head_dim=64)
    cache = make(spec, lengths=(2000, 0, 513, 512, 1), seqlen_q=2)
    o, lse = run(spec, cache, compute_units=8)
    for which in ([0], [4, 2, 0], [3, 1, 3]):
        for units in (2, 60):
            part = some(cache, which)
            other, other_lse = run(spec, part, compute_units=units)
            assert np.array_equal(other.view(np.uint16), o[which].view(np.uint16)), which
            assert np.array_equal(other_lse, lse[which])


@pytest.mark.parametrize(
    ("kv_dtype", "kv_scale", "page_size", "dims", "dtype"),
    [
        ("e4m3", "none", 16, (128, 128), "bf16"),
        ("e4m3", "token", 1, (80, 112), "bf16"),
        ("e5m2", "head", 16, (16, 48), "fp16"),
        ("int8", "tensor", None, (64, 240), "bf16"),
        ("int8", "token", None, (256, 64), "fp16"),
    ],
)
def test_small_caches(
    kv_dtype: Any, kv_scale: Any, page_size: int | None, dims: tuple[int, int], dtype: Any
) -> None:
    spec = spec_of(
        dtype=dtype,
        head_dim=dims[0],
        head_dim_v=dims[1],
        kv_dtype=kv_dtype,
        kv_scale=kv_scale,
        page_size=page_size,
        causal=True,
    )
    cache = make(spec, lengths=FEW, seqlen_q=3, spread=0.02 if kv_dtype == "int8" else 1)
    run(spec, cache, **scales_of(spec, cache))


@pytest.mark.parametrize("kv_dtype", ["e4m3", "e5m2", "int8"])
def test_every_bit_pattern_is_read_exactly(kv_dtype: Any) -> None:
    # One key: O is its value. 256 columns of 16 heads hold every pattern.
    spec = spec_of(kv_dtype=kv_dtype, head_dim=16, dtype="fp16")
    patterns = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    v = np.ascontiguousarray(patterns).view(cache_type(spec, TARGET))
    v = np.where(np.isfinite(v.astype(np.float64)), v, np.zeros_like(v))
    q, k = np.zeros((1, 1, 16, 16), np.float16), np.zeros_like(v)
    call = test_cache_kernels.kernel(spec, 0, 4, TARGET)
    o = call(q, k, v, cache_seqlens=np.array([1], np.int32))
    assert np.array_equal(o[0], v[0].astype(np.float16))


def test_bytes_of_the_other_kind_are_refused() -> None:
    spec = spec_of(kv_dtype="e4m3", head_dim=16, dtype="fp16")
    cache = make(spec, lengths=(5, 7))
    other = cache.k.view(ml_dtypes.float8_e4m3fn)
    call = test_cache_kernels.kernel(spec, 0, 4, TARGET)
    with pytest.raises(TensorError, match="e4m3fnuz"):
        call(cache.q, other, cache.v, cache_seqlens=cache.lengths)
    with pytest.raises(UnsupportedSpecError, match="p_rounding"):
        check_support(spec_of(p_rounding="rtna"), find_target(TARGET))


def test_a_shared_prefix_of_a_paged_cache() -> None:
    spec = AttentionSpec(causal=True, page_size=16, head_dim=64)
    options = EmulatorOptions(compute_units=4)
    kernel = CascadeKernel(spec, device="emulator", target=TARGET, emulator=options)
    batch = make_batch(spec, prompt=67, own=(1, 20, 3))
    case = batch.case
    o, lse = kernel(case.q, case.k, case.v, batch.cache.cascade(batch.sequences), return_lse=True)
    o_right, lse_right = reference(
        spec, case.q, case.k, case.v, cache_seqlens=case.lengths, block_table=case.table
    )
    assert np.abs(o.astype(np.float64) - o_right).max() < 2.0**-6 * np.abs(o_right).max()
    assert np.abs(lse - lse_right).max() < 1e-4


def test_the_front_end_takes_the_kernel_of_the_cache_s_bytes() -> None:
    rng = np.random.default_rng(0)
    fnuz = FNUZ["e4m3"]
    q = rng.standard_normal((2, 1, 4, 64)).astype(ml_dtypes.bfloat16)
    k, v = (rng.standard_normal((2, 40, 2, 64)).astype(fnuz) for _ in range(2))
    lengths = np.array((40, 7), np.int32)
    kvcache._kernel.cache_clear()
    o = flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, causal=True)
    spec = AttentionSpec(causal=True, kv_cache=True, kv_dtype="e4m3", head_dim=64)
    right, _ = reference(spec, q, k, v, cache_seqlens=lengths)
    assert np.abs(o.astype(np.float64) - right).max() < 2.0**-7 * np.abs(right).max()


FAULTS = {
    # With one of the two a key that nobody sees is that of another page, which has no effect.
    "a key that nobody sees is read": (
        (
            "key_with_page(walk.sequence, n_first + thread_index() % TILE_N, 1)",
            "n_first + thread_index() % TILE_N",
        ),
        ("page < params.num_pages ? page : params.num_pages - 1", "page"),
    ),
    "waves do not wait for one another": (("wait_lds();\n  block_barrier();", "wait_lds();"),),
    "writes to LDS are not waited for": (("wait_lds();\n  block_barrier();", "block_barrier();"),),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_planted_faults_are_found(
    fault: tuple[tuple[str, str], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(page_size=16, causal=True, head_dim=64)
    source = emit_source(plan_of(spec, TARGET))
    text = source.text
    for old, new in fault:
        assert old in text
        text = text.replace(old, new)
    monkeypatch.setattr("fmhagen.kernel.emit_source", lambda plan: with_text(source, text))
    options = EmulatorOptions(compute_units=4)
    kernel = Kernel(spec, device="emulator", target=TARGET, emulator=options)
    cache = make(spec, lengths=(300, 41), seqlen_q=3)
    with pytest.raises(EmulatorError):
        kernel(cache.q, cache.k, cache.v, cache_seqlens=cache.lengths, block_table=cache.table)


@pytest.mark.parametrize(
    "changes",
    [
        {"page_size": 16, "causal": True},
        {"page_size": 16, "causal": True, "kv_dtype": "e4m3", "kv_scale": "token"},
        {"head_dim": 256},
    ],
)
def test_both_kernels_compile_without_a_spill(changes: dict[str, Any]) -> None:
    plan = plan_of(spec_of(**changes), TARGET)
    try:
        find_compiler(TARGET)
    except CompilerNotFoundError as error:
        pytest.skip(str(error))
    binary = compile_source(emit_source(plan), allow_spills=True)
    assert plan.split is not None
    for symbol in (plan.symbol, plan.split.combine_symbol):
        found = read_resources(binary.image, symbol=symbol, dynamic_shared_bytes=0)
        assert found.clean, (symbol, found)
