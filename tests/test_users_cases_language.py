"""Problems that users meet with windows, masks, score functions, sinks and packed sequences.

As in test_users_cases: with q = 0 and v[j] = j, O is the mean of the visible keys' indices. The
two-call probe changes one thing that a kernel or a layout bakes in, and expects that to show.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from emulated import TARGET_NAMES

import fmhagen
from fmhagen.api import Kernel, compile_kernel, reference
from fmhagen.errors import TensorError
from fmhagen.expr.mods import MaskMod, ScoreMod
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.spec import AttentionSpec
from fmhagen.targets import find_target

BF16 = np.dtype(ml_dtypes.bfloat16)
Array = npt.NDArray[Any]
pytestmark = pytest.mark.parametrize("target", TARGET_NAMES)


def needs(target: str, *features: str) -> None:
    missing = [name for name in features if name not in find_target(target).features]
    if missing:
        pytest.skip(f"{target} has no {', '.join(missing)} yet")


@functools.cache
def kernel_of(spec: AttentionSpec, target: str) -> Kernel:
    return compile_kernel(spec, device="emulator", target=target)


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(BF16)


def same_bits(a: Array, b: Array) -> bool:
    return a.shape == b.shape and np.array_equal(
        np.ascontiguousarray(a).view(np.uint16), np.ascontiguousarray(b).view(np.uint16)
    )


def indices(rows: int, keys: int, *, heads: int = 1, depth: int = 64) -> tuple[Array, Array, Array]:
    """q = 0, k random, v[j] = j."""
    q = np.zeros((1, rows, heads, depth), BF16)
    k = normal(0, 1, keys, 1, depth)
    v = np.broadcast_to(np.arange(keys, dtype=np.float32)[None, :, None, None], k.shape)
    return q, k, v.astype(BF16)


def assert_right(spec: AttentionSpec, o: Array, lse: Array, *tensors: Array, **extras: Any) -> None:
    found = compare(o, lse, *reference(spec, *tensors, **extras))
    assert found.within(tolerance_of(spec.dtype)), str(found)


def ends(*lengths: int) -> Array:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


# ---- windows ----


@pytest.mark.parametrize(("rows", "keys"), [(130, 130), (70, 200), (200, 70)])
def test_a_window_of_everything_is_the_causal_mask(target: str, rows: int, keys: int) -> None:
    needs(target, "window")
    q, k, v = normal(1, 1, rows, 2, 64), normal(2, 1, keys, 1, 64), normal(3, 1, keys, 1, 64)
    whole = max(rows, keys)
    specs = (
        AttentionSpec(head_dim=64, causal=True),
        AttentionSpec(head_dim=64, window_left=-1, window_right=0),
        AttentionSpec(head_dim=64, window_left=whole, window_right=0),
        AttentionSpec(head_dim=64, window_left=whole - 1, window_right=0),
        AttentionSpec(head_dim=64, causal=True, window_left=whole, window_right=5),
    )
    for spec in specs:
        o, lse = kernel_of(spec, target)(q, k, v, return_lse=True)
        assert_right(specs[0], o, lse, q, k, v)


@pytest.mark.parametrize("left", [127, 128])
def test_the_window_of_one_query_behind_many_keys(target: str, left: int) -> None:
    """Sink, window and eight heads a group, in a packed batch: 128 to the left see 127..255."""
    needs(target, "window", "sink", "varlen")
    spec = AttentionSpec(head_dim=64, causal=True, window_left=left, sink=True, varlen=True)
    q, k, v = (x[0] for x in indices(1, 256, heads=8))
    for sinks in (np.full(8, -1e30, np.float32), np.linspace(-2, 8, 8, dtype=np.float32)):
        extras = {"cu_seqlens_q": ends(1), "cu_seqlens_k": ends(256), "sinks": sinks}
        o, lse = kernel_of(spec, target)(q, k, v, return_lse=True, **extras)
        mean = np.arange(255 - left, 256).mean()
        share = (left + 1) / (left + 1 + np.exp(sinks.astype(np.float64)))
        np.testing.assert_allclose(o[0, :, 0].astype(np.float64), mean * share, rtol=2**-7)
        np.testing.assert_allclose(lse[:, 0], np.log((left + 1) / share), rtol=1e-5)


def test_a_kernel_for_a_window_has_that_window_alone(target: str) -> None:
    needs(target, "window")
    q, k, v = indices(300, 300)
    for left, right in ((5, 0), (6, 0), (5, None), (None, 3)):
        spec = AttentionSpec(head_dim=64, window_left=left, window_right=right)
        o = kernel_of(spec, target)(q, k, v)[0, :, 0, 0].astype(np.float64)
        m = np.arange(300)
        first = np.zeros(300, int) if left is None else np.maximum(m - left, 0)
        last = np.full(300, 299) if right is None else np.minimum(m + right, 299)
        np.testing.assert_allclose(o, (first + last) / 2, rtol=2**-7, atol=2**-7)


# ---- sinks ----


def test_every_row_has_the_sink(target: str) -> None:
    """Four tokens of a speculative step are what each is alone."""
    needs(target, "sink")
    spec = AttentionSpec(head_dim=64, causal=True, sink=True)
    q, k, v = normal(1, 1, 4, 8, 64), normal(2, 1, 20, 1, 64), normal(3, 1, 20, 1, 64)
    sinks = np.arange(8, dtype=np.float32)
    o, lse = kernel_of(spec, target)(q, k, v, sinks=sinks, return_lse=True)
    assert_right(spec, o, lse, q, k, v, sinks=sinks)
    for row in range(4):
        keys = 17 + row
        alone, _ = kernel_of(spec, target)(
            *(q[:, row : row + 1], k[:, :keys], v[:, :keys]), sinks=sinks, return_lse=True
        )
        assert np.abs(alone.astype(float)[:, 0] - o.astype(float)[:, row]).max() < 0.02


def test_a_sink_alone(target: str) -> None:
    """No key is visible: nothing is weighed, and LSE is the sink."""
    needs(target, "sink")
    spec = AttentionSpec(head_dim=64, causal=True, sink=True)
    q, k, v = normal(1, 1, 5, 2, 64), normal(2, 1, 2, 1, 64), normal(3, 1, 2, 1, 64)
    sinks = np.array([0.5, -3.0], np.float32)
    o, lse = kernel_of(spec, target)(q, k, v, sinks=sinks, return_lse=True)
    assert not o[:, :3].astype(np.float32).any()
    np.testing.assert_allclose(lse[0, :, :3], np.repeat(sinks[:, None], 3, 1), rtol=1e-6)
    assert_right(spec, o, lse, q, k, v, sinks=sinks)


# ---- packed sequences ----


def test_a_sequence_without_keys_merges_as_nothing(target: str) -> None:
    needs(target, "varlen")
    spec = AttentionSpec(head_dim=64, varlen=True)
    kernel = kernel_of(spec, target)
    q, k, v = normal(1, 4, 2, 64), normal(2, 3, 1, 64), normal(3, 3, 1, 64)
    o, lse = kernel(q, k, v, cu_seqlens_q=ends(2, 2), cu_seqlens_k=ends(0, 3), return_lse=True)
    assert not o[:2].astype(np.float32).any()
    assert np.all(lse[:, :2] == -np.inf)
    other = kernel(q, k, v, cu_seqlens_q=ends(2, 2), cu_seqlens_k=ends(3, 0), return_lse=True)
    merged = fmhagen.merge_states([o, other[0]], [lse, other[1]], target=target)
    assert same_bits(merged[0][:2], other[0][:2])
    assert same_bits(merged[0][2:], o[2:])
    assert np.array_equal(merged[1], np.where(np.isinf(lse), other[1], lse))


def test_a_sequence_that_has_run_out_of_prefix(target: str) -> None:
    needs(target, "varlen")
    spec = AttentionSpec(head_dim=64, varlen=True)
    kernel = kernel_of(spec, target)
    q = normal(1, 6, 2, 64)
    k, v = normal(2, 12, 1, 64), normal(3, 12, 1, 64)
    order = [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7]  # sequence 0 has 8 keys in two chunks
    chunks = [
        kernel(
            *(q, k[a], v[a]), cu_seqlens_q=ends(3, 3), cu_seqlens_k=ends(*lengths), return_lse=True
        )
        for a, lengths in ((order[:8], (4, 4)), (order[8:], (4, 0)))
    ]
    o, lse = fmhagen.merge_states([c[0] for c in chunks], [c[1] for c in chunks], target=target)
    whole = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert_right(
        *(spec, o, lse, q, k[whole], v[whole]), cu_seqlens_q=ends(3, 3), cu_seqlens_k=ends(8, 4)
    )
    assert same_bits(o[3:], chunks[0][0][3:])


def test_cross_attention_with_unrelated_packed_lengths(target: str) -> None:
    needs(target, "varlen")
    spec = AttentionSpec(head_dim=64, varlen=True)
    q, k, v = np.ones((64, 1, 64), BF16), np.ones((128, 1, 64), BF16), indices(1, 128)[2][0]
    o = kernel_of(spec, target)(
        *(q, k, v),
        cu_seqlens_q=ends(64),
        cu_seqlens_k=ends(128),
        seqused_k=np.array([32], np.int32),
    )
    assert np.all(o.astype(np.float32) == 15.5)


@pytest.mark.parametrize("lengths", [(0, 0, 0, 1), (0, 1, 0, 1), (1, 0, 0, 0)])
def test_fewer_rows_than_sequences(target: str, lengths: tuple[int, ...]) -> None:
    needs(target, "varlen")
    for heads, heads_kv, causal in ((21, 7, True), (9, 3, False)):
        spec = AttentionSpec(head_dim=64, varlen=True, causal=causal)
        q = normal(1, sum(lengths), heads, 64)
        k, v = normal(2, 40, heads_kv, 64), normal(3, 40, heads_kv, 64)
        extras = {"cu_seqlens_q": ends(*lengths), "cu_seqlens_k": ends(10, 3, 0, 27)}
        o, lse = kernel_of(spec, target)(q, k, v, max_seqlen_q=1, return_lse=True, **extras)
        assert_right(spec, o, lse, q, k, v, **extras)


def test_what_lies_outside_a_sequence_has_no_effect(target: str) -> None:
    """NaN in neighbours, in rows that are not used, and in front of a view."""
    needs(target, "varlen")
    spec = AttentionSpec(head_dim=64, varlen=True, causal=True)
    lengths_q, lengths_k = (70, 0, 5, 64), (130, 9, 64, 200)
    q, k, v = (
        normal(seed, total, heads, 64)
        for seed, total, heads in ((1, 139, 2), (2, 403, 1), (3, 403, 1))
    )
    used = np.array([100, 9, 64, 128], np.int32)
    extras = {"cu_seqlens_q": ends(*lengths_q), "cu_seqlens_k": ends(*lengths_k), "seqused_k": used}
    kernel = kernel_of(spec, target)
    expected, expected_lse = kernel(q, k, v, return_lse=True, **extras)
    assert_right(spec, expected, expected_lse, q, k, v, **extras)
    starts = ends(*lengths_k)
    for tensor in (k, v):
        for b, length in enumerate(lengths_k):
            tensor[starts[b] + used[b] : starts[b] + length] = np.nan
    o, lse = kernel(q, k, v, return_lse=True, **extras)
    assert same_bits(o, expected)
    assert np.array_equal(lse, expected_lse)
    # each sequence alone gives the same bits as among its mates
    rows = ends(*lengths_q)
    for b in range(4):
        a, z = slice(rows[b], rows[b + 1]), slice(starts[b], starts[b] + used[b])
        if a.stop > a.start:
            alone = kernel(
                *(q[a], k[z], v[z]),
                cu_seqlens_q=ends(lengths_q[b]),
                cu_seqlens_k=ends(int(used[b])),
            )
            assert np.abs(alone.astype(float) - expected[a].astype(float)).max() < 0.02


def test_views_of_packed_tensors(target: str) -> None:
    needs(target, "varlen")
    spec = AttentionSpec(head_dim=64, varlen=True)
    fused = normal(1, 90, 4, 64)  # q, q, k, v side by side
    dense = [np.ascontiguousarray(x) for x in (fused[:, :2], fused[:, 2:3], fused[:, 3:])]
    extras = {"cu_seqlens_q": ends(33, 57), "cu_seqlens_k": ends(33, 57)}
    kernel = kernel_of(spec, target)
    expected = kernel(*dense, **extras)
    assert same_bits(kernel(fused[:, :2], fused[:, 2:3], fused[:, 3:], **extras), expected)
    gaps = np.full((90, 2, 128), 7, BF16)
    out = gaps[:, :, :64]
    assert kernel(*dense, out=out, **extras) is out
    assert same_bits(out, expected)
    assert np.all(gaps[:, :, 64:] == 7)


def test_metadata_for_other_tensors_is_refused(target: str) -> None:
    needs(target, "varlen")
    spec = AttentionSpec(head_dim=64, varlen=True)
    q, k = normal(1, 5, 1, 64), normal(2, 10, 1, 64)
    with pytest.raises(TensorError, match="cu_seqlens_k=20: the last offset must be the rows of k"):
        kernel_of(spec, target)(q, k, k, cu_seqlens_q=ends(5), cu_seqlens_k=ends(20))
    with pytest.raises(TensorError, match="max_seqlen_q=3: must be at least the longest"):
        kernel_of(spec, target)(
            q, k, k, cu_seqlens_q=ends(5), cu_seqlens_k=ends(10), max_seqlen_q=3
        )


# ---- functions ----


def test_two_calls_that_differ_in_one_thing(target: str) -> None:
    """Constants, numbers, tensors, strides and kinds of parameters are those of each call."""
    needs(target, "score_mod", "mask_mod")
    q, k, v = normal(1, 2, 33, 2, 64), normal(2, 2, 70, 2, 64), normal(3, 2, 70, 2, 64)
    bias = np.random.default_rng(4).standard_normal((2, 2, 33, 70)).astype(np.float32)
    for factor, cut in itertools.product((1.0, -0.5), (70, 20)):
        text = f"bias: f32[4]; score * {factor} + bias[b, h, q_idx, kv_idx]"
        spec = AttentionSpec(head_dim=64, score_mod=text, mask_mod=f"kv_idx < {cut}")
        for given in (
            bias,
            bias[:, ::-1],
            bias[:1],
            bias[:, :, :1],
            np.broadcast_to(bias[:, :, :, :1], bias.shape),
            np.asfortranarray(bias),
        ):
            given = np.ascontiguousarray(given) if given.strides[1] < 0 else given
            params = {"bias": given}
            full = {"bias": np.broadcast_to(given, bias.shape)}
            o, lse = kernel_of(spec, target)(q, k, v, params=params, return_lse=True)
            assert_right(spec, o, lse, q, k, v, params=full)


def test_a_score_function_that_ignores_its_score(target: str) -> None:
    needs(target, "score_mod")
    q, k, v = normal(1, 1, 20, 1, 64), normal(2, 1, 90, 1, 64), indices(20, 90)[2]
    spec = AttentionSpec(head_dim=64, score_mod="0.0")
    o = kernel_of(spec, target)(q, k, v)
    assert np.all(np.abs(o[..., 0].astype(float) - 44.5) < 0.3)
    # What it captures and does not use, the cap and the slopes have no effect, and are taken.
    bias = np.zeros((1, 90), np.float32)
    ignores = MaskMod(lambda b, h, m, n: np.where(True, n < 90, bias[h, n] > 0))
    given = {"alibi_slopes": np.ones(1, np.float32), "soft_cap": 3.0}
    for constant in (
        lambda s, b, h, m, n: 0.25,
        ScoreMod(lambda s, b, h, m, n: s + bias[h, n]).then(ScoreMod("2.0")),
    ):
        same = fmhagen.attention(
            *(q, k, v), score_mod=constant, mask_mod=ignores, target=target, **given
        )
        assert (same == o).all()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("cached", [False, True])
def test_numbers_that_stand_for_minus_infinity(target: str, cached: bool, dtype: str) -> None:
    """A row may meet them for whole tiles before a score, after one, and see nothing else."""
    needs(target, "score_mod")
    kind = BF16 if dtype == "bf16" else np.float16
    q, k, v = (normal(n, 1, rows, 2, 64).astype(kind) for n, rows in ((1, 9), (2, 300), (3, 300)))
    bias = np.zeros((9, 300), np.float32)
    bias[:, :130] = bias[3:, 250:] = bias[7] = -1e30
    for text, params in (
        ("bias: f32[2]; score + bias[q_idx, kv_idx]", {"bias": bias}),
        ("where((q_idx % 4 == 3) | (kv_idx >= 150), -1e30, score)", None),
        ("where((kv_idx < 160) | (q_idx == 2), -1e9, score)", None),
    ):
        spec = AttentionSpec.from_dict(
            {
                "dtype": dtype,
                "head_dim": 64,
                "causal": not cached,
                "score_mod": text,
                "kv_cache": cached,
            }
        )
        given = {} if params is None else {"params": params}
        o, lse = kernel_of(spec, target)(q, k, v, return_lse=True, **given)
        right = reference(spec, q, k, v, **given)
        assert np.isneginf(right[1]).any()
        assert compare(o, lse, *right).within(tolerance_of(dtype))


def test_a_mask_that_hides_whole_tiles_in_the_middle(target: str) -> None:
    needs(target, "mask_mod")
    spec = AttentionSpec(head_dim=64, mask_mod="(kv_idx < 3) | ((kv_idx >= 300) & (kv_idx < 305))")
    o, lse = kernel_of(spec, target)(*indices(130, 700), return_lse=True)
    mean = np.concatenate([np.arange(3), np.arange(300, 305)]).mean()
    np.testing.assert_allclose(o[0, :, 0, 0].astype(float), mean, rtol=2**-7)
    np.testing.assert_allclose(lse, np.log(8), rtol=1e-5)
