"""flash_attn_with_kvcache on the emulator: appended and rotated rows, pages, against float64."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from fmhagen.dispatch import attention
from fmhagen.errors import TensorError, UnsupportedArgumentError
from fmhagen.frontends import kvcache
from fmhagen.frontends.flash import flash_attn_varlen_func
from fmhagen.frontends.kvcache import flash_attn_with_kvcache
from fmhagen.oracle.attention import reference
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.paging import PageTables, csr_of
from fmhagen.runtime.emulator_backend import LoadedEmulator
from fmhagen.spec import AttentionSpec, CacheScale, DType

BF16 = np.dtype(ml_dtypes.bfloat16)
Array = npt.NDArray[Any]
B, H, HK, D, PAGE, ROOM = 3, 4, 2, 64, 16, 160
LENGTHS = (0, 37, 120)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvcache, "_kernel", functools.partial(kvcache._kernel, target="sm90"))


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(BF16)


def check(o: Array, lse: Array | None, right: tuple[Array, Array]) -> None:
    found = compare(o, right[1] if lse is None else lse, *right)
    assert found.within(tolerance_of("bf16")), found


def turn(x: Array, positions: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rotate rows (n, heads, d) one by one, as the papers write it."""
    half = cos.shape[1]
    out = x.astype(np.float64)
    for n, position in enumerate(positions):
        for i in range(half):
            pair = (2 * i, 2 * i + 1) if interleaved else (i, half + i)
            a, b = (x[n, :, column].astype(np.float64) for column in pair)
            c, s = float(cos[position, i]), float(sin[position, i])
            out[n, :, pair[0]], out[n, :, pair[1]] = a * c - b * s, a * s + b * c
    return out.astype(BF16)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("rotary", [None, "interleaved", "halves"])
def test_append_rotate_attend(paged: bool, rotary: str | None) -> None:
    new = 2
    rng = np.random.default_rng(3)
    q, k, v = normal(1, B, new, H, D), normal(2, B, new, HK, D), normal(4, B, new, HK, D)
    lengths = np.array(LENGTHS, np.int32)
    flat = normal(5, B, ROOM, HK, D), normal(6, B, ROOM, HK, D)
    caches, table = [x.copy() for x in flat], None
    if paged:
        table = rng.permutation(B * ROOM // PAGE).astype(np.int32).reshape(B, -1)
        caches = [np.zeros((B * ROOM // PAGE, PAGE, HK, D), BF16) for _ in flat]
        for cache, source in zip(caches, flat, strict=True):
            cache[table.reshape(-1)] = source.reshape(-1, PAGE, HK, D)
    options: dict[str, Any] = {}
    own_q, own_k = q.copy(), k.copy()
    if rotary is not None:
        angles = rng.uniform(-3, 3, (ROOM, 16)).astype(np.float32)
        cos, sin = np.cos(angles), np.sin(angles)
        interleaved = rotary == "interleaved"
        options = {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": interleaved}
        for b in range(B):
            positions = lengths[b] + np.arange(new)
            own_q[b] = turn(q[b], positions, cos, sin, interleaved)
            own_k[b] = turn(k[b], positions, cos, sin, interleaved)
    o, lse = flash_attn_with_kvcache(
        *(q, caches[0], caches[1], k, v),
        cache_seqlens=lengths,
        block_table=table,
        causal=True,
        return_softmax_lse=True,
        **options,
    )
    assert list(lengths) == list(LENGTHS)
    wanted = [x.copy() for x in flat]
    for b in range(B):
        wanted[0][b, lengths[b] : lengths[b] + new] = own_k[b]
        wanted[1][b, lengths[b] : lengths[b] + new] = v[b]
    for cache, x in zip(caches, wanted, strict=True):
        rows = cache if table is None else cache[table].reshape(x.shape)
        # NOTE: bit for bit, but for the last bit of what was rotated in fp32.
        np.testing.assert_allclose(rows.astype(np.float32), x.astype(np.float32), rtol=0.01)
    spec = AttentionSpec(head_dim=D, causal=True, kv_cache=True)
    right = reference(spec, own_q, *wanted, cache_seqlens=lengths + new)
    check(o, lse, right)


def test_batch_index_reads_entries_of_a_contiguous_cache() -> None:
    q, k, v = normal(1, 2, 1, H, D), normal(2, 4, ROOM, HK, D), normal(3, 4, ROOM, HK, D)
    index, lengths = np.array([3, 1]), np.array([50, 160], np.int32)
    k[[0, 2]] = v[[0, 2]] = np.nan
    o = flash_attn_with_kvcache(q, k, v, cache_batch_idx=index, cache_seqlens=lengths)
    spec = AttentionSpec(head_dim=D, kv_cache=True)
    right = reference(spec, q, k[index], v[index], cache_seqlens=lengths)
    check(o, None, right)


@pytest.mark.parametrize("max_pages", [None, 4])
def test_tables_of_flashinfer(max_pages: int | None) -> None:
    """In CSR form, as they are; their lengths hold where nothing is appended."""
    lengths, size = (37, 0, 64), 16
    rng = np.random.default_rng(9)
    table = rng.permutation(12).astype(np.int32).reshape(3, 4)
    q, pages = normal(1, 3, 1, H, D), [normal(s, 12, size, HK, D) for s in (2, 3)]
    csr = csr_of(table, np.array(lengths, np.int32), size)
    csr = dataclasses.replace(csr, max_pages=max_pages)
    o, lse = flash_attn_with_kvcache(q, *pages, block_table=csr, return_softmax_lse=True)
    spec = AttentionSpec(head_dim=D, kv_cache=True)
    flat = [cache[table].reshape(3, -1, HK, D) for cache in pages]
    check(o, lse, reference(spec, q, *flat, cache_seqlens=np.array(lengths, np.int32)))
    before = np.array([36, 0, 63], np.int32)
    k, v = normal(4, 3, 1, HK, D), normal(5, 3, 1, HK, D)
    with pytest.raises(TensorError, match="cache_seqlens"):
        flash_attn_with_kvcache(q, *pages, k, v, page_table=csr)
    whole = csr_of(table, np.array((37, 1, 64), np.int32), size)
    tables = PageTables(block_table=table, cache_seqlens=before, page_size=size)
    for given in (whole, tables):
        flash_attn_with_kvcache(q, *pages, k, v, cache_seqlens=before, page_table=given)
        for b, length in enumerate(before):
            page, slot = divmod(int(length), size)
            assert (pages[0][table[b, page], slot] == k[b, 0]).all()
            assert (pages[1][table[b, page], slot] == v[b, 0]).all()


def test_rows_without_room_are_dropped() -> None:
    q, k, v = normal(1, 1, 3, H, D), normal(2, 1, 3, HK, D), normal(4, 1, 3, HK, D)
    caches = normal(5, 1, 32, HK, D), normal(6, 1, 32, HK, D)
    before = caches[0].copy()
    flash_attn_with_kvcache(q, caches[0], caches[1], k, v, cache_seqlens=31)
    assert (caches[0][:, :31] == before[:, :31]).all()
    assert (caches[0][:, 31] == k[:, 0]).all()


def test_a_call_that_appends_and_rotates_is_three_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = []
    bind = LoadedEmulator.bind

    def counted(self: Any, *arguments: Any) -> Any:
        launches.append(self._plan.symbol)
        return bind(self, *arguments)

    monkeypatch.setattr(LoadedEmulator, "bind", counted)
    q, k, v = normal(1, 2, 1, H, D), normal(2, 2, 1, HK, D), normal(4, 2, 1, HK, D)
    caches = normal(5, 4, ROOM, HK, D), normal(6, 4, ROOM, HK, D)
    index, lengths = np.array([3, 1], np.int32), np.array([100, 7], np.int32)
    angles = np.random.default_rng(7).uniform(-3, 3, (ROOM, D // 2)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    own_q = np.stack([turn(q[b], lengths[b : b + 1], cos, sin, False) for b in range(2)])
    wanted = [cache.copy() for cache in caches]
    for b in range(2):
        wanted[0][index[b], lengths[b]] = turn(k[b], lengths[b : b + 1], cos, sin, False)[0]
        wanted[1][index[b], lengths[b]] = v[b, 0]
    o, lse = flash_attn_with_kvcache(
        *(q, *caches, k, v, cos, sin),
        cache_seqlens=lengths,
        cache_batch_idx=index,
        rotary_interleaved=False,
        num_splits=3,
        return_softmax_lse=True,
    )
    assert len(launches) == 3
    assert launches[0].startswith("append")
    spec = AttentionSpec(head_dim=D, kv_cache=True)
    own = (cache[index] for cache in wanted)
    check(o, lse, reference(spec, own_q, *own, cache_seqlens=lengths + 1))


def test_tensors_of_pytorch_are_those_of_numpy() -> None:
    """To the bit, in the caches and in O; the lengths stay."""
    torch = pytest.importorskip("torch")
    q, k, v = normal(1, 2, 2, H, D), normal(2, 2, 2, HK, D), normal(4, 2, 2, HK, D)
    pages = [normal(seed, 6, PAGE, HK, D) for seed in (5, 6)]
    angles = np.random.default_rng(7).uniform(-3, 3, (64, 8)).astype(np.float32)
    index = np.array([20, 0], np.int32), np.array([[3, 1, 0], [2, 5, 4]], np.int32)
    arrays = (q, *pages, k, v, np.cos(angles), np.sin(angles), *index)

    def torch_of(array: Array) -> Any:
        if array.dtype == BF16:
            return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(array.copy())

    def call(*given: Any) -> Any:
        *tensors, lengths, table = given
        options = {"cache_seqlens": lengths, "block_table": table, "causal": True}
        return flash_attn_with_kvcache(*tensors, **options)

    tensors = [torch_of(array) for array in arrays]
    theirs, ours = call(*tensors), call(*arrays)
    for tensor, array in zip((theirs, *tensors), (ours, *arrays), strict=True):
        bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        right = array.view(np.int16) if array.dtype == BF16 else array
        assert np.array_equal(bits.numpy(), right)


def test_rows_of_16_bits_go_into_a_cache_of_8() -> None:
    """Divided by the factors that attention multiplies by."""
    q, k, v = normal(1, 2, 3, H, D), normal(2, 2, 3, HK, D), normal(4, 2, 3, HK, D)
    small = ml_dtypes.float8_e4m3fn
    caches = [normal(seed, 2, 64, HK, D).astype(small) for seed in (5, 6)]
    lengths = np.array([40, 0], np.int32)
    rng = np.random.default_rng(8)
    scales = [rng.uniform(0.01, 0.1, (2, HK)).astype(np.float32) for _ in range(2)]
    wanted = [cache.copy() for cache in caches]
    for cache, rows, scale in zip(wanted, (k, v), scales, strict=True):
        for b in range(2):
            own = rows[b].astype(np.float32) / scale[b][None, :, None]
            cache[b, lengths[b] : lengths[b] + 3] = own.clip(-448, 448).astype(small)
    o, lse = flash_attn_with_kvcache(
        *(q, *caches, k, v),
        cache_seqlens=lengths,
        k_descale=scales[0],
        v_descale=scales[1],
        causal=True,
        return_softmax_lse=True,
    )
    for cache, right in zip(caches, wanted, strict=True):
        assert np.array_equal(cache.view(np.uint8), right.view(np.uint8))
    spec = AttentionSpec(
        head_dim=D, causal=True, kv_cache=True, kv_dtype=DType.E4M3, kv_scale=CacheScale.HEAD
    )
    factors = {"k_scale": scales[0], "v_scale": scales[1]}
    check(o, lse, reference(spec, q, *wanted, cache_seqlens=lengths + 3, **factors))


def test_packed_queries_over_pages() -> None:
    counts, lengths = (5, 0, 20), np.array([37, 9, 120], np.int32)
    offsets = np.cumsum((0, *counts)).astype(np.int32)
    q = normal(1, int(offsets[-1]), H, D)
    flat = normal(2, B, ROOM, HK, D), normal(3, B, ROOM, HK, D)
    table = np.random.default_rng(4).permutation(B * ROOM // PAGE).astype(np.int32).reshape(B, -1)
    k, v = (np.zeros((B * ROOM // PAGE, PAGE, HK, D), BF16) for _ in flat)
    for cache, source in zip((k, v), flat, strict=True):
        cache[table.reshape(-1)] = source.reshape(-1, PAGE, HK, D)
    o, lse, _ = flash_attn_varlen_func(
        *(q, k, v, offsets, None, 24, ROOM),
        causal=True,
        block_table=table,
        seqused_k=lengths,
        return_attn_probs=True,
    )
    assert o.shape == q.shape
    assert lse.shape == (H, q.shape[0])
    spec = AttentionSpec(head_dim=D, causal=True, kv_cache=True)
    for b in (0, 2):
        rows = slice(offsets[b], offsets[b + 1])
        one = (x[b : b + 1] for x in flat)
        right = reference(spec, q[None, rows], *one, cache_seqlens=lengths[b : b + 1])
        check(o[None, rows], lse[None, :, rows], right)


def test_soft_cap_window_and_slopes() -> None:
    q, k, v = normal(1, B, 2, H, D), normal(2, B, ROOM, HK, D), normal(3, B, ROOM, HK, D)
    lengths = np.array(LENGTHS, np.int32) + 2
    slopes = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
    o = flash_attn_with_kvcache(
        *(q, k, v),
        cache_seqlens=lengths,
        causal=True,
        window_size=(20, 0),
        softcap=5.0,
        alibi_slopes=slopes,
    )
    spec = AttentionSpec(
        head_dim=D, causal=True, kv_cache=True, window_left=20, soft_cap=5.0, alibi=True
    )
    right = reference(spec, q, k, v, cache_seqlens=lengths, alibi_slopes=slopes)
    check(o, None, right)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("right", [-1, 2])
def test_slopes_fall_on_both_sides_of_the_diagonal(rows: int, right: int) -> None:
    """The distance counts, and what lies right of the diagonal is no nearer than what lies left."""
    q, k, v = normal(1, B, rows, H, D), normal(2, B, ROOM, HK, D), normal(3, B, ROOM, HK, D)
    lengths = np.array(LENGTHS, np.int32) + 4
    slopes = np.array([[0.5, 0.25, 0.125, 0.0625]] * B, np.float32) * np.arange(1, B + 1)[:, None]
    slopes = slopes.astype(np.float32)
    o = flash_attn_with_kvcache(
        *(q, k, v), cache_seqlens=lengths, window_size=(-1, right), alibi_slopes=slopes
    )
    scale, keys = D**-0.5, np.arange(ROOM)
    for b, length in enumerate(lengths):
        for h in range(H):
            distance = keys[None] - np.arange(rows)[:, None] - (length - rows)
            hidden = (keys[None] >= length) | ((distance > right) if right >= 0 else False)
            s = scale * (q[b, :, h].astype(float) @ k[b, :, h // 2].astype(float).T)
            s = np.where(hidden, -np.inf, s - slopes[b, h] * abs(distance))
            p = np.exp(s - s.max(1, keepdims=True))
            right_o = (p / p.sum(1, keepdims=True)) @ v[b, :, h // 2].astype(float)
            np.testing.assert_allclose(o[b, :, h].astype(float), right_o, atol=0.03)


def test_one_length_for_all_sequences() -> None:
    q, k, v = normal(1, B, 1, H, D), normal(2, B, ROOM, HK, D), normal(3, B, ROOM, HK, D)
    wanted = flash_attn_with_kvcache(q, k, v, cache_seqlens=np.full(B, 37, np.int32))
    for length in (37, np.int64(37), np.array(37)):
        o = flash_attn_with_kvcache(q, k, v, cache_seqlens=length)
        assert np.array_equal(o.view(np.uint16), wanted.view(np.uint16))


def test_what_is_refused() -> None:
    q, k = normal(1, 1, 1, H, D), normal(2, 1, 32, HK, D)
    with pytest.raises(UnsupportedArgumentError, match="cache_leftpad"):
        flash_attn_with_kvcache(q, k, k, cache_leftpad=np.zeros(1, np.int32))
    with pytest.raises(TypeError, match="nonsense"):
        flash_attn_with_kvcache(q, k, k, nonsense=1)
    with pytest.raises(TensorError, match="together"):
        flash_attn_with_kvcache(q, k, k, k[:, :1], cache_seqlens=3)
    with pytest.raises(TensorError, match="cache_seqlens"):
        flash_attn_with_kvcache(q, k, k, k[:, :1], k[:, :1])


@pytest.mark.parametrize("is_packed", [False, True])
def test_many_queries_over_pages(is_packed: bool) -> None:
    counts = (70, 0, 66) if is_packed else (70, 70, 70)
    lengths = np.array([75, 9, 120], np.int32)
    offsets = np.cumsum((0, *counts)).astype(np.int32)
    q = normal(1, int(offsets[-1]), H, D)
    flat = normal(2, B, ROOM, HK, D), normal(3, B, ROOM, HK, D)
    table = np.random.default_rng(4).permutation(B * ROOM // PAGE).astype(np.int32).reshape(B, -1)
    k, v = (np.zeros((B * ROOM // PAGE, PAGE, HK, D), BF16) for _ in flat)
    for cache, source in zip((k, v), flat, strict=True):
        cache[table.reshape(-1)] = source.reshape(-1, PAGE, HK, D)
    spec = AttentionSpec(head_dim=D, causal=True, kv_cache=True, varlen=is_packed)
    paged = {"block_table": table, "cache_seqlens": lengths}
    if is_packed:
        o, lse, _ = flash_attn_varlen_func(
            *(q, k, v, offsets, None, 70, ROOM),
            causal=True,
            block_table=table,
            seqused_k=lengths,
            return_attn_probs=True,
        )
        right = reference(spec, q, *flat, cache_seqlens=lengths, cu_seqlens_q=offsets)
        check(o, lse, right)
        packed = {"cu_seqlens_q": offsets, "max_seqlen_q": 70}
        again = attention(q, k, v, causal=True, **packed, **paged)
    else:
        q = q.reshape(B, 70, H, D)
        o, lse = flash_attn_with_kvcache(q, k, v, causal=True, return_softmax_lse=True, **paged)
        check(o, lse, reference(spec, q, *flat, cache_seqlens=lengths))
        again = attention(q, k, v, causal=True, **paged)
    assert np.array_equal(o.view(np.uint16), again.view(np.uint16))


@pytest.mark.parametrize("most", [5, 70])
def test_packed_queries_over_pages_of_8_bits(most: int) -> None:
    lengths = np.array([137, 0, 120], np.int32)
    offsets = np.cumsum((0, most, 1, 3)).astype(np.int32)
    q = normal(1, int(offsets[-1]), H, D)
    k, v = (normal(s, 27, 16, HK, D).astype(ml_dtypes.float8_e4m3fn) for s in (2, 3))
    table = np.random.default_rng(4).permutation(27).astype(np.int32).reshape(3, 9)
    scales = [np.linspace(0.5, 2, 3 * HK, dtype=np.float32).reshape(3, HK) * f for f in (1, 3)]
    o, lse, _ = flash_attn_varlen_func(
        *(q, k, v, offsets, None, most, 144),
        causal=True,
        block_table=table,
        seqused_k=lengths,
        k_descale=scales[0],
        v_descale=scales[1],
        return_attn_probs=True,
    )
    spec = AttentionSpec(
        head_dim=D,
        causal=True,
        page_size=16,
        varlen=True,
        kv_dtype=DType.E4M3,
        kv_scale=CacheScale.HEAD,
    )
    factors = {"k_scale": scales[0], "v_scale": scales[1]}
    read = {"cache_seqlens": lengths, "block_table": table, "cu_seqlens_q": offsets}
    right = reference(spec, q, k, v, **read, **factors)
    assert np.abs(o.astype(np.float64) - right[0]).max() < 2**-7 * np.abs(right[0]).max()
    assert np.array_equal(np.isinf(lse), np.isinf(right[1]))
    with pytest.raises(UnsupportedArgumentError, match="k_descale"):
        flash_attn_varlen_func(*(q, q, q, offsets, offsets, most, most), k_descale=scales[0])


@pytest.mark.parametrize("rows", [(3, 0, 5), (70, 1, 0)], ids=["spread", "packed"])
def test_the_first_rows_of_packed_sequences_alone_are_used(rows: tuple[int, ...]) -> None:
    """Each sequence has two rows of NaN behind those that count, which no row of O may see."""
    starts = np.array([0, *np.cumsum([n + 2 for n in rows])], np.int32)
    used = np.array(rows, np.int32)
    counts = [
        row - start < used[b]
        for b, start in enumerate(starts[:-1])
        for row in range(start, starts[b + 1])
    ]
    seen = np.array(counts)
    q = normal(21, int(starts[-1]), H, D)
    q[~seen] = np.nan
    lengths = np.array((40, 37, 120), np.int32)
    table = np.random.default_rng(5).permutation(B * ROOM // PAGE).astype(np.int32).reshape(B, -1)
    flat = normal(22, B, ROOM, HK, D), normal(23, B, ROOM, HK, D)
    k, v = (np.empty((B * ROOM // PAGE, PAGE, HK, D), BF16) for _ in flat)
    for cache, source in zip((k, v), flat, strict=True):
        cache[table.reshape(-1)] = source.reshape(-1, PAGE, HK, D)
    spec = AttentionSpec(head_dim=D, causal=True, kv_cache=True, varlen=True)
    o_right, lse_right = reference(
        spec, q, *flat, cache_seqlens=lengths, cu_seqlens_q=starts, seqused_q=used
    )
    for most in (max(rows), max(rows) + 7):
        o, lse, _ = flash_attn_varlen_func(
            *(q, k, v, starts, None, most, ROOM),
            causal=True,
            block_table=table,
            seqused_q=used,
            seqused_k=lengths,
            return_attn_probs=True,
        )
        check(o[seen], lse[:, seen], (o_right[seen], lse_right[:, seen]))


def test_packed_calls_without_rows_give_empty_tensors() -> None:
    table, lengths = np.zeros((B, 1), np.int32), np.zeros(B, np.int32)
    cache = normal(24, 2, PAGE, HK, D)
    q = normal(25, 0, H, D)
    for offsets, most in ((np.zeros(B + 1, np.int32), 5), (np.zeros(B + 1, np.int32), 0)):
        o, lse, _ = flash_attn_varlen_func(
            *(q, cache, cache, offsets, None, most, PAGE),
            block_table=table,
            seqused_k=lengths,
            return_attn_probs=True,
        )
        assert o.shape == (0, H, D)
        assert lse.shape == (H, 0)
    with pytest.raises(UnsupportedArgumentError, match="give cu_seqlens_q, too"):
        flash_attn_with_kvcache(
            *(normal(26, B, 1, H, D), cache, cache),
            block_table=table,
            cache_seqlens=lengths,
            seqused_q=lengths,
        )
