"""Calls on host tensors, end to end through the emulator: awkward sizes, layouts, outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fmhagen.api import Kernel, compile_kernel, reference
from fmhagen.errors import EmulatorError, TensorError
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.runtime.alignment import aligned_numpy
from fmhagen.runtime.emulator import Checks
from fmhagen.runtime.emulator_backend import EmulatorOptions, is_dense
from fmhagen.runtime.tensors import MisalignedTensorWarning, view
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS

DTYPES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}
NAMES = tuple(target.name for target in TARGETS)
MAPS = Path("/proc/self/maps")
# (batch, rows, keys, heads, key heads)
SIZES = (
    (1, 1, 1, 1, 1),
    (2, 197, 333, 4, 2),
    (1, 130, 129, 3, 1),
    (3, 5, 2, 2, 2),
    (1, 257, 64, 1, 1),
    (2, 4, 0, 2, 1),
)


def kernel(spec: AttentionSpec, target: str, **options: Any) -> Kernel:
    return compile_kernel(
        spec, device="emulator", target=target, emulator=EmulatorOptions(**options)
    )


def inputs(spec: AttentionSpec, sizes: tuple[int, ...], seed: int = 0) -> tuple[Any, Any, Any]:
    batch, rows, keys, heads, heads_kv = sizes
    generator = np.random.default_rng(seed)
    made = []
    for s, h in ((rows, heads), (keys, heads_kv), (keys, heads_kv)):
        shape = (batch, s, h, spec.d) if spec.layout == "bshd" else (batch, h, s, spec.d)
        tensor = aligned_numpy(shape, DTYPES[spec.dtype])
        tensor[...] = generator.standard_normal(shape)
        made.append(tensor)
    return tuple(made)


def check(spec: AttentionSpec, o: Any, lse: Any, q: Any, k: Any, v: Any) -> None:
    comparison = compare(o, lse, *reference(spec, q, k, v), layout=str(spec.layout))
    assert comparison.within(tolerance_of(spec.dtype)), comparison


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("causal", [False, True])
def test_awkward_sizes(target: str, sizes: tuple[int, ...], causal: bool) -> None:
    spec = AttentionSpec(dtype="bf16", head_dim=64, causal=causal)
    q, k, v = inputs(spec, sizes)
    o, lse = kernel(spec, target)(q, k, v, return_lse=True)
    assert o.shape == q.shape
    assert lse.dtype == np.float32
    check(spec, o, lse, q, k, v)


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "fp16"},
        {"dtype": "bf16", "layout": "bhsd", "causal": True},
        {"dtype": "bf16", "causal": True, "anchor": "top_left"},
        {"dtype": "fp16", "scale": 0.0},
        {"dtype": "fp16", "head_dim": 128, "causal": True},
    ],
)
def test_specs(target: str, fields: dict[str, Any]) -> None:
    spec = AttentionSpec(**{"head_dim": 64, **fields})
    q, k, v = inputs(spec, (2, 70, 150, 4, 2))
    o, lse = kernel(spec, target)(q, k, v, return_lse=True)
    check(spec, o, lse, q, k, v)


SPEC = AttentionSpec(dtype="bf16", head_dim=64, causal=True)


@pytest.mark.parametrize("target", NAMES)
class TestLayouts:
    def test_a_packed_projection_is_read_in_place(self, target: str) -> None:
        packed = aligned_numpy((2, 70, 3, 2, 64), ml_dtypes.bfloat16)
        packed[...] = np.random.default_rng(2).standard_normal(packed.shape)
        q, k, v = packed[:, :, 0], packed[:, :, 1], packed[:, :, 2]
        check(SPEC, *kernel(SPEC, target)(q, k, v, return_lse=True), q, k, v)

    def test_a_transposed_tensor_gives_a_transposed_output(self, target: str) -> None:
        q, k, v = (
            np.ascontiguousarray(t.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
            for t in inputs(SPEC, (2, 70, 90, 4, 2))
        )
        o, lse = kernel(SPEC, target)(q, k, v, return_lse=True)
        assert o.strides == q.strides
        check(SPEC, o, lse, q, k, v)

    @pytest.mark.parametrize("axis", [0, 1, 2])
    def test_expanded_keys_are_read_in_place(self, target: str, axis: int) -> None:
        q, k, v = inputs(SPEC, (2, 70, 97, 4, 2))
        k, v = (np.broadcast_to(t.take([0], axis), t.shape) for t in (k, v))
        check(SPEC, *kernel(SPEC, target)(q, k, v, return_lse=True), q, k, v)

    def test_misaligned_inputs_are_copied_with_a_warning(self, target: str) -> None:
        q, k, v = inputs(SPEC, (2, 70, 97, 4, 2))
        flat = aligned_numpy((k.size + 8,), k.dtype)
        odd = flat[1 : 1 + k.size].reshape(k.shape)
        odd[...] = k
        with pytest.warns(MisalignedTensorWarning, match="k is copied") as caught:
            o, lse = kernel(SPEC, target)(q, odd, v, return_lse=True)
        assert caught[0].filename == __file__
        check(SPEC, o, lse, q, k, v)

    def test_out_is_written_and_its_neighbours_are_not(self, target: str) -> None:
        q, k, v = inputs(SPEC, (2, 70, 97, 4, 2))
        wide = aligned_numpy((2, 70, 8, 64), ml_dtypes.bfloat16)
        wide[...] = 7
        out = wide[:, :, 2:6]
        assert not is_dense(view("out", out))
        o, lse = kernel(SPEC, target)(q, k, v, out=out, return_lse=True)
        assert o is out
        check(SPEC, out, lse, q, k, v)
        assert (wide[:, :, :2] == 7).all()
        assert (wide[:, :, 6:] == 7).all()

    def test_objects_with_dlpack_alone_need_out(self, target: str) -> None:
        class OnlyDLPack:
            def __init__(self, array: np.ndarray) -> None:
                self.array = array
                self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

        spec = AttentionSpec(dtype="fp16", head_dim=64)
        arrays = inputs(spec, (1, 70, 97, 2, 2))
        q, k, v = (OnlyDLPack(array) for array in arrays)
        with pytest.raises(TensorError, match="cannot allocate O"):
            kernel(spec, target)(q, k, v)
        out = aligned_numpy((1, 70, 2, 64), np.float16)
        assert kernel(spec, target)(q, k, v, out=out) is out
        check(spec, out, None, *arrays)


@pytest.mark.parametrize("target", NAMES)
def test_a_call_scale_overrides_the_specs(target: str) -> None:
    q, k, v = inputs(SPEC, (1, 70, 97, 2, 2))
    o, lse = kernel(SPEC, target)(q, k, v, scale=0.5, return_lse=True)
    comparison = compare(o, lse, *reference(SPEC, q, k, v, scale=0.5))
    assert comparison.within(tolerance_of("bf16")), comparison


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("sizes", [(0, 5, 5, 2, 2), (2, 0, 5, 2, 2), (2, 5, 5, 0, 0)])
def test_nothing_to_compute_gives_empty_tensors(target: str, sizes: tuple[int, ...]) -> None:
    q, k, v = inputs(SPEC, sizes)
    o, lse = kernel(SPEC, target)(q, k, v, return_lse=True)
    assert o.shape == q.shape
    assert lse.shape == (q.shape[0], q.shape[2], q.shape[1])
    out = aligned_numpy(q.shape, q.dtype)
    assert kernel(SPEC, target)(q, k, v, out=out) is out


@pytest.mark.parametrize("target", NAMES)
def test_the_seed_changes_the_timing_and_not_the_bits(target: str) -> None:
    q, k, v = inputs(SPEC, (1, 130, 197, 2, 1))
    first = kernel(SPEC, target, seed=1)(q, k, v)
    for options in ({"seed": 2}, {"compute_units": 1}, {"checks": Checks.NONE}):
        np.testing.assert_array_equal(kernel(SPEC, target, **options)(q, k, v), first)


@pytest.mark.parametrize("target", NAMES)
def test_a_block_of_a_persistent_grid_gets_several_tiles(target: str) -> None:
    spec = AttentionSpec(dtype="bf16", head_dim=64, causal=True)
    q, k, v = inputs(spec, (2, 400, 300, 3, 3))
    o, lse = kernel(spec, target, compute_units=2)(q, k, v, return_lse=True)
    check(spec, o, lse, q, k, v)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_torch_tensors_on_the_host(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    spec = AttentionSpec(dtype={"bfloat16": "bf16", "float16": "fp16"}[dtype], head_dim=64)
    made = compile_kernel(spec)
    q, k, v = (torch.randn(2, s, 2, 64).to(getattr(torch, dtype)) for s in (70, 97, 97))
    o, lse = made(q, k, v, return_lse=True)
    assert (o.dtype, lse.dtype, o.stride()) == (q.dtype, torch.float32, q.stride())
    check(spec, o, lse, q, k, v)
    out = torch.empty_like(q)
    assert made(q, k, v, out=out) is out
    assert out.equal(o)
    odd = torch.empty(k.numel() + 1, dtype=k.dtype)[1:].view(k.shape).copy_(k)
    with pytest.warns(MisalignedTensorWarning, match="k is copied"):
        assert made(q, odd, v).equal(o)
    transposed = q.transpose(1, 2).contiguous().transpose(1, 2)
    assert made(transposed, k, v).stride() == transposed.stride()
    q.requires_grad = True
    with pytest.raises(TensorError, match="backward pass"):
        made(q, k, v)
    with torch.no_grad():
        assert made(q, k, v).equal(o)


def test_an_element_that_nobody_wrote_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = AttentionSpec(dtype="bf16", head_dim=64)
    made = kernel(spec, NAMES[0])
    q, k, v = inputs(spec, (1, 70, 97, 2, 2))
    monkeypatch.setattr(type(made.plan.grid), "tiles", lambda self, **sizes: 1)  # of two
    with pytest.raises(EmulatorError, match="never written") as caught:
        made(q, k, v)
    assert caught.value.kind == "unwritten"


def test_a_binary_in_memory_alone_runs() -> None:
    q, k, v = inputs(SPEC, (1, 5, 7, 1, 1))
    made = compile_kernel(SPEC, device="emulator", cache=None)
    assert made.binary.path is None
    check(SPEC, *made(q, k, v, return_lse=True), q, k, v)


@pytest.mark.skipif(not MAPS.is_file(), reason="counts mappings as Linux lists them")
@pytest.mark.parametrize("target", NAMES)
def test_a_kernel_keeps_few_mappings_between_runs(target: str) -> None:
    """Linux allows a process 65530; while a kernel runs, each of its fibers takes two."""
    q, k, v = inputs(SPEC, (1, 70, 97, 2, 2))
    kernels = [kernel(AttentionSpec(head_dim=64, scale=scale), target) for scale in (0.25, 0.5)]
    kernels[0](q, k, v)  # what only the first emulated kernel of a process brings
    before = MAPS.read_bytes().count(b"\n")
    for _ in range(2):
        kernels[1](q, k, v)
    assert MAPS.read_bytes().count(b"\n") - before < 50
