"""PyTorch's operators on the emulator: opcheck, compilation, autocast, vmap, the front ends."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from fmhagen import dispatch, reference
from fmhagen.errors import FmhagenError, InvalidSpecError, TraceError, UnsupportedArgumentError
from fmhagen.frontends import flash, flex, sdpa
from fmhagen.frontends.torch_ops import Attention
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.spec import AttentionSpec
from fmhagen.targets import find_target

pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's own are its matter
CAUSAL = AttentionSpec(head_dim=64, causal=True)
SUPPORTED = find_target("sm90").features


@pytest.fixture(autouse=True)
def _no_graphs_of_other_tests() -> None:
    torch._dynamo.reset()


def tensors(rows: int = 37, keys: int = 50, dtype: torch.dtype = torch.bfloat16) -> tuple:
    generator = torch.Generator().manual_seed(rows)
    return tuple(
        torch.randn(2, n, h, 64, generator=generator).to(dtype)
        for n, h in ((rows, 4), (keys, 2), (keys, 2))
    )


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def assert_right(o: torch.Tensor, lse: torch.Tensor | None, *inputs: torch.Tensor) -> None:
    numpy = [x.float().numpy().astype(ml_dtypes.bfloat16) for x in inputs]
    found = compare(o, lse, *reference(CAUSAL, *numpy))
    assert found.within(tolerance_of("bf16")), str(found)


def arguments(*inputs: torch.Tensor) -> tuple:
    return (*inputs, [], [], "", "", "", True, -1, -1, "bottom_right", 0.0, None, -1, -1, "bshd")


@pytest.mark.parametrize("name", ["attention", "attention_with_lse"])
def test_opcheck(name: str) -> None:
    operator = getattr(torch.ops.fmhagen, name).default
    found = torch.library.opcheck(operator, arguments(*tensors()))
    assert set(found.values()) == {"SUCCESS"}


def test_an_operator_is_attention() -> None:
    inputs = tensors()
    o, lse = Attention(causal=True)(*inputs, return_lse=True)
    assert_right(o, lse, *inputs)
    assert same(Attention(causal=True)(*inputs), o)
    assert same(dispatch.attention(*inputs, causal=True), o)


def test_compiled_in_one_graph_with_no_more_than_two_compilations() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    attend = Attention(causal=True)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda q, k, v: attend(q, k, v, return_lse=True), fullgraph=True, backend=counter
    )
    for rows in (65, 70, 71, 33, 5, 2):
        inputs = tensors(rows, rows + 9)
        o, lse = compiled(*inputs)
        expected = attend(*inputs, return_lse=True)
        assert same(o, expected[0])
        assert same(lse, expected[1])
    assert counter.frame_count <= 2


def test_front_ends_compile_in_one_graph() -> None:
    inputs = tensors()
    turned = tuple(x.transpose(1, 2) for x in inputs)
    for function, given in (
        (lambda q, k, v: flash.flash_attn_func(q, k, v, causal=True), inputs),
        (lambda q, k, v: dispatch.attention(q, k, v, causal=True, scale=0.25), inputs),
        (
            lambda q, k, v: sdpa.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=True
            ),
            turned,
        ),
        (lambda q, k, v: flex.flex_attention(q, k, v, enable_gqa=True), turned),
    ):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(*given), function(*given))


def test_caches_in_a_graph_and_what_a_graph_cannot_have() -> None:
    """No argument may be dropped on the way into a graph."""
    q, k, v = tensors(3, 60)
    lengths = torch.tensor([60, 17], dtype=torch.int32)
    pages = k.reshape(12, 10, 2, 64), v.reshape(12, 10, 2, 64)
    table = torch.tensor([[3, 1, 11], [0, 7, -1]], dtype=torch.int32)
    turned = tuple(x.transpose(1, 2).contiguous() for x in pages)
    short = lengths.clamp(max=15)
    for kv, given in (
        ((k, v), {"causal": True, "cache_seqlens": lengths}),
        (pages, {"block_table": table, "cache_seqlens": short}),
        (turned, {"block_table": table, "cache_seqlens": short, "cache_layout": "hnd"}),
    ):
        compiled = torch.compile(dispatch.attention, fullgraph=True, backend="aot_eager")
        assert same(compiled(q, *kv, **given), dispatch.attention(q, *kv, **given))
    out = torch.empty_like(q)
    for given in ({"out": out}, {"return_max_logit": True}):
        with pytest.raises(Exception, match=r"not given in a compiled region|Observed exception"):
            torch.compile(
                lambda q, given=given: dispatch.attention(q, k, v, **given),
                fullgraph=True,
                backend="aot_eager",
            )(q)
    broken = torch.compile(lambda q: dispatch.attention(q, k, v, out=out) + 0, backend="aot_eager")
    assert same(broken(q), dispatch.attention(q, k, v))


WIDTH = torch.tensor(9)


def test_functions_stand_in_a_graph_and_are_those_of_the_call() -> None:
    """Numbers are guarded, tensors are inputs, and nothing ends the graph."""
    from torch._dynamo.testing import CompileCounterWithBackend

    bias, width, factor = torch.randn(4, 50), 9, 1.5
    array = np.linspace(-1, 1, 50, dtype=np.float32)

    def step(q):  # noqa: ANN001, ANN202
        shift = bias * 2  # made in the region
        shift.add_(1)
        mask = lambda b, h, m, n: (n <= m) & (m - n < width)  # noqa: E731
        score = lambda s, b, h, m, n: torch.where(  # noqa: E731
            WIDTH > 3, s * factor + shift[h][n] * WIDTH + abs(array[m]), torch.tensor(-3.0)
        )
        o, lse = flex.flex_attention(q * 2, q, q, score_mod=score, block_mask=mask, return_lse=True)
        shift.mul_(5)  # too late for the call
        return o + 1, lse

    def check(*counts: int) -> torch.Tensor:
        o, lse = compiled(q)
        expected = step(q)
        assert same(o, expected[0])
        assert same(lse, expected[1])
        assert counter.frame_count in counts
        return o

    q = torch.randn(1, 4, 50, 64).bfloat16()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, backend=counter)
    seen = [check(1)]
    bias.mul_(-1)
    seen.append(check(1))
    bias = bias * 2
    seen.append(check(1))
    width, factor = 20, 0.5
    seen.append(check(2, 3))  # a float that changes may be tried as an input first
    for number, one in enumerate(seen):
        assert not any(torch.equal(one, other) for other in seen[:number])


def test_kinds_of_functions_in_a_graph() -> None:
    class Biased(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.linspace(-1, 1, 4))
            self.slope = 0.25

        def mod(self, s, b, h, m, n):  # noqa: ANN001, ANN202
            return s - self.slope * (m - n).abs() + self.table[h]

        def forward(self, q):  # noqa: ANN001, ANN202
            text = "w: i32; q_idx - kv_idx < w"
            options = {"mask_mod": text, "params": {"w": 7}, "causal": True}
            return dispatch.attention(q, q, q, score_mod=self.mod, layout="bhsd", **options)

    def scaled(s, b, h, m, n, *, by):  # noqa: ANN001, ANN202
        return s * by

    length = torch.tensor(40)
    q = torch.randn(1, 4, 50, 64).bfloat16()
    for function in (
        Biased(),
        lambda q: flex.flex_attention(q, q, q, functools.partial(scaled, by=0.5)),
        lambda q: flex.flex_attention(q, q, q, block_mask=lambda b, h, m, n: n < length),
        lambda q: flex.flex_attention(q, q, q, block_mask=lambda b, h, m, n: True),
    ):
        for backend in ("eager", "aot_eager"):
            compiled = torch.compile(function, fullgraph=True, backend=backend)
            assert same(compiled(q), function(q))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(compiled(q.float()), function(q))
    captured_0, many = torch.arange(50), torch.stack([q, q * 2])  # a name that graphs give, too

    def documents(q: torch.Tensor) -> torch.Tensor:
        mask = lambda b, h, m, n: captured_0[n] <= captured_0[m] + length  # noqa: E731
        return flex.flex_attention(q, q, q, block_mask=mask)

    compiled = torch.compile(torch.vmap(documents), fullgraph=True, backend="aot_eager")
    assert same(compiled(many), torch.stack([documents(one) for one in many]))


def test_functions_that_no_graph_can_have() -> None:
    q = torch.randn(1, 4, 50, 64).bfloat16()
    special = lambda q: flex.flex_attention(  # noqa: E731
        q, q, q, score_mod=lambda s, b, h, m, n: torch.special.i0(s)
    )
    branch = lambda q: flex.flex_attention(  # noqa: E731
        q, q, q, score_mod=lambda s, b, h, m, n: s if m > n else -s
    )
    for function, message in (
        (special, r"test_frontends_torch.py:\d+: torch.special_i0 has no counterpart"),
        (branch, r"Data-dependent branching"),
    ):
        with pytest.raises(Exception, match=message):
            torch.compile(function, fullgraph=True, backend="aot_eager")(q)
    for function in (special, branch):
        with pytest.raises(TraceError, match=r"test_frontends_torch.py:\d+"):
            torch.compile(function, backend="aot_eager")(q)


def test_functions_of_pytorch_hide_and_show_what_they_say() -> None:
    from torch.nn.attention import flex_attention as theirs

    q, k, v = (x.transpose(1, 2) for x in tensors(50, 50))
    bias = torch.randn(4, 50)
    mods = (
        lambda s, b, h, m, n: s.where(m >= n, -1.0),
        lambda s, b, h, m, n: torch.ones(()).where(m >= n, s) + bias[h][n],
        lambda s, b, h, m, n: torch.masked_fill(s, m < n, -3.0),
        lambda s, b, h, m, n: torch.where(
            m >= n,
            torch.nn.functional.gelu(s, approximate="tanh") + torch.cos(s) + (m > n).to(s.dtype),
            torch.tensor(-3.0, dtype=s.dtype).clamp_min(torch.finfo(s.dtype).min),
        ),
    )
    everything = theirs.create_block_mask(theirs.noop_mask, None, None, 50, 50, device="cpu")
    for mod in mods:
        o, aux = flex.flex_attention(
            *(q, k, v),
            score_mod=mod,
            block_mask=everything,
            enable_gqa=True,
            return_aux=theirs.AuxRequest(lse=True),
        )
        at = torch.arange(4)[:, None, None], torch.arange(50)[:, None], torch.arange(50)[None]
        scores = (q.double() @ k.double().repeat_interleave(2, 1).transpose(2, 3)) / 8
        moved = torch.stack([_dense(mod, s, *at, bias) for s in scores])
        right = moved.softmax(-1) @ v.double().repeat_interleave(2, 1)
        assert (o.double() - right).abs().max() < 0.02
        assert (aux.lse - moved.logsumexp(-1)).abs().max() < 1e-3
    with pytest.raises(UnsupportedArgumentError, match="max_scores"):
        flex.flex_attention(q, k, v, enable_gqa=True, return_aux=theirs.AuxRequest(max_scores=True))


def test_a_captured_bool_is_read_in_each_call() -> None:
    q = torch.randn(1, 2, 20, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    is_open = torch.tensor(True)
    full, causal = (
        flex.flex_attention(q, q, q, block_mask=mask, kernel_options={})
        for mask in (None, lambda b, h, m, n: n <= m)
    )
    opened = lambda q: flex.flex_attention(  # noqa: E731
        q, q, q, block_mask=lambda b, h, m, n: ~(~is_open & (n > m))
    )
    for function in (opened, torch.compile(opened, fullgraph=True, backend="aot_eager")):
        is_open.fill_(True)
        assert same(function(q), full)
        is_open.fill_(False)
        assert same(function(q), causal)


def test_what_would_not_be_what_it_says() -> None:
    q, table = torch.zeros(1, 2, 20, 64).bfloat16(), torch.zeros(20)
    for score, message in (
        (lambda s, b, h, m, n: s * torch.rand(()), "one number for all places"),
        (lambda s, b, h, m, n: s + table[m : m + 2].sum(), "index it without slices"),
        (lambda s, b, h, m, n: s.mul_(2), "a value here does not change: use what mul gives"),
    ):
        with pytest.raises(TraceError, match=message):
            flex.flex_attention(q, q, q, score)


def _dense(mod, s, h, m, n, bias):  # noqa: ANN001, ANN202
    """Return what a score function of the test above makes of all scores of a sequence."""
    if "bias" in mod.__code__.co_freevars:
        return torch.where(m >= n, 1.0, s) + bias[:, None, :]
    return mod(s, 0, h, m, n)


def test_sdpa_is_that_of_pytorch() -> None:
    q, k, v = (x.transpose(1, 2) for x in tensors())
    for causal in (False, True):
        options = {"is_causal": causal, "enable_gqa": True}
        ours = sdpa.scaled_dot_product_attention(q, k, v, **options)
        theirs = torch.nn.functional.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), **options
        )
        assert (ours.double() - theirs).abs().max() < 0.02


def test_sdpa_takes_any_number_of_batch_axes() -> None:
    theirs = torch.nn.functional.scaled_dot_product_attention
    generator = torch.Generator().manual_seed(1)
    for batch, heads, sizes in (
        ((), (4, 2), (4, 20, 30)),
        ((2, 3), (4, 2), (2, 1, 1, 20, 30)),
        ((3, 1, 2), (1, 1), (1, 30)),
        ((0, 2), (1, 1), (20, 30)),
    ):
        q, k, v = (
            torch.randn(*batch, n, h, 64, generator=generator).bfloat16().transpose(-2, -3)
            for n, h in ((20, heads[0]), (30, heads[1]), (30, heads[1]))
        )
        mask = torch.rand(sizes, generator=generator) < 0.7
        function = functools.partial(
            sdpa.scaled_dot_product_attention, attn_mask=mask, enable_gqa=True
        )
        o = function(q, k, v)
        assert o.shape == (*batch, heads[0], 20, 64)
        if o.numel():
            right = theirs(q.double(), k.double(), v.double(), mask, enable_gqa=True)
            assert (o.double() - right).abs().max() < 0.02
            compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
            assert same(compiled(q, k, v), o)


def test_autocast_casts_what_a_norm_left_in_fp32() -> None:
    q, k, v = tensors()
    attend = Attention(causal=True)
    expected = attend(q, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(attend(q.float(), k.float(), v), expected)
        compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
        assert same(compiled(q.float(), k.float(), v), expected)
    with torch.autocast("cpu", dtype=torch.float16):
        assert attend(q.float(), k, v).dtype == torch.float16
    with pytest.raises(InvalidSpecError, match="dtype='fp32': Q, K and V must be one of bf16"):
        attend(q.float(), k.float(), v.float())


def test_front_ends_and_caches_know_autocast() -> None:
    q, k, v = tensors()
    small = [x.to(torch.float8_e4m3fn) for x in (k, v)]
    lengths = torch.tensor([50, 17], dtype=torch.int32)
    plain = flash.flash_attn_func(q, k, v, causal=True)
    cached = dispatch.attention(q, *small, cache_seqlens=lengths)
    attend = Attention()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(flash.flash_attn_func(q.float(), k.float(), v, causal=True), plain)
        assert same(dispatch.attention(q.float(), *small, cache_seqlens=lengths), cached)
        assert same(attend(q.float(), *small, cache_seqlens=lengths), cached)


@pytest.mark.parametrize("dims", [(0, None, None), (1, 0, None), (0, 0, 4)])
def test_vmap_folds_an_axis_into_the_batch(dims: tuple) -> None:
    attend = Attention(causal=True)
    mapped = [
        x if dim is None else torch.stack([x, x.flip(1), x * 0.5], dim)
        for x, dim in zip(tensors(), dims, strict=True)
    ]
    o, lse = torch.vmap(lambda q, k, v: attend(q, k, v, return_lse=True), dims)(*mapped)
    for index in range(3):
        inputs = [
            x if dim is None else x.select(dim, index).contiguous()
            for x, dim in zip(mapped, dims, strict=True)
        ]
        expected = attend(*inputs, return_lse=True)
        assert same(o[index], expected[0])
        assert same(lse[index], expected[1])


def test_a_gradient_is_refused_when_it_is_asked_for() -> None:
    q, k, v = tensors()
    q.requires_grad_(True)
    o = Attention(causal=True)(q, k, v)
    with pytest.raises((RuntimeError, NotImplementedError), match="fmhagen"):
        o.sum().backward()
    with torch.no_grad():
        assert same(dispatch.attention(q, k, v, causal=True), o.detach())
    with pytest.raises(FmhagenError, match="requires_grad=True"):
        dispatch.attention(q, k, v, causal=True)
    for weight in (torch.tensor(2.0, requires_grad=True), torch.ones(4, requires_grad=True)):
        read = (lambda h, w=weight: w[h]) if weight.dim() else (lambda h, w=weight: w)
        with pytest.raises(FmhagenError, match="requires_grad=True"):
            dispatch.attention(
                *(q.detach(), k, v), score_mod=lambda s, b, h, m, n, read=read: s * read(h)
            )


@pytest.mark.skipif("score_mod" not in SUPPORTED, reason="sm90 has no score functions yet")
def test_functions_enter_a_graph_as_text() -> None:
    bias = torch.linspace(-1, 1, 4)
    attend = Attention(score_mod=lambda score, b, h, q_idx, kv_idx: score + bias[h] * kv_idx)
    compiled = torch.compile(
        lambda q, k, v, w: attend(q, k, v, params={"bias": w}), fullgraph=True, backend="aot_eager"
    )
    inputs = tensors()
    assert same(compiled(*inputs, bias), attend(*inputs))
    assert not torch.equal(compiled(*inputs, bias * 2), attend(*inputs))
    array = bias.numpy().copy()  # of NumPy, which no operator takes
    array.flags.writeable = False
    other = Attention(score_mod=lambda score, b, h, q_idx, kv_idx: score + array[h] * kv_idx)
    assert same(torch.compile(other, fullgraph=True, backend="aot_eager")(*inputs), attend(*inputs))
    slopes = torch.stack([bias, bias * 3])
    mapped = torch.vmap(lambda w: attend(*inputs, params={"bias": w}))(slopes)
    assert same(mapped[0], attend(*inputs))


@pytest.mark.skipif("varlen" not in SUPPORTED, reason="sm90 has no packed sequences yet")
def test_packed_sequences_in_a_graph() -> None:
    q, k, v = (x.flatten(0, 1) for x in tensors())
    ends_q, ends_k = torch.tensor([0, 30, 74]), torch.tensor([0, 1, 100])
    attend = Attention(causal=True)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple:
        return attend(
            *(q, k, v), cu_seqlens_q=ends_q, cu_seqlens_k=ends_k, max_seqlen_q=44, return_lse=True
        )

    o, lse = call(q, k, v)
    assert lse.shape == (4, 74)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert all(same(a, b) for a, b in zip(compiled(q, k, v), (o, lse), strict=True))
    assert_right(o[None, 30:], lse[None, :, 30:], q[None, 30:], k[None, 1:], v[None, 1:])


@pytest.mark.skipif("mask_mod" not in SUPPORTED, reason="sm90 has no mask functions yet")
def test_a_block_mask_of_pytorch() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    documents = torch.arange(50) // 20

    def mask_mod(b, h, q_idx, kv_idx):  # noqa: ANN001, ANN202
        return (documents[q_idx] == documents[kv_idx]) & (q_idx >= kv_idx)

    q, k, v = (x.transpose(1, 2) for x in tensors(50, 50))
    block_mask = create_block_mask(mask_mod, None, None, 50, 50, device="cpu")
    call = functools.partial(flex.flex_attention, block_mask=block_mask, enable_gqa=True)
    ours = call(q, k, v)
    assert same(torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v), ours)
    at = torch.arange(50)
    dense = mask_mod(0, 0, at[:, None], at[None])
    theirs = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), dense, enable_gqa=True
    )
    assert (ours.double() - theirs).abs().max() < 0.02
    assert np.isfinite(ours.float().numpy()).all()


def test_lists_of_blocks_that_say_more_than_their_function() -> None:
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask, noop_mask

    from fmhagen.frontends.block_lists import whole_mask

    def causal(b, h, q_idx, kv_idx):  # noqa: ANN001, ANN202
        return q_idx >= kv_idx

    rows, keys = 100, 150
    q, k, v = (x.transpose(1, 2) for x in tensors(rows, keys))
    counts = torch.tensor([[[1, 2, 0, 3], [2, 1, 3, 2]]], dtype=torch.int32).repeat(1, 2, 1)
    lists = torch.tensor([[4, 9, 9, 9, 9], [0, 3, 9, 9, 9], [9] * 5, [1, 2, 0, 9, 9]])
    lists = torch.stack([lists, lists.roll(1, 0).clamp(max=4)]).repeat(2, 1, 1)[None].int()
    full = (counts - 1).clamp(min=0), (lists + 2) % 5
    at = torch.arange(rows)[:, None], torch.arange(keys)[None]
    for function, given in ((None, ()), (causal, ()), (causal, full)):
        block_mask = BlockMask.from_kv_blocks(
            *(counts, lists, *given), BLOCK_SIZE=32, mask_mod=function, seq_lengths=(rows, keys)
        )
        o = flex.flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True)
        shown = torch.zeros(4, rows, keys, dtype=torch.bool)
        for what, (number, listed) in (("partly", (counts, lists)), ("fully", given or full)):
            if what == "fully" and not given:
                continue
            for h in range(4):
                for row in range(4):
                    for block in listed[0, h, row, : number[0, h, row]].tolist():
                        part = (
                            h,
                            slice(32 * row, 32 * row + 32),
                            slice(32 * block, 32 * block + 32),
                        )
                        whole = what == "fully" or function is None
                        seen = (
                            torch.ones(rows, keys, dtype=torch.bool) if whole else causal(0, 0, *at)
                        )
                        shown[part] |= seen[part[1:]]
        wanted = torch.nn.functional.scaled_dot_product_attention(
            *(q.double(), k.double(), v.double(), shown[None]), enable_gqa=True
        ).nan_to_num()
        assert (o.double() - wanted).abs().max() < 0.02
        call = functools.partial(flex.flex_attention, block_mask=block_mask, enable_gqa=True)
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        assert (compiled(q, k, v) - o).abs().max() < 0.01
    documents = torch.arange(keys) // 40
    for function in (
        causal,
        noop_mask,
        lambda b, h, m, n: (documents[m] == documents[n]) & (m >= n),
        lambda b, h, m, n: (m - n) % 64 < 3,
    ):
        made = create_block_mask(function, None, None, rows, keys, device="cpu", BLOCK_SIZE=32)
        assert whole_mask(made) is function


def test_guards_tell_layouts_apart_and_keep_nothing_alive() -> None:
    import gc
    import weakref

    from fmhagen.runtime.guards import guard_of

    q, k, v = tensors()
    guard = guard_of([q, k, v])
    assert guard is not None
    assert guard(q, k, v)
    assert guard(torch.empty_like(q), k, v)
    for other in (
        q[:, :5],
        q.transpose(1, 2).contiguous().transpose(1, 2),
        q.half(),
        q.clone().requires_grad_(),
        q.float().numpy(),
        None,
    ):
        assert not guard(other, k, v)
    assert guard_of([q.clone().requires_grad_(), k, v]) is None
    with torch.no_grad():
        assert guard(q, k, v)
    alive = weakref.ref(q)
    del q, other
    gc.collect()
    assert alive() is None
