"""Calls, front ends and operators with PyTorch tensors on a Hopper GPU, against float64."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fmhagen import attention, compile_kernel, masks, merge_states
from fmhagen.api import reference
from fmhagen.errors import FmhagenError, TensorError
from fmhagen.frontends import flash, flex, kvcache, sdpa
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.runtime.devices import gpu_backend
from fmhagen.runtime.tensors import Memory
from fmhagen.spec import AttentionSpec, CacheScale, DType


def missing() -> str | None:
    """Return why these tests cannot run here, or None."""
    try:
        with warnings.catch_warnings(action="ignore"):
            import torch
    except ImportError:
        return "PyTorch is not installed"
    if not torch.cuda.is_available() or torch.version.hip:
        return "there is no NVIDIA GPU"
    try:
        gpu_backend(Memory.CUDA).require("sm90")
    except FmhagenError as error:
        return str(error)
    return None


REASON = missing()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


def normal(*shape: int, seed: int = 0) -> Any:
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").to(torch.bfloat16)


def bshd(
    rows: int = 197, keys: int = 333, heads: int = 6, heads_kv: int = 2, depth: int = 128
) -> tuple[Any, Any, Any]:
    return (
        normal(2, rows, heads, depth, seed=1),
        normal(2, keys, heads_kv, depth, seed=2),
        normal(2, keys, heads_kv, depth, seed=3),
    )


def assert_right(spec: AttentionSpec, o: Any, lse: Any, *tensors: Any, **extras: Any) -> None:
    found = compare(o, lse, *reference(spec, *tensors, **extras), layout=str(spec.layout))
    assert found.within(tolerance_of("bf16")), str(found)


def ends(*lengths: int) -> Any:
    import torch

    return torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)


@pytest.mark.parametrize(
    "changes",
    [
        {"causal": True, "window_left": 100},
        {"window_left": 40, "window_right": 7},
        {"soft_cap": 10.0, "causal": True},
        {"alibi": True, "causal": True},
        {"sink": True, "causal": True, "window_left": 127},
        {"mask_mod": masks.documents([0, 50, 51, 400]), "causal": True},
    ],
    ids=str,
)
def test_every_feature_twice(changes: dict[str, Any]) -> None:
    """Cold and warm, and with other values of what is read at run time."""
    import torch

    spec = AttentionSpec(**changes)
    q, k, v = bshd()
    for seed in (0, 0, 1):
        extras: dict[str, Any] = {}
        generator = torch.Generator("cuda").manual_seed(seed)
        if spec.alibi:
            extras["alibi_slopes"] = torch.rand(6, generator=generator, device="cuda")
        if spec.sink:
            extras["sinks"] = torch.randn(6, generator=generator, device="cuda")
        o, lse = attention(
            *(q, k, v),
            causal=spec.causal,
            window=(spec.window_left, spec.window_right),
            soft_cap=spec.soft_cap,
            mask_mod=spec.mask_mod,
            return_lse=True,
            **extras,
        )
        host = {name: value.cpu().numpy() for name, value in extras.items()}
        assert_right(spec, o, lse, q, k, v, **host)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_with_poison_around_them(causal: bool) -> None:
    spec = AttentionSpec(causal=causal, varlen=True)
    lengths_q, lengths_k = (300, 0, 1, 129, 64), (500, 7, 0, 128, 65)
    q = normal(sum(lengths_q), 4, 128, seed=1)
    k, v = (normal(sum(lengths_k), 2, 128, seed=seed) for seed in (2, 3))
    import torch

    used = torch.tensor([400, 7, 0, 128, 1], dtype=torch.int32, device="cuda")
    starts = ends(*lengths_k).tolist()
    for b, count in enumerate(used.tolist()):
        k[starts[b] + count : starts[b + 1]] = torch.nan
        v[starts[b] + count : starts[b + 1]] = torch.nan
    extras = {"cu_seqlens_q": ends(*lengths_q), "cu_seqlens_k": ends(*lengths_k)}
    for most in ({}, {"max_seqlen_q": 300}, {"max_seqlen_q": 300, "max_seqlen_k": 500}):
        o, lse = attention(
            *(q, k, v), causal=causal, seqused_k=used, return_lse=True, **extras, **most
        )
        host = {name: value.cpu().numpy() for name, value in extras.items()}
        assert_right(spec, o, lse, q, k, v, seqused_k=used.cpu().numpy(), **host)
    with pytest.raises(TensorError, match="last offset must be the rows of k"):
        attention(q, k[:-1], v[:-1], causal=causal, validate=True, **extras)
    with pytest.raises(TensorError, match="must lie on the device of q"):
        attention(q, k, v, **{**extras, "cu_seqlens_q": extras["cu_seqlens_q"].cpu()})


def test_lengths_of_a_captured_graph_are_those_of_the_replay() -> None:
    import torch

    spec = AttentionSpec(causal=True, varlen=True)
    q, k, v = normal(4, 4, 128), normal(4096, 2, 128, seed=2), normal(4096, 2, 128, seed=3)
    offsets_q, offsets_k = ends(1, 1, 1, 1), ends(1024, 1024, 1024, 1024)
    used = torch.tensor([17, 1, 100, 1024], dtype=torch.int32, device="cuda")
    out = torch.empty_like(q)

    def call() -> Any:
        return attention(
            *(q, k, v),
            causal=True,
            cu_seqlens_q=offsets_q,
            cu_seqlens_k=offsets_k,
            seqused_k=used,
            max_seqlen_q=1,
            out=out,
        )

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for lengths in ((17, 1, 100, 1024), (1, 1024, 0, 3), (1000, 999, 998, 5)):
        used.copy_(torch.tensor(lengths, dtype=torch.int32))
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        host = {
            "cu_seqlens_q": offsets_q.cpu().numpy(),
            "cu_seqlens_k": offsets_k.cpu().numpy(),
            "seqused_k": used.cpu().numpy(),
        }
        assert_right(spec, out, None, q, k, v, **host)


def test_a_captured_decoding_step_appends_where_the_replay_says() -> None:
    """Beside the emulator: bits of the caches, O within the usual tolerance."""
    import torch

    pages, size, depth, width = 40, 16, 128, 8
    q, k, v = (normal(4, 1, h, depth, seed=h) for h in (8, 2, 3))
    v = v[:, :, :2]
    caches = [normal(pages, size, 2, depth, seed=s) for s in (11, 12)]
    angles = torch.rand(size * width, 32, device="cuda") * 6
    cos, sin = angles.cos(), angles.sin()
    used = torch.zeros(4, dtype=torch.int32, device="cuda")
    table = torch.zeros(4, width, dtype=torch.int32, device="cuda")

    def call(*tensors: Any) -> Any:
        *first, lengths, block_table = tensors
        options = {"cache_seqlens": lengths, "block_table": block_table, "causal": True}
        return kvcache.flash_attn_with_kvcache(*first, **options)

    given = (q, *caches, k, v, cos, sin, used, table)
    call(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(*given)
    generator = torch.Generator().manual_seed(5)
    for lengths in ((0, 17, 90, 127), (15, 16, 1, 128), (31, 32, 33, 64)):
        used.copy_(torch.tensor(lengths, dtype=torch.int32))
        table.copy_(torch.randperm(pages, generator=generator)[: 4 * width].reshape(4, width))
        host = [tensor.cpu() for tensor in given]
        graph.replay()
        torch.cuda.synchronize()
        expected = call(*host)
        for cache, right in zip(caches, host[1:3], strict=True):
            assert torch.equal(cache.cpu().view(torch.int16), right.view(torch.int16))
        assert (out.cpu().float() - expected.float()).abs().max() < 0.03
        assert used.tolist() == list(lengths)


@pytest.mark.parametrize("page_size", [1, 3, 16, 64, 256])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_captured_prefill_reads_the_cache_of_the_replay(page_size: int, is_packed: bool) -> None:
    import torch

    batch, room, rows, depth = 3, 768, 200, 128
    width = room // page_size
    pages = batch * width + 1
    q = normal(batch, rows, 6, depth, seed=1)
    k, v = (normal(pages, page_size, 2, depth, seed=s) for s in (2, 3))
    lengths, table = (torch.zeros(n, dtype=torch.int32, device="cuda") for n in (3, (3, width)))
    offsets = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * rows
    more: dict[str, Any] = {"cu_seqlens_q": offsets, "max_seqlen_q": rows} if is_packed else {}
    q = q.flatten(0, 1) if is_packed else q
    spec = AttentionSpec(causal=True, page_size=page_size, varlen=is_packed)

    def call() -> Any:
        return attention(
            *(q, k, v),
            cache_seqlens=lengths,
            block_table=table,
            causal=True,
            return_lse=True,
            **more,
        )

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = call()
    generator = torch.Generator().manual_seed(5)
    clean = k.clone(), v.clone()
    for counts in ((0, 333, 768), (200, 1, 517)):
        order = torch.randperm(pages - 1, generator=generator)
        entries = torch.full((batch, width), 2_147_480_000, dtype=torch.int32)
        is_used = torch.zeros(pages, page_size, dtype=torch.bool)
        for b, count in enumerate(counts):
            for i in range(-(-count // page_size)):
                entries[b, i] = page = order[b * width + i]
                is_used[page, : count - i * page_size] = True
        hidden = ~is_used.cuda()[..., None, None]
        for cache, source in zip((k, v), clean, strict=True):
            cache.copy_(source.masked_fill(hidden, float("nan")))
        lengths.copy_(torch.tensor(counts, dtype=torch.int32))
        table.copy_(entries)
        graph.replay()
        torch.cuda.synchronize()
        read = {"cache_seqlens": lengths, "block_table": table}
        packing = {"cu_seqlens_q": offsets} if is_packed else {}
        assert_right(spec, o, lse, q, k, v, **read, **packing)


@pytest.mark.parametrize(
    ("kv_dtype", "kv_scale", "page_size", "depth"),
    [
        ("float8_e4m3fn", "head", 16, 128),
        ("float8_e4m3fn", "token", 1, 128),
        ("float8_e5m2", "none", None, 96),
        ("int8", "token", None, 64),
        ("int8", "head", 48, 256),
        ("float8_e4m3fn", "token", 64, 256),
    ],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_prefill_widens_caches_of_8_bits(
    kv_dtype: str, kv_scale: str, page_size: int | None, depth: int, is_packed: bool
) -> None:
    """Beside the same call over the cache in 32 bits, in float64; unused slots are NaN."""
    import torch

    counts, rows = (0, 1, 333, 768), (3, 200, 5, 131) if is_packed else (70,) * 4
    page = page_size or 768
    width = 768 // page
    spec = AttentionSpec(
        causal=True,
        head_dim=depth,
        kv_cache=True,
        page_size=page_size,
        varlen=is_packed,
        kv_dtype=DType(kv_dtype.removeprefix("float8_").removesuffix("fn")),
        kv_scale=CacheScale(kv_scale),
    )
    is_int8 = kv_dtype == "int8"
    number = getattr(torch, kv_dtype)
    q = normal(sum(rows), 6, depth, seed=1) * (0.02 if is_int8 else 1)
    k, v = (normal(4 * width, page, 2, depth, seed=s).float() for s in (2, 3))
    k, v = (((x * 40).clamp(-127, 127) if is_int8 else x).to(number) for x in (k, v))
    order = torch.randperm(4 * width) if page_size else torch.arange(4)
    table = order.to(torch.int32).view(4, width).cuda()
    belongs = torch.zeros(4 * width, page, dtype=torch.bool)
    for b, count in enumerate(counts):
        for i in range(-(-count // page)):
            belongs[table[b, i].item(), : count - i * page] = True
    if not is_int8:
        for cache in (k, v):
            cache.view(torch.uint8).masked_fill_(~belongs.cuda()[..., None, None], 0x7F)
    generator = torch.Generator("cuda").manual_seed(4)
    shape = {"head": (4, 2), "token": k.shape[:3], "none": ()}[kv_scale]
    factors: dict[str, Any] = {}
    for name in ("k_scale", "v_scale") if kv_scale != "none" else ():
        factor = torch.rand(shape, generator=generator, device="cuda") + 0.01
        if kv_scale == "token":
            factor = factor.masked_fill(~belongs.cuda()[..., None], float("nan"))
        factors[name] = factor
    lengths = torch.tensor(counts, dtype=torch.int32, device="cuda")
    call: dict[str, Any] = {"cache_seqlens": lengths, **factors}
    call |= {"block_table": table} if page_size else {}
    if is_packed:
        call["cu_seqlens_q"] = ends(*rows)
    else:
        q = q.view(4, rows[0], 6, depth)
    kernel = compile_kernel(spec, device="cuda", query_hint=200, group_hint=3)
    assert kernel.plan.split is None
    o, lse = kernel(q, k, v, return_lse=True, **call)
    host = {name: item.cpu().numpy() for name, item in call.items()}
    wide = [x.cpu().float().numpy() for x in (q, k, v)]
    expected, expected_lse = reference(spec, *wide, **host)
    size = float(v.float().nan_to_num(0, 0, 0).abs().max())
    assert abs(o.double().cpu().numpy() - expected).max() < 2**-7 * size
    found, is_seen = lse.double().cpu().numpy(), np.isfinite(expected_lse)
    assert np.array_equal(np.isfinite(found), is_seen)
    assert abs(found[is_seen] - expected_lse[is_seen]).max() < 1e-4


def test_front_ends_beside_pytorch() -> None:
    import torch

    q, k, v = (x.transpose(1, 2) for x in bshd(256, 256))
    wide = [x.double() for x in (q, k, v)]
    theirs = torch.nn.functional.scaled_dot_product_attention
    mask = torch.rand(2, 1, 256, 256, device="cuda") > 0.5
    bias = torch.randn(6, 256, 256, device="cuda")
    for given, options in (
        (None, {}),
        (None, {"is_causal": True}),
        (mask, {}),
        (bias, {}),
        (bias.bfloat16(), {}),
    ):
        ours = sdpa.scaled_dot_product_attention(q, k, v, given, enable_gqa=True, **options)
        full = given.double() if given is not None and given.is_floating_point() else given
        expected = theirs(*wide, full, enable_gqa=True, **options)
        assert (ours.double() - expected).abs().max() < 0.05
    causal = flash.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=True)
    expected = theirs(*wide, is_causal=True, enable_gqa=True).transpose(1, 2)
    assert (causal.double() - expected).abs().max() < 0.05
    slopes = torch.rand(6, device="cuda")
    ours, lse = flex.flex_attention(
        *(q, k, v),
        score_mod=lambda s, b, h, m, n: s + slopes[h] * (n - m),
        block_mask=lambda b, h, m, n: m >= n,
        enable_gqa=True,
        return_lse=True,
    )
    at = torch.arange(256, device="cuda")
    full = slopes.double()[:, None, None] * (at[None, :] - at[:, None])
    full = full.masked_fill(at[None, :] > at[:, None], -torch.inf)
    assert (ours.double() - theirs(*wide, full, enable_gqa=True)).abs().max() < 0.05
    assert torch.isfinite(lse).all()


def test_operators_compile_and_run_in_graphs() -> None:
    import torch

    from fmhagen.frontends.torch_ops import Attention

    bias = torch.randn(6, device="cuda")
    attend = Attention(causal=True, score_mod=lambda s, b, h, m, n: s + bias[h] * n)

    def step(q: Any, k: Any, v: Any) -> Any:
        return attend(q * 1.0, k, v) + 1.0

    expected = [step(*bshd(rows)) for rows in (64, 128)]
    compiled: Callable[..., Any] = torch.compile(step, fullgraph=True, mode="reduce-overhead")
    with warnings.catch_warnings(action="ignore"):
        for turn in range(4):
            for rows, wanted in zip((64, 128), expected, strict=True):
                torch.compiler.cudagraph_mark_step_begin()
                found = compiled(*bshd(rows)).clone()
                assert torch.equal(found, wanted), turn
    with torch.autocast("cuda", dtype=torch.bfloat16):
        q, k, v = bshd()
        assert torch.equal(attend(q.float(), k.float(), v), attend(q, k, v))


def test_functions_and_masks_stand_in_captured_graphs() -> None:
    import torch

    import fmhagen.frontends.torch_ops  # noqa: F401
    from fmhagen import scores
    from fmhagen.frontends import flex

    bias, ids = torch.randn(6, device="cuda"), torch.arange(333, device="cuda") // 50
    mask = masks.causal() & masks.document(ids)
    score = scores.temperature(bias.abs())

    def step(q: Any, k: Any, v: Any) -> Any:
        given = (x.transpose(1, 2) for x in (q * 1.0, k, v))
        own = lambda b, h, m, n: mask(b, h, m, n) | (m - n > 90)  # noqa: E731
        mod = scores.soft_cap(20.0).then(score)
        o = flex.flex_attention(*given, score_mod=mod, block_mask=own, enable_gqa=True)
        near = masks.causal() & masks.sliding_window(30)
        added = lambda s, b, h, m, n: s + bias[h] * n  # noqa: E731
        return o + flex.flex_attention(o, o, o, score_mod=added, block_mask=near)

    inputs = bshd(128)
    expected = step(*inputs)
    compiled: Callable[..., Any] = torch.compile(step, fullgraph=True, mode="reduce-overhead")
    with warnings.catch_warnings(action="ignore"):
        for turn in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            assert torch.equal(compiled(*inputs).clone(), expected), turn


def test_merging_beside_the_whole() -> None:
    import torch

    spec = AttentionSpec()
    q, k, v = bshd()
    cuts = (0, 1, 100, 100, 333)
    parts = [
        attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in itertools.pairwise(cuts)
    ]
    os, lses = [part[0] for part in parts], [part[1] for part in parts]
    os[2].fill_(torch.nan)  # the part without keys
    o, lse = merge_states(os, lses)
    assert_right(spec, o, lse, q, k, v)
    stacked = merge_states(
        torch.stack(os), torch.stack([x * 1.4426950408889634 for x in lses]), lse_base="2"
    )
    assert (stacked[0].float() - o.float()).abs().max() < 0.02
    again = merge_states(os, lses, out=os[0], out_lse=lses[0])
    assert torch.equal(again[0], o)
    assert torch.equal(again[1], lse)
    many = merge_states([o] * 40, [lse] * 40)
    assert (many[0].float() - o.float()).abs().max() < 0.02
    assert (many[1] - lse - torch.log(torch.tensor(40.0))).abs().max() < 1e-3


def test_tensors_of_another_device_than_the_current_one() -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    spec = AttentionSpec(causal=True)
    q, k, v = (x.to("cuda:1") for x in bshd())
    for _ in range(3):
        o, lse = attention(q, k, v, causal=True, return_lse=True)
        assert torch.cuda.current_device() == 0
        assert_right(spec, o, lse, q, k, v)
    with pytest.raises(TensorError, match="must lie on the device of q"):
        attention(q, k.to("cuda:0"), v, causal=True)
