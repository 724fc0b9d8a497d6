"""Front ends on NumPy arrays: the parameters of other libraries, each against float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from emulated import TARGET_NAMES

import fmhagen
from fmhagen import dispatch
from fmhagen.errors import (
    InvalidSpecError,
    TensorError,
    TraceError,
    UnsupportedArgumentError,
    UnsupportedSpecError,
)
from fmhagen.frontends import flash
from fmhagen.frontends.flash import flash_attn_func, flash_attn_varlen_func
from fmhagen.frontends.flex import flex_attention
from fmhagen.frontends.sdpa import scaled_dot_product_attention
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.targets import find_target

BF16 = np.dtype(ml_dtypes.bfloat16)
Array = npt.NDArray[Any]
B, H, HK, SQ, SK, D = 2, 4, 2, 37, 83, 64


@pytest.fixture(params=TARGET_NAMES)
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Emulate this target wherever a front end calls `attention`."""
    chip: str = request.param
    function = functools.partial(dispatch.attention, target=chip)
    for module in ("flash", "sdpa", "flex"):
        monkeypatch.setattr(f"fmhagen.frontends.{module}.attention", function)
    return chip


def needs(target: str, *features: str) -> None:
    missing = [name for name in features if name not in find_target(target).features]
    if missing:
        pytest.skip(f"{target} has no {', '.join(missing)} yet")


def normal(seed: int, *shape: int, dtype: Any = BF16) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def bshd(rows: int = SQ, keys: int = SK) -> tuple[Array, Array, Array]:
    return (
        normal(1, B, rows, H, D),
        normal(2, B, keys, HK, D),
        normal(3, B, keys, HK, D),
    )


def bhsd(rows: int = SQ, keys: int = SK) -> tuple[Array, Array, Array]:
    return tuple(x.transpose(0, 2, 1, 3) for x in bshd(rows, keys))  # type: ignore[return-value]


Change = Callable[[Array, Array, Array, Array, Array], Array]


def float64(
    q: Array, k: Array, v: Array, change: Change, sinks: Array | None = None
) -> tuple[Array, Array]:
    """Attention of (b, s, h, d) tensors, whose scores `change(s, b, h, m, n)` may hide or move."""
    q, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = q @ k.transpose(0, 1, 3, 2) * q.shape[-1] ** -0.5
    b, h, m, n = np.ogrid[tuple(slice(size) for size in scores.shape)]
    scores = np.broadcast_to(change(scores, b, h, m, n), scores.shape)
    largest = scores.max(-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        largest = np.maximum(largest, sinks.astype(np.float64)[None, :, None, None])
    base = np.where(np.isfinite(largest), largest, 0)
    p = np.exp(scores - base)
    total = p.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks.astype(np.float64)[None, :, None, None] - base)
    with np.errstate(divide="ignore", invalid="ignore"):
        o = np.where(total > 0, (p @ v) / total, 0)
        lse = np.log(total[..., 0]) + base[..., 0]
    return o.transpose(0, 2, 1, 3), lse


def assert_right(o: Array, lse: Array | None, wanted: tuple[Array, Array]) -> None:
    found = compare(o, lse, wanted[0], None if lse is None else wanted[1])
    assert found.within(tolerance_of("bf16")), str(found)


# ---- attention ----


def test_attention_compiles_a_kind_once(target: str) -> None:
    q, k, v = bshd()
    dispatch._kernel.cache_clear()
    for rows in (SQ, 5, SQ):
        for scale in (None, 0.3):
            o, lse = fmhagen.attention(
                q[:, :rows], k, v, causal=True, scale=scale, return_lse=True, target=target
            )
            factor = 1 if scale is None else scale * D**0.5
            off = SK - rows
            wanted = float64(
                q[:, :rows],
                *(k, v),
                lambda s, b, h, m, n, f=factor, off=off: np.where(n <= m + off, s * f, -np.inf),
            )
            assert_right(o, lse, wanted)
    assert dispatch._kernel.cache_info().misses == 1
    fmhagen.attention(q, k, v, target=target)
    assert dispatch._kernel.cache_info().misses == 2


def test_attention_refuses_what_has_no_meaning(target: str) -> None:
    q, k, v = bshd()
    with pytest.raises(InvalidSpecError, match=r"dtype='fp32': Q, K and V must be one of bf16"):
        fmhagen.attention(q.astype(np.float32), k, v, target=target)
    with pytest.raises(InvalidSpecError, match=r"window=3: must be \(left, right\)"):
        fmhagen.attention(q, k, v, window=3, target=target)  # type: ignore[arg-type]
    with pytest.raises(TensorError, match="takes no such argument; a spec with a mask_mod"):
        fmhagen.attention(q, k, v, params={"sinks": 1}, target=target)
    for given, message in (
        ({"anchor": "top-left"}, "anchor='top-left': must be one of bottom_right, top_left"),
        ({"layout": "sbhd"}, "layout='sbhd': must be one of bshd, bhsd"),
        ({"soft_cap": "5"}, "soft_cap='5': must be a number or None"),
    ):
        with pytest.raises(InvalidSpecError, match=message):
            fmhagen.attention(q, k, v, target=target, **given)
    for slopes in (np.ones(H + 1, np.float32), np.ones((H, B + 1), np.float32)):
        for causal in (False, True):
            with pytest.raises(TensorError, match=r"alibi_slopes=.*must have the shape \(H,\)"):
                flash_attn_func(q, k, v, causal=causal, alibi_slopes=slopes)


def test_numbers_of_numpy_are_numbers(target: str) -> None:
    needs(target, "window", "score_mod")
    q, k, v = bshd()
    plain = fmhagen.attention(
        q, k, v, causal=True, window=(5, 0), soft_cap=2.5, scale=0.25, target=target
    )
    same = fmhagen.attention(
        *(q, k, v),
        causal=np.bool_(True),
        window=(np.int64(5), np.int32(0)),
        soft_cap=np.float32(2.5),
        scale=np.float32(0.25),
        target=target,
    )
    assert np.array_equal(plain.view(np.uint16), same.view(np.uint16))
    spec = fmhagen.AttentionSpec(
        head_dim=np.int64(64), window_left=np.uint8(3), scale=np.float64(0.5), causal=np.True_
    )
    assert repr(spec) == "AttentionSpec(head_dim=64, causal=True, window_left=3, scale=0.5)"


def test_lengths_that_the_call_could_not_mean_are_refused(target: str) -> None:
    q, k, v = bshd()
    lengths = np.full(B, 3, np.int32)
    for name in ("seqused_q", "seqused_k"):
        with pytest.raises(TensorError, match="a spec with varlen=True takes it"):
            fmhagen.attention(q, k, v, target=target, **{name: lengths})
    with pytest.raises(TensorError, match="a spec with varlen=True takes it"):
        fmhagen.attention(q, k, v, cache_seqlens=lengths, seqused_k=lengths, target=target)
    for wrong in (1, "yes", None):
        with pytest.raises(InvalidSpecError, match="True or False"):
            fmhagen.attention(q, k, v, causal=wrong, target=target)


def test_functions_share_a_kernel_and_bring_their_own_tensors(target: str) -> None:
    needs(target, "score_mod")
    q, k, v = bshd()
    dispatch._kernel.cache_clear()
    for seed, factor in ((0, 0.5), (1, 0.5), (2, 2.0)):
        bias = normal(seed, H, SK, dtype=np.float32)

        def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score * factor + bias[h, kv_idx]  # noqa: B023

        o, lse = fmhagen.attention(q, k, v, score_mod=mod, return_lse=True, target=target)
        wanted = float64(q, k, v, lambda s, b, h, m, n, f=factor, x=bias: s * f + x[h, n])
        assert_right(o, lse, wanted)
    assert dispatch._kernel.cache_info().misses == 2  # a captured constant makes another kernel


def test_two_tensors_of_one_name_are_refused(target: str) -> None:
    q, k, v = bshd()

    def of(x: Array) -> Callable[..., Any]:
        return lambda score, b, h, q_idx, kv_idx: score + x[h]

    def visible(x: Array) -> Callable[..., Any]:
        return lambda b, h, q_idx, kv_idx: kv_idx < x[h]

    one, two = np.ones(H, np.int32), np.ones(H, np.int32)
    with pytest.raises(InvalidSpecError, match="capture different tensors of this name"):
        fmhagen.attention(q, k, v, score_mod=of(one), mask_mod=visible(two), target=target)


# ---- FlashAttention ----


@pytest.mark.parametrize(
    ("causal", "window"),
    [(False, (-1, -1)), (True, (-1, -1)), (False, (8, 3)), (True, (17, -1)), (False, (-1, 2))],
)
def test_flash_masks(target: str, causal: bool, window: tuple[int, int]) -> None:
    if window != (-1, -1):
        needs(target, "window")
    q, k, v = bshd()
    o, lse, dropout = flash_attn_func(
        q, k, v, causal=causal, window_size=window, return_attn_probs=True
    )
    assert dropout is None
    left, right = (np.inf if w == -1 else w for w in window)
    if causal:
        right = 0

    def mask(s: Array, b: Array, h: Array, m: Array, n: Array) -> Array:
        at = m + SK - SQ
        return np.where((n >= at - left) & (n <= at + right), s, -np.inf)

    assert_right(o, lse, float64(q, k, v, mask))
    assert np.array_equal(
        flash_attn_func(q, k, v, 0.0, None, causal, window).view(np.uint16), o.view(np.uint16)
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("each", [False, True])
def test_flash_alibi_falls_on_both_sides_of_the_diagonal(
    target: str, causal: bool, each: bool
) -> None:
    needs(target, "score_mod")
    q, k, v = bshd()
    slopes = np.linspace(0.01, 0.3, H, dtype=np.float32)
    given = np.stack([slopes, slopes[::-1]]) if each else slopes

    def change(s: Array, b: Array, h: Array, m: Array, n: Array) -> Array:
        distance = n - (m + SK - SQ)
        slope = given[b, h] if each else given[h]
        moved = s - slope * np.abs(distance)
        return np.where(distance <= 0, moved, -np.inf) if causal else moved

    o, lse, _ = flash_attn_func(q, k, v, causal=causal, alibi_slopes=given, return_attn_probs=True)
    assert_right(o, lse, float64(q, k, v, change))


def test_flash_soft_cap_and_sink(target: str) -> None:
    needs(target, "score_mod", "sink")
    q, k, v = bshd()
    sinks = np.array([0.5, -1.0, 3.0, 8.0], np.float32)
    o, lse, _ = flash_attn_func(q, k, v, softcap=2.0, learnable_sink=sinks, return_attn_probs=True)
    wanted = float64(q, k, v, lambda s, *_: 2 * np.tanh(s / 2), sinks)
    assert_right(o, lse, wanted)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_chunks_end_with_the_last_key(target: str, causal: bool) -> None:
    needs(target, "mask_mod", "varlen")
    q, k, v = bshd()

    def own(rows: int, keys: int) -> Any:
        def mask(s: Array, b: Array, h: Array, m: Array, n: Array) -> Array:
            at = m + keys - rows
            return np.where((at // 20 == n // 20) & ((n <= at) | (not causal)), s, -np.inf)

        return mask

    options = {"causal": causal, "attention_chunk": 20, "return_attn_probs": True}
    o, lse, _ = flash_attn_func(q, k, v, **options)
    assert_right(o, lse, float64(q, k, v, own(SQ, SK)))
    ends_q, ends_k = np.array([0, 30, SQ], np.int32), np.array([0, 25, SK], np.int32)
    o, lse, _ = flash_attn_varlen_func(q[0], k[0], v[0], ends_q, ends_k, 30, 58, **options)
    for i in range(2):
        rows, keys = slice(*ends_q[i : i + 2]), slice(*ends_k[i : i + 2])
        mask = own(rows.stop - rows.start, keys.stop - keys.start)
        wanted = float64(q[:1, rows], k[:1, keys], v[:1, keys], mask)
        assert_right(o[None, rows], lse[None, :, rows], wanted)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_packed_sequences(target: str, causal: bool) -> None:
    needs(target, "varlen")
    ends_q, ends_k = np.array([0, 5, 5, 40, 75]), np.array([0, 30, 30, 31, 140])
    q, k, v = normal(1, 75, H, D), normal(2, 140, HK, D), normal(3, 140, HK, D)
    o, lse, _ = flash_attn_varlen_func(
        *(q, k, v, ends_q, ends_k.astype(np.int32), 35, 109),
        causal=causal,
        return_attn_probs=True,
    )
    assert lse.shape == (H, 75)
    for i in range(4):
        rows, keys = slice(*ends_q[i : i + 2]), slice(*ends_k[i : i + 2])
        off = (keys.stop - keys.start) - (rows.stop - rows.start)

        def mask(s: Array, b: Array, h: Array, m: Array, n: Array, off: int = off) -> Array:
            return np.where(n <= m + off, s, -np.inf) if causal else s

        wanted = float64(q[None, rows], k[None, keys], v[None, keys], mask)
        assert_right(o[None, rows], lse[None, :, rows], wanted)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dropout_p", 0.1),
        ("qv", np.zeros(1)),
        ("attention_chunk", -64),
        ("num_splits", 4),
        ("block_table", np.zeros((1, 1), np.int32)),
        ("q_descale", np.ones(1)),
    ],
)
def test_flash_refuses_by_name_what_it_does_not_do(name: str, value: Any) -> None:
    q, k, v = bshd()
    with pytest.raises(UnsupportedArgumentError, match=f"{name}=.*(use {name}=|or 0)"):
        flash_attn_func(q, k, v, **{name: value})


def test_flash_takes_what_asks_for_nothing_and_no_other_names(target: str) -> None:
    q, k, v = bshd()
    flash_attn_func(q, k, v, deterministic=True, num_splits=1, pack_gqa=None, sm_margin=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        flash_attn_func(q, k, v, colour=1)
    assert flash.__doc__ is not None


# ---- scaled_dot_product_attention ----


@pytest.mark.parametrize(("rows", "keys"), [(SQ, SK), (SK, SQ)])
def test_sdpa_is_anchored_top_left(target: str, rows: int, keys: int) -> None:
    q, k, v = bhsd(rows, keys)
    o = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    wanted = float64(*bshd(rows, keys), lambda s, b, h, m, n: np.where(n <= m, s, -np.inf))
    assert_right(o.transpose(0, 2, 1, 3), None, wanted)


@pytest.mark.parametrize("shape", [(SQ, SK), (SK,), (H, SQ, SK), (B, 1, 1, SK), (B, H, SQ, SK)])
@pytest.mark.parametrize("kind", [np.bool_, np.float32, BF16], ids=["bool", "fp32", "bf16"])
def test_sdpa_masks_are_broadcast(target: str, shape: tuple[int, ...], kind: Any) -> None:
    needs(target, "mask_mod" if kind is np.bool_ else "score_mod")
    mask = normal(7, *shape, dtype=np.float32)
    mask = mask > 0 if kind is np.bool_ else mask.astype(kind)

    def change(s: Array, *_: Array) -> Array:
        return np.where(mask, s, -np.inf) if kind is np.bool_ else s + mask.astype(np.float64)

    o = scaled_dot_product_attention(*bhsd(), mask, enable_gqa=True)
    assert_right(o.transpose(0, 2, 1, 3), None, float64(*bshd(), change))


def test_sdpa_masks_of_other_sizes_are_refused(target: str) -> None:
    q, k, v = bhsd()
    for shape in ((SQ + 1, SK), (SQ, SK + 1), (SQ, SK - 1), (3, 1, SQ, SK), (1, B, H, SQ, SK)):
        for kind in (np.bool_, np.float32):
            with pytest.raises(TensorError, match="must broadcast to the scores"):
                scaled_dot_product_attention(
                    q, k, v, attn_mask=np.zeros(shape, kind), enable_gqa=True
                )


def test_sdpa_rows_that_see_nothing_are_zero(target: str) -> None:
    needs(target, "mask_mod", "score_mod")
    mask = np.ones((SQ, SK), bool)
    mask[3:7] = False
    for given in (mask, np.where(mask, np.float32(0), -np.inf).astype(np.float32)):
        o = scaled_dot_product_attention(*bhsd(), given, enable_gqa=True)
        assert not o[:, :, 3:7].any()
        assert np.isfinite(o.astype(np.float32)).all()


def test_sdpa_of_three_dimensions_and_what_it_refuses(target: str) -> None:
    q, k, v = (x[:, 0] for x in bhsd())
    o = scaled_dot_product_attention(q, k, v)
    wanted = float64(q[:, :, None], k[:, :, None], v[:, :, None], lambda s, *_: s)
    assert_right(o[:, :, None], None, wanted)
    with pytest.raises(UnsupportedArgumentError, match="dropout_p"):
        scaled_dot_product_attention(q, k, v, dropout_p=0.1)
    with pytest.raises(UnsupportedArgumentError, match="is_causal=True"):
        scaled_dot_product_attention(q, k, v, np.ones((SQ, SK), bool), is_causal=True)
    with pytest.raises(TensorError, match="use enable_gqa=True"):
        scaled_dot_product_attention(*bhsd())
    with pytest.raises(TensorError, match="attn_mask='int32': must be bool or a float"):
        scaled_dot_product_attention(q, k, v, np.ones((SQ, SK), np.int32))


@pytest.mark.parametrize("mask", [(B, 1, 1, SQ, SK), (1, B, H, 1, SK), (1, 1, 1, SQ, SK), (SK,)])
def test_sdpa_of_more_batch_axes(target: str, mask: tuple[int, ...]) -> None:
    """Batch axes are one for the kernel; masks repeat along each of them alone."""
    needs(target, "mask_mod")
    heads = [x.reshape(B, x.shape[1], *x.shape[2:]) for x in bhsd()]
    q, k, v = (np.stack([x, x[:, ::-1]], 1) for x in heads)  # (B, 2, ...)
    q, k, v = (x.reshape(B, 2, *x.shape[2:]) for x in (q, k, v))
    shown = normal(8, *mask, dtype=np.float32) > -1
    o = scaled_dot_product_attention(q, k, v, shown, enable_gqa=True)
    assert o.shape == q.shape
    whole = np.broadcast_to(shown, (B, 2, H, SQ, SK))
    for index in range(2):
        one = [x[:, index].transpose(0, 2, 1, 3) for x in (q, k, v)]
        at = whole[:, index]
        wanted = float64(*one, lambda s, *_, at=at: np.where(at, s, -np.inf))
        assert_right(o[:, index].transpose(0, 2, 1, 3), None, wanted)
    with pytest.raises(TensorError, match="the same batch axes"):
        scaled_dot_product_attention(q, k[:, :1], v, enable_gqa=True)
    with pytest.raises(TensorError, match="must broadcast to the scores"):
        scaled_dot_product_attention(q, k, v, np.ones((3, 1, 1, SQ, SK), bool), enable_gqa=True)


# ---- flex_attention ----


def test_flex_functions_run_unchanged(target: str) -> None:
    needs(target, "mask_mod", "score_mod")
    documents = np.repeat(np.arange(5), 20)[:SK].astype(np.int32)

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score - abs(q_idx - kv_idx) * 0.01 * (h + 1)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (documents[q_idx] == documents[kv_idx]) & (q_idx >= kv_idx)

    q, k, v = bhsd(SK, SK)
    o, lse = flex_attention(q, k, v, score_mod, mask_mod, enable_gqa=True, return_lse=True)

    def change(s: Array, b: Array, h: Array, m: Array, n: Array) -> Array:
        s = s - np.abs(m - n) * 0.01 * (h + 1)
        return np.where((documents[m] == documents[n]) & (m >= n), s, -np.inf)

    assert_right(o.transpose(0, 2, 1, 3), lse, float64(*bshd(SK, SK), change))


def test_flex_block_masks_give_their_function_and_must_fit(target: str) -> None:
    def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx >= kv_idx

    q, k, v = bhsd()
    wrong = SimpleNamespace(mask_mod=causal, seq_lengths=(4096, 4096))
    with pytest.raises(TensorError, match=r"was made for \(Sq, Sk\) = \(4096, 4096\), but"):
        flex_attention(q, k, v, block_mask=wrong, enable_gqa=True)
    right = SimpleNamespace(mask_mod=causal, seq_lengths=(SQ, SK))
    try:
        o = flex_attention(q, k, v, block_mask=right, enable_gqa=True)
    except UnsupportedSpecError as error:
        pytest.skip(str(error))
    wanted = float64(*bshd(), lambda s, b, h, m, n: np.where(n <= m, s, -np.inf))
    assert_right(o.transpose(0, 2, 1, 3), None, wanted)


def test_flex_errors_point_at_the_users_line(target: str) -> None:
    def branches(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx if kv_idx > 3 else h

    q, k, v = bhsd()
    with pytest.raises(TraceError, match=r"test_frontends\.py:\d+"):
        flex_attention(q, k, v, block_mask=branches, enable_gqa=True)
    with pytest.raises(UnsupportedArgumentError, match="kernel_options"):
        flex_attention(q, k, v, kernel_options={"BLOCK_M": 64}, enable_gqa=True)
