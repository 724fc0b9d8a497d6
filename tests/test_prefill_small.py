"""Many query rows over caches of 8 bits on the emulator, against float64 with poison everywhere."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from cache_cases import Cache, assert_right, cache_type, call_kernel, make_cache
from emulated import with_text
from faults import Edit
from test_cache_small import scales_of
from test_prefill_kernels import (
    CAUSAL,
    LENGTHS,
    MANY,
    ROWS,
    alarm_of,
    kernel,
    run,
    run_packed,
)
from test_prefill_parts import run as run_parts

from fmhagen import compile_kernel
from fmhagen.compile import compile_source
from fmhagen.emission import emit_source
from fmhagen.lowering import lower
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.select import default_schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import SM90

TARGETS = ("gfx942", "sm90")


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


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kv_dtype", ["e4m3", "e5m2", "int8"])
def test_every_bit_pattern_is_read_exactly(kv_dtype: str, target: str) -> None:
    spec = spec_of(kv_dtype, head_dim=16, causal=False)
    cache = make_cache(spec, lengths=(1,) * 16, heads=1, heads_kv=1, seqlen_q=2, target=target)
    patterns = np.arange(256, dtype=np.uint8).view(cache_type(spec, target))
    cache.k[...] = 0
    cache.v[...] = patterns.reshape(16, 1, 1, 16)
    o, _ = call_kernel(kernel(spec, target=target), cache)
    for row in (0, 1):
        found = o[:, row, 0].astype(np.float32).reshape(256)
        assert np.array_equal(found, patterns.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize(
    ("splits", "changes"),
    [
        (3, {"kv_dtype": "e4m3", "kv_scale": "head", "page_size": 16}),
        (2, {"kv_dtype": "int8", "kv_scale": "token", "window_left": 200}),
    ],
)
def test_parts_are_added_up(splits: int, changes: dict[str, Any]) -> None:
    spec = spec_of(**changes)
    cache, scales = drawn(
        spec, "sm90", lengths=(0, 130, 1, 500), seqlen_q=70, heads=4, heads_kv=2, room=60
    )
    more = {"num_splits": splits, "roundings": roundings(spec)}
    run_parts(spec, cache, **scales, **more)


@pytest.mark.parametrize(
    ("kv_dtype", "changes"),
    [
        ("int8", {"head_dim": 256, "kv_scale": "token", "page_size": 1}),
        ("e4m3", {"head_dim": 192, "head_dim_v": 128, "kv_scale": "token", "alibi": True}),
        ("e5m2", {"head_dim": 64, "head_dim_v": 48, "kv_scale": "token", "cache_layout": "hnd"}),
    ],
)
def test_wide_heads(kv_dtype: str, changes: dict[str, Any]) -> None:
    spec = spec_of(kv_dtype, **changes)
    cache, scales = drawn(
        spec, "sm90", lengths=(0, 200, 70), seqlen_q=100, heads=4, heads_kv=2, room=40
    )
    if spec.alibi:
        scales["alibi_slopes"] = np.array((0.25, 0.5, 0.01, 1.0), np.float32)
    run(spec, cache, roundings=roundings(spec), **scales)


@pytest.mark.parametrize(
    ("kv_dtype", "changes"),
    [
        ("e4m3", {"kv_scale": "token", "page_size": 1}),
        ("int8", {"kv_scale": "head", "page_size": 3, "batch_invariant": True}),
        ("e5m2", {"kv_scale": "token", "soft_cap": 3.0, "window_left": 90}),
    ],
)
def test_few_rows_of_deep_heads(kv_dtype: str, changes: dict[str, Any]) -> None:
    """O of 256 columns leaves a warp of 16 rows no registers to widen beside it: see `select`."""
    spec = spec_of(kv_dtype, head_dim=256, **changes)
    cache, scales = drawn(
        spec, "sm90", lengths=(0, 400, 70), seqlen_q=3, heads=4, heads_kv=2, room=40
    )
    call = compile_kernel(spec, device="emulator", emulator=EmulatorOptions(compute_units=3))
    plan = call.plan
    assert plan.split is None
    assert plan.schedule.pack_heads
    assert plan.schedule.split_keys != spec.batch_invariant
    o, lse = call_kernel(call, cache, **scales)
    assert_right(spec, cache, o, lse, roundings=roundings(spec), **scales)


@pytest.mark.parametrize("kv_scale", ["head", "token"])
def test_heads_that_share_tiles(kv_scale: str) -> None:
    spec = spec_of("e4m3", varlen=True, page_size=16, kv_scale=kv_scale, sink=True)
    cache, scales = drawn(spec, "sm90", lengths=LENGTHS, heads=8, heads_kv=2, room=40)
    scales["sinks"] = np.linspace(-2, 3, 8).astype(np.float32)
    run_packed(spec, cache, (3, 0, 5, 41, 29), packs=True, roundings=roundings(spec), **scales)


# Edits of the emitted file, and what the emulator says of them; "" is a wrong result.
FAULTS = {
    "no fence behind what is stored": (
        "proxy_fence(); warp_sync(); if (thread_index() % 32 == 0) { mbarrier_arrive(full); }",
        "warp_sync(); if (thread_index() % 32 == 0) { mbarrier_arrive(full); }",
        ("proxy",),
    ),
    "lanes do not meet before one hands on": (
        "proxy_fence(); warp_sync(); if (thread_index() % 32 == 0) { mbarrier_arrive(full); }",
        "proxy_fence(); if (thread_index() % 32 == 0) { mbarrier_arrive(full); }",
        ("race", "proxy"),
    ),
    "widened before the copies land": (
        "copy_async_wait<0>(); warp_sync(); wait_empty",
        "warp_sync(); wait_empty",
        ("race", "unfinished"),
    ),
    "a buffer that is in use": ("wait_empty<STAGES>(empty, steps);", "", ("race", "deadlock")),
    "entries of keys that nobody sees": (
        "key < COPY_KEYS && is_seen(seen, n, 1)",
        "key < COPY_KEYS",
        ("out_of_bounds",),
    ),
    "no swizzle": ("lane % 4 * 2 ^ lane / 4", "lane % 4 * 2", ("",)),
    "pages of no tile": (
        "if (is_there) { found = find_keys(",
        "if (false) { found = find_keys(",
        ("",),
    ),
    "copies over what is not widened": (
        "widen_eight<BOXES, OF_KEYS>(to + key * ROW_BYTES, copied, factor);",
        "if (steps % 2 == 0) widen_eight<BOXES, OF_KEYS>(to + key * ROW_BYTES, copied, factor);",
        ("", "uninitialised"),
    ),
    "factors over those in use": (
        "SMEM_FACTORS + (steps % STAGES * TILE_N + first_of_share()) * 4",
        "SMEM_FACTORS + first_of_share() * 4",
        ("race", "uninitialised", ""),
    ),
    "handed back before all have read": (
        "s[i + j] *= factors[j % 2]; } } warp_sync();",
        "s[i + j] *= factors[j % 2]; } }",
        ("race",),
    ),
    "factors of the tile behind": (
        "factors = load_factors(first_factor + key_head(params, next.tile) * factor_h, factor_b,"
        " factor_n, found, next.n_tile * TILE_N); // NOTE",
        "// NOTE",
        ("",),
    ),
    "Q before its buffer is free": (
        "turn == turns && thread_index() == 0",
        "turn == turns && turn == 0 && thread_index() == 0",
        ("deadlock", "barrier"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault: str) -> None:
    # NOTE: sequences have more tiles of keys than a ring has.
    spec = spec_of("e4m3", head_dim=96, page_size=16, causal=False, kv_scale="token")
    cache, scales = drawn(spec, "sm90", lengths=(90, 400), seqlen_q=170, heads=2, heads_kv=2)
    plan = lower(spec, default_schedule(spec, SM90, query_hint=MANY), SM90)
    source = emit_source(plan)
    old, new, kinds = FAULTS[fault]
    text = Edit(old=old, new=new).apply(source.text)
    binary = functools.partial(compile_source, with_text(source, text), for_emulator=True)
    assert alarm_of(plan, binary, cache, **scales) in kinds
