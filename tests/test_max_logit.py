"""The largest score of each head, raised by the kernels of both targets, against float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from cache_cases import assert_right, make_cache
from emulated import TARGET_NAMES

import fmhagen
from fmhagen.api import compile_kernel, emit, reference
from fmhagen.compile import compile_source
from fmhagen.errors import (
    CompilerNotFoundError,
    InvalidSpecError,
    ScheduleError,
    TensorError,
)
from fmhagen.explaining.loop_nest import loop_nest
from fmhagen.lowering import lower
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.schedule import MainLoop, Rescale, Schedule
from fmhagen.select import choose
from fmhagen.spec import AttentionSpec, CacheScale, DType
from fmhagen.targets import GFX942, SM90

Array = npt.NDArray[Any]
HEADS, HEADS_KV = 4, 2
on_targets = pytest.mark.parametrize("target", TARGET_NAMES)


def tensors(seed: int, rows: tuple[int, ...], keys: tuple[int, ...], depth: int) -> list[Array]:
    """q, k and v whose first head has scores below 0 alone, which rows past the last do not."""
    rng = np.random.default_rng(seed)
    q, k, v = (
        rng.standard_normal((*shape, heads, depth))
        for shape, heads in ((rows, HEADS), (keys, HEADS_KV), (keys, HEADS_KV))
    )
    q[..., 0, :], k[..., 0, :] = abs(q[..., 0, :]), -abs(k[..., 0, :])
    return [x.astype(np.float32).astype(ml_dtypes.bfloat16) for x in (q, k, v)]


def nothing() -> npt.NDArray[np.float32]:
    return np.full(HEADS, -np.inf, np.float32)


def close(found: Array, expected: Array) -> None:
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(expected))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)


SPECS = {
    "plain": AttentionSpec(head_dim=128, max_logit=True),
    "causal": AttentionSpec(head_dim=64, causal=True, max_logit=True),
    "window_sink": AttentionSpec(
        head_dim=64, causal=True, window_left=30, sink=True, max_logit=True
    ),
    "no_key": AttentionSpec(
        head_dim=64, mask_mod="(h != 1) & (kv_idx <= q_idx)", soft_cap=2.0, max_logit=True
    ),
    "groups": AttentionSpec(head_dim=192, max_logit=True),
}


@on_targets
@pytest.mark.parametrize("name", [name for name in SPECS if name != "causal"])
def test_it_is_the_largest_score_of_visible_keys(name: str, target: str) -> None:
    spec = SPECS[name]
    q, k, v = tensors(len(name), (2, 131), (2, 200), spec.d)
    # The largest scores of all, where the masks hide them: no query sees the last key but the last.
    if spec.causal:
        k[:, -1] = 30
        q[:, -1] = -q[:, -1]
    extras = {"sinks": np.full(HEADS, 50, np.float32)} if spec.sink else {}
    found, expected = nothing(), np.full(HEADS, -np.inf)
    kernel = compile_kernel(spec, device="emulator", target=target)
    o = kernel(q, k, v, max_logit=found, **extras)
    o_ref, _ = reference(spec, q, k, v, max_logit=expected, **extras)
    close(found, expected)
    np.testing.assert_allclose(o.astype(float), o_ref, atol=0.03)
    assert np.isneginf(found[1]) == (name == "no_key")
    if name in ("plain", "groups"):
        assert found[0] < 0


@on_targets
def test_packed_sequences_share_it_and_memory_behind_them_does_not_count(target: str) -> None:
    spec = AttentionSpec(head_dim=64, causal=True, varlen=True, max_logit=True)
    rows, keys, spare = (70, 0, 5, 130), (90, 40, 0, 130), 7
    ends = [np.cumsum([0, *(n + spare for n in ns)]).astype(np.int32) for ns in (rows, keys)]
    q, k, v = tensors(3, (int(ends[0][-1]),), (int(ends[1][-1]),), 64)
    for x, starts, lengths in ((q, ends[0], rows), (k, ends[1], keys), (v, ends[1], keys)):
        for start, length in zip(starts, lengths, strict=False):
            x[start + length : start + length + spare] = np.nan
    extras = {
        "cu_seqlens_q": ends[0],
        "cu_seqlens_k": ends[1],
        "seqused_q": np.array(rows, np.int32),
        "seqused_k": np.array(keys, np.int32),
    }
    found, expected = nothing(), np.full(HEADS, -np.inf)
    compile_kernel(spec, device="emulator", target=target)(q, k, v, max_logit=found, **extras)
    reference(spec, q, k, v, max_logit=expected, **extras)
    close(found, expected)


@on_targets
def test_it_goes_on_from_call_to_call_and_its_bits_have_no_order(target: str) -> None:
    spec = SPECS["causal"]
    first, second = (tensors(seed, (1, 150), (1, 150), 64) for seed in (1, 2))
    bits = set()
    for seed, calls in ((0, (first, second)), (1, (second, first)), (2, (first, second))):
        options = EmulatorOptions(seed=seed, compute_units=2 + seed)
        kernel = compile_kernel(spec, device="emulator", target=target, emulator=options)
        found = nothing()
        plain = [kernel(*call) for call in calls]
        for call, o in zip(calls, plain, strict=True):
            assert np.array_equal(kernel(*call, max_logit=found).view(np.uint16), o.view(np.uint16))
        bits.add(found.tobytes())
    assert len(bits) == 1
    kept = np.full(HEADS, 1e4, np.float32)
    kernel(*first, max_logit=kept)
    assert (kept == 1e4).all()


@on_targets
def test_one_call_gives_it_beside_o_and_lse(target: str) -> None:
    q, k, v = tensors(5, (1, 40), (1, 60), 64)
    o, lse, found = fmhagen.attention(
        q, k, v, causal=True, return_lse=True, return_max_logit=True, target=target
    )
    expected = np.full(HEADS, -np.inf)
    _, lse_ref = reference(SPECS["causal"], q, k, v, max_logit=expected)
    close(found, expected)
    np.testing.assert_allclose(lse, lse_ref, atol=1e-3)
    empty = fmhagen.attention(q[:, :0], k, v, return_max_logit=True, target=target)
    assert empty[0].shape[1] == 0
    assert np.isneginf(empty[1]).all()
    assert o.shape == q.shape


CACHES = {
    "decode": AttentionSpec(
        head_dim=64, causal=True, page_size=16, sink=True, soft_cap=3.0, max_logit=True
    ),
    "speculative": AttentionSpec(head_dim=64, kv_cache=True, causal=True, max_logit=True),
    "small": AttentionSpec(
        head_dim=64,
        causal=True,
        window_left=70,
        page_size=3,
        kv_dtype=DType.E4M3,
        kv_scale=CacheScale.HEAD,
        max_logit=True,
    ),
    "no_key": AttentionSpec(
        head_dim=64, page_size=8, mask_mod="(h != 1) & (kv_idx < 9)", max_logit=True
    ),
    "prefill": AttentionSpec(
        head_dim=64, page_size=16, causal=True, mask_mod="kv_idx % 3 != 0", max_logit=True
    ),
}


@on_targets
@pytest.mark.parametrize("name", CACHES)
def test_it_is_the_largest_over_a_cache_however_its_keys_are_cut(name: str, target: str) -> None:
    spec = CACHES[name]
    rows = {"speculative": 5, "prefill": 70}.get(name, 1)
    lengths = (0, 130, 1, 300, 77)
    cache = make_cache(spec, lengths=lengths, seqlen_q=rows, room=20, target=target)
    given: dict[str, Any] = {"cache_seqlens": cache.lengths}
    if cache.table is not None:
        given["block_table"] = cache.table
    if spec.sink:
        given["sinks"] = np.full(HEADS, 50, np.float32)
    if spec.kv_scale != "none":
        scale = np.linspace(0.5, 2, 10, dtype=np.float32).reshape(5, 2)
        given |= {"k_scale": scale, "v_scale": scale}
    expected = np.full(HEADS, -np.inf)
    reference(spec, cache.q, cache.k, cache.v, max_logit=expected, **given)
    hint = 70 if name == "prefill" else None
    bits = set()
    for seed, units in ((0, 1), (1, 40)):
        options = EmulatorOptions(seed=seed, compute_units=units)
        kernel = compile_kernel(
            spec, device="emulator", target=target, emulator=options, query_hint=hint
        )
        found = nothing()
        o, lse = kernel(cache.q, cache.k, cache.v, return_lse=True, max_logit=found, **given)
        assert_right(
            spec, cache, o, lse, **{n: given[n] for n in given if "sca" in n or "sin" in n}
        )
        close(found, expected)
        bits.add(found.tobytes())
    assert len(bits) == 1
    assert np.isneginf(found[1]) == (name == "no_key")


def test_one_call_gives_it_over_a_cache() -> None:
    spec = CACHES["speculative"]
    cache = make_cache(spec, lengths=(9, 65), seqlen_q=2, room=3)
    o, found = fmhagen.attention(
        *(cache.q, cache.k, cache.v),
        causal=True,
        cache_seqlens=cache.lengths,
        return_max_logit=True,
    )
    expected = np.full(HEADS, -np.inf)
    reference(spec, cache.q, cache.k, cache.v, cache_seqlens=cache.lengths, max_logit=expected)
    close(found, expected)
    assert o.shape == cache.q.shape


def test_what_it_cannot_be_is_refused_by_name() -> None:
    q, k, v = tensors(6, (1, 20), (1, 20), 64)
    kernel = compile_kernel(SPECS["causal"], device="emulator")
    frozen = nothing()
    frozen.flags.writeable = False
    for wrong, limit in (
        (nothing().astype(np.float64), "element type fp32"),
        (np.zeros((1, HEADS), np.float32), "shape"),
        (np.zeros(HEADS + 1, np.float32), "shape"),
        (np.zeros(2 * HEADS, np.float32)[::2], "densely"),
        (frozen, "writable"),
    ):
        with pytest.raises(TensorError, match=limit) as caught:
            kernel(q, k, v, max_logit=wrong)
        assert caught.value.field == "max_logit"
    plain = compile_kernel(AttentionSpec(head_dim=64), device="emulator")
    with pytest.raises(TensorError, match="a spec with max_logit=True takes it"):
        plain(q, k, v, max_logit=nothing())
    with pytest.raises(InvalidSpecError, match="True or False"):
        AttentionSpec(max_logit=1)  # type: ignore[arg-type]
    cached = compile_kernel(AttentionSpec(head_dim=64, kv_cache=True), device="emulator")
    with pytest.raises(TensorError, match="a spec with max_logit=True takes it"):
        cached(q, k, v, max_logit=nothing())


def test_schedules_that_take_no_maximum_are_refused() -> None:
    spec = SPECS["causal"]
    chosen = choose(spec, SM90)
    assert chosen.schedule.rescale == Rescale.ALWAYS
    assert any("largest score" in reason for reason in chosen.reasons)
    for rescale in (Rescale.ON_GROWTH, Rescale.ON_OVERFLOW):
        with pytest.raises(ScheduleError, match="use rescale='always'"):
            lower(spec, dataclasses.replace(chosen.schedule, rescale=rescale), SM90)
    interleaved = Schedule(main_loop=MainLoop.WAVE_INTERLEAVED, tile_m=128, tile_n=64, consumers=4)
    with pytest.raises(ScheduleError, match="keeps no largest score"):
        lower(spec, interleaved, GFX942)


@on_targets
def test_a_kernel_that_does_not_keep_it_has_no_word_of_it(target: str) -> None:
    for spec in SPECS.values():
        plain = emit(dataclasses.replace(spec, max_logit=False), target=target).text
        assert "max_logit" not in plain
        assert "raise_global" not in plain
        plan = fmhagen.lower(spec, target=target)
        assert "raise_max_logit" in emit(spec, target=target).text
        assert any("max_logit[h]" in line for line in loop_nest(plan))


@on_targets
@pytest.mark.parametrize(
    "spec",
    [
        AttentionSpec(head_dim=128, causal=True, soft_cap=20.0, max_logit=True),
        AttentionSpec(head_dim=256, causal=True, soft_cap=20.0, max_logit=True),
        AttentionSpec(head_dim=256, causal=True, page_size=16, soft_cap=20.0, max_logit=True),
    ],
    ids=["128", "256", "cache256"],
)
def test_it_takes_registers_that_are_there(spec: AttentionSpec, target: str) -> None:
    try:
        binary = compile_source(emit(spec, target=target))  # a spill is an error
    except CompilerNotFoundError as missing:
        pytest.skip(str(missing))
    assert binary.resources.clean
