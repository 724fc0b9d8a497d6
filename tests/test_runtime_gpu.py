"""The CUDA backend on a Hopper GPU with PyTorch: layouts, streams, graphs, devices, host cost."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from fmhagen.api import Kernel, compile_kernel, reference
from fmhagen.errors import CaptureError, FmhagenError, TensorError
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.runtime.devices import gpu_backend
from fmhagen.runtime.tensors import Memory, MisalignedTensorWarning
from fmhagen.spec import AttentionSpec


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
SPEC = AttentionSpec(dtype="bf16", head_dim=128, causal=True)
# (batch, rows, keys, heads, key heads)
SIZES = (
    (1, 1, 1, 1, 1),
    (2, 197, 333, 4, 2),
    (1, 1030, 1030, 6, 1),
    (3, 5, 2, 2, 2),
    (1, 300, 64, 3, 3),
    (2, 4, 0, 2, 1),
)


def inputs(
    spec: AttentionSpec, sizes: tuple[int, ...], device: str = "cuda", seed: int = 0
) -> tuple[Any, Any, Any]:
    import torch

    batch, rows, keys, heads, heads_kv = sizes
    generator = torch.Generator(device).manual_seed(seed)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[str(spec.dtype)]
    made = []
    for s, h in ((rows, heads), (keys, heads_kv), (keys, heads_kv)):
        shape = (batch, s, h, spec.d) if spec.layout == "bshd" else (batch, h, s, spec.d)
        made.append(torch.randn(shape, generator=generator, device=device).to(dtype))
    return tuple(made)


def check(spec: AttentionSpec, o: Any, lse: Any, q: Any, k: Any, v: Any) -> None:
    expected = reference(spec, q, k, v)
    comparison = compare(o, lse, *expected, layout=str(spec.layout))
    assert comparison.within(tolerance_of(str(spec.dtype))), comparison


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return compile_kernel(SPEC, device="cuda")


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    "fields",
    [
        {"causal": False},
        {"causal": True},
        {"causal": True, "anchor": "top_left"},
        {"causal": True, "dtype": "fp16", "layout": "bhsd"},
        {"head_dim": 64, "causal": True},
        {"head_dim": 64, "scale": 0.0, "dtype": "fp16"},
    ],
)
def test_specs_and_awkward_sizes(sizes: tuple[int, ...], fields: dict[str, Any]) -> None:
    spec = AttentionSpec(**{"head_dim": 128, "dtype": "bf16", **fields})
    q, k, v = inputs(spec, sizes)
    o, lse = compile_kernel(spec)(q, k, v, return_lse=True)
    check(spec, o, lse, q, k, v)


def test_rows_that_see_nothing() -> None:
    import torch

    spec = AttentionSpec(dtype="bf16", head_dim=64, causal=True)
    q = torch.zeros(1, 5, 1, 64, dtype=torch.bfloat16, device="cuda")
    k = torch.zeros(1, 2, 1, 64, dtype=torch.bfloat16, device="cuda")
    index = torch.arange(2, device="cuda", dtype=torch.bfloat16)
    v = index[None, :, None, None].expand(1, 2, 1, 64).contiguous()
    o, lse = compile_kernel(spec)(q, k, v, return_lse=True)
    assert o[0, :, 0, 0].tolist() == [0, 0, 0, 0, 0.5]
    assert lse[0, 0, :4].tolist() == [-math.inf, -math.inf, -math.inf, 0.0]
    assert lse[0, 0, 4].item() == pytest.approx(math.log(2), abs=1e-5)


def packed(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    import torch

    whole = torch.randn(2, 197, 3, 4, 128, device="cuda").to(torch.bfloat16)
    return whole[:, :, 0], whole[:, :, 1], whole[:, :, 2]


def transposed(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    return tuple(t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))


def padded(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    import torch

    return tuple(torch.nn.functional.pad(t, (0, 8), value=math.nan)[..., :128] for t in (q, k, v))


def every_other_row(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    return q[:, ::2], k[:, ::3], v[:, ::3]


def expanded(axis: int) -> Callable[..., tuple[Any, Any, Any]]:
    def expand(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
        return q, *(t.narrow(axis, 0, 1).expand(t.shape) for t in (k, v))

    return expand


LAYOUTS = {
    "packed": packed,
    "transposed": transposed,
    "padded": padded,
    "every other row": every_other_row,
    "expanded batch": expanded(0),
    "expanded rows": expanded(1),
    "expanded heads": expanded(2),
    "expanded queries": lambda q, k, v: (q[:1].expand(q.shape), k, v),
    "expanded v alone": lambda q, k, v: (q, k, v[:, :, :1].expand(v.shape)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_read_in_place(kernel: Kernel, name: str) -> None:
    """No copy: a MisalignedTensorWarning would fail the test."""
    q, k, v = LAYOUTS[name](*inputs(SPEC, (2, 197, 333, 4, 2)))
    o, lse = kernel(q, k, v, return_lse=True)
    check(SPEC, o, lse, q, k, v)
    again = kernel(q, k, v)  # the quick path, and bit for bit the same
    assert again.equal(o)


def test_misaligned_inputs_are_copied(kernel: Kernel) -> None:
    import torch

    q, k, v = inputs(SPEC, (2, 197, 333, 4, 2))
    flat = torch.empty(k.numel() + 1, dtype=k.dtype, device="cuda")
    odd = flat[1:].view(k.shape).copy_(k)
    with pytest.warns(MisalignedTensorWarning, match="k is copied"):
        o, lse = kernel(q, odd, v, return_lse=True)
    check(SPEC, o, lse, q, k, v)
    wide = torch.nn.functional.pad(q, (0, 1))[..., :128]
    with pytest.warns(MisalignedTensorWarning, match="q is copied"):
        assert kernel(wide, k, v).equal(o)


def test_out_is_written_and_its_neighbours_are_not(kernel: Kernel) -> None:
    import torch

    q, k, v = inputs(SPEC, (2, 197, 333, 4, 2))
    wide = torch.full((2, 197, 8, 128), 7.0, dtype=torch.bfloat16, device="cuda")
    out = wide[:, :, 2:6]
    assert kernel(q, k, v, out=out) is out
    check(SPEC, out, None, q, k, v)
    assert (wide[:, :, :2] == 7).all()
    assert (wide[:, :, 6:] == 7).all()
    with pytest.raises(TensorError, match="must not be q, k or v"):
        kernel(q, q, q, out=q)


def test_output_follows_q_in_memory(kernel: Kernel) -> None:
    q, k, v = transposed(*inputs(SPEC, (2, 197, 333, 4, 2)))
    assert kernel(q, k, v).stride() == q.stride()


@pytest.mark.parametrize(
    ("batch", "heads", "rows"), [(65536, 8, 4), (1, 71280, 3)], ids=["batch", "heads"]
)
def test_counts_beyond_the_limits_of_grid_y_and_z(batch: int, heads: int, rows: int) -> None:
    spec = AttentionSpec(dtype="bf16", head_dim=64, causal=True)
    q, k, v = inputs(spec, (batch, rows, rows, heads, heads))
    o, lse = compile_kernel(spec)(q, k, v, return_lse=True)
    for b, h in ((0, 0), (batch - 1, heads - 1), (batch // 2, heads // 3)):
        part = (slice(b, b + 1), slice(None), slice(h, h + 1))
        check(spec, o[part], lse[b : b + 1, h : h + 1], q[part], k[part], v[part])


def test_offsets_beyond_32_bits(kernel: Kernel) -> None:
    """The second batch lies 2^31 elements behind the first: 4.3 GB of address space a tensor."""
    import torch

    pitch = 2**31 // 128 * 128 + 1024
    buffer = torch.empty(pitch + 333 * 2 * 128, dtype=torch.bfloat16, device="cuda")
    k = buffer.as_strided((2, 333, 2, 128), (pitch, 256, 128, 1))
    q, dense, v = inputs(SPEC, (2, 197, 333, 4, 2))
    k.copy_(dense)
    assert kernel(q, k, v).equal(kernel(q, dense, v))


def test_work_is_ordered_on_the_current_stream(kernel: Kernel) -> None:
    import torch

    q, k, v = inputs(SPEC, (2, 197, 333, 4, 2))
    expected = kernel(q, k, v)
    late = torch.zeros_like(q)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about 0.1 s, so that a wrong stream would be early
        late.copy_(q)
        o = kernel(late, k, v)
    stream.synchronize()
    assert o.equal(expected)


def test_a_graph_replays_with_changed_inputs(kernel: Kernel) -> None:
    import torch

    q, k, v = inputs(SPEC, (2, 197, 333, 4, 2))
    kernel(q, k, v)  # warm
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = kernel(q, k, v, return_lse=True)
    for seed in (1, 2):
        for tensor, new in zip(
            (q, k, v), inputs(SPEC, (2, 197, 333, 4, 2), seed=seed), strict=True
        ):
            tensor.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        check(SPEC, o, lse, q, k, v)


def test_a_new_layout_can_be_captured_once_the_kernel_is_loaded(kernel: Kernel) -> None:
    import torch

    kernel.load(0)
    q, k, v = inputs(SPEC, (1, 77, 99, 2, 1))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        o = kernel(q, k, v)
    graph.replay()
    check(SPEC, o, None, q, k, v)


def test_a_cold_call_in_capture_is_an_error_that_leaves_the_capture_whole() -> None:
    import torch

    cold = compile_kernel(SPEC)
    q, k, v = inputs(SPEC, (2, 197, 333, 4, 2))
    count = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(CaptureError, match="warm up before the capture"):
            cold(q, k, v)
        count.add_(1)
    graph.replay()
    assert count.item() == 1
    check(SPEC, cold(q, k, v), None, q, k, v)


def test_device_and_context_are_restored(kernel: Kernel) -> None:
    import torch

    driver = gpu_backend(Memory.CUDA).driver
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with torch.cuda.device(0):
        torch.zeros(1, device="cuda:0")
        before = int(driver.cuCtxGetCurrent()[1])
        q, k, v = inputs(SPEC, (2, 197, 333, 4, 2), device="cuda:1")
        o = kernel(q, k, v)
        assert o.device.index == 1
        assert kernel(q, k, v).equal(o)
        assert torch.cuda.current_device() == 0
        assert int(driver.cuCtxGetCurrent()[1]) == before
        check(SPEC, o, None, q, k, v)
        with pytest.raises(TensorError, match="must lie on the device of q"):
            kernel(q.to("cuda:0"), k, v)


def test_threads_without_a_context_can_call(kernel: Kernel) -> None:
    import torch

    sets = [inputs(SPEC, (2, 197, 333, 4, 2), seed=seed) for seed in range(4)]
    expected = [kernel(*tensors) for tensors in sets]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(50):
            if not kernel(*sets[index]).equal(expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_dlpack_alone_is_enough_with_out(kernel: Kernel) -> None:
    import torch

    class OnlyDLPack:
        def __init__(self, tensor: Any) -> None:
            self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__

    q, k, v = inputs(SPEC, (2, 197, 333, 4, 2))
    expected = kernel(q, k, v)
    out = torch.empty_like(q)
    torch.cuda.synchronize()
    kernel(OnlyDLPack(q), OnlyDLPack(k), OnlyDLPack(v), out=OnlyDLPack(out))
    torch.cuda.synchronize()
    assert out.equal(expected)


def test_cupy_tensors() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    spec = AttentionSpec(dtype="fp16", head_dim=64, causal=True)
    q, k, v = (cupy.from_dlpack(t) for t in inputs(spec, (2, 197, 333, 4, 2)))
    o, lse = compile_kernel(spec)(q, k, v, return_lse=True)
    assert type(o) is type(q)
    check(spec, o, lse, q, k, v)


def test_host_cost_of_a_warm_call(kernel: Kernel) -> None:
    """At most 20 us with the output's allocation; the GPU's own work is shorter than that."""
    import torch

    q, k, v = inputs(SPEC, (1, 64, 64, 1, 1))
    best = math.inf
    for _ in range(20):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(200):
            kernel(q, k, v)
        best = min(best, (time.perf_counter() - started) / 200)
    print(f"host cost of a warm call: {best * 1e6:.1f} us")
    assert best <= 20e-6
