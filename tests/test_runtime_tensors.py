"""Views of tensors, and every refusal: field, value, limit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fakes import torch as fake_torch

from fmhagen.api import compile_kernel
from fmhagen.errors import TensorError
from fmhagen.runtime.alignment import aligned_copy, aligned_numpy, misalignment
from fmhagen.runtime.checks import Problem, check_inputs, check_out
from fmhagen.runtime.tensors import (
    Framework,
    Memory,
    MisalignedTensorWarning,
    TensorView,
    contiguous_strides,
    view,
)
from fmhagen.spec import AttentionSpec

BF16 = ml_dtypes.bfloat16
SPEC = AttentionSpec(dtype="bf16", head_dim=64)


def zeros(*shape: int, dtype: Any = BF16) -> np.ndarray:
    return aligned_numpy(shape, dtype)


class OnlyDLPack:
    """An object that has nothing but `__dlpack__`."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        self.streams.append(options.get("stream"))
        return self.array.__dlpack__()


def test_numpy_is_viewed_without_a_copy() -> None:
    array = zeros(2, 5, 3, 64)
    seen = view("q", array.transpose(0, 2, 1, 3))
    assert seen.address == array.__array_interface__["data"][0]
    assert seen.shape == (2, 3, 5, 64)
    assert seen.strides == (5 * 3 * 64, 64, 3 * 64, 1)
    assert (seen.dtype, seen.place, seen.framework) == ("bf16", "host", Framework.NUMPY)
    assert view("q", array.view(np.float16)).dtype == "fp16"


def test_numpy_read_only_inputs_are_fine() -> None:
    array = zeros(1, 2, 1, 64)
    array.flags.writeable = False
    assert not view("q", array).writable


def test_torch_is_viewed_through_its_own_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch.install(monkeypatch)
    seen = view("q", fake_torch.tensor(zeros(1, 2, 3, 64), index=1))
    assert (seen.place, seen.dtype, seen.framework) == ("cuda:1", "bf16", Framework.TORCH)
    assert seen.strides == contiguous_strides((1, 2, 3, 64))
    assert view("q", fake_torch.tensor(zeros(1, 2, 3, 64), device="cpu")).memory == Memory.HOST


def test_torch_on_rocm_is_hip_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch.install(monkeypatch, hip="7.0")
    assert view("q", fake_torch.tensor(zeros(1, 2, 3, 64))).place == "hip:0"


def test_torch_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch.install(monkeypatch)
    with pytest.raises(TensorError, match=r"k=.*mps.*must lie in host, CUDA or ROCm memory"):
        view("k", fake_torch.tensor(zeros(1, 2, 3, 64), device="mps"))


def test_dlpack_is_viewed_without_a_copy() -> None:
    array = zeros(2, 6, 3, 64, dtype=np.float16)[:, ::2]
    seen = view("v", OnlyDLPack(array))
    assert seen.address == array.__array_interface__["data"][0]
    assert (seen.shape, seen.strides) == (array.shape, tuple(s // 2 for s in array.strides))
    assert (seen.dtype, seen.place, seen.framework) == ("fp16", "host", Framework.OTHER)


def test_dlpack_producers_are_told_the_stream() -> None:
    cuda = OnlyDLPack(zeros(1, 1, 1, 64, dtype=np.float16), device=(2, 3))
    assert view("v", cuda).place == "cuda:3"
    rocm = OnlyDLPack(zeros(1, 1, 1, 64, dtype=np.float16), device=(10, 0))
    assert view("v", rocm).place == "hip:0"
    assert (cuda.streams, rocm.streams) == ([1], [0])


def test_dlpack_on_another_device_is_refused() -> None:
    with pytest.raises(TensorError, match="DLPack device 8"):
        view("v", OnlyDLPack(zeros(1, 1, 1, 64, dtype=np.float16), device=(8, 0)))


def test_the_cuda_array_interface_is_read() -> None:
    class Holder:
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (1, 4, 2, 64),
            "typestr": "<f2",
            "data": (0x7000, True),
            "strides": None,
            "version": 3,
            "stream": 7,
        }

    seen = view("k", Holder())
    assert (seen.address, seen.stream, seen.writable) == (0x7000, 7, False)
    assert seen.strides == (512, 128, 64, 1)
    Holder.__cuda_array_interface__["typestr"] = "<V2"
    with pytest.raises(TensorError, match=r"k='<V2'.*__dlpack__"):
        view("k", Holder())


def test_anything_else_is_refused() -> None:
    with pytest.raises(TensorError, match=r"q='list': must be a tensor"):
        view("q", [1, 2])


def test_foreign_byte_order_and_broken_strides_are_refused() -> None:
    with pytest.raises(TensorError, match="byte order"):
        view("q", np.zeros((1, 1, 1, 64), ">f2"))
    records = np.zeros((1, 2, 1, 64), np.dtype([("a", np.float16), ("b", np.int8)]))
    with pytest.raises(TensorError, match="whole numbers of 2-byte elements"):
        view("q", records["a"])


def test_the_extent_ends_behind_the_last_element() -> None:
    array = zeros(2, 8, 3, 64)
    assert view("q", array[:, ::4, :2]).extent_bytes == 2 * (8 * 192 + 4 * 192 + 64 + 63 + 1)
    assert view("q", array[:0]).extent_bytes == 0
    assert view("q", np.broadcast_to(array[:, :1], array.shape)).extent_bytes == 2 * (1536 + 192)


@pytest.mark.parametrize(
    ("slicing", "reason"),
    [
        ((slice(None), slice(None), slice(None), slice(1, 65)), "address"),
        ((slice(None), slice(None), slice(None), slice(0, 64)), "stride of 68 elements along axis"),
    ],
)
def test_misalignment_names_its_reason(slicing: tuple[slice, ...], reason: str) -> None:
    tensor = view("k", zeros(2, 3, 2, 68)[slicing])
    assert reason in str(misalignment(tensor))
    with pytest.warns(MisalignedTensorWarning, match="k is copied for this call"):
        copy = aligned_copy(tensor, "reason")
    assert misalignment(copy) is None
    assert copy.shape == tensor.shape
    assert copy.strides == contiguous_strides(tensor.shape)


def test_strides_of_sizes_below_two_do_not_matter() -> None:
    odd = np.lib.stride_tricks.as_strided(
        zeros(1, 4, 1, 64), shape=(1, 4, 1, 64), strides=(6, 128, 2, 2)
    )
    assert misalignment(view("q", odd)) is None
    assert misalignment(view("q", zeros(1, 0, 3, 64)[..., 1:])) is None


def test_copies_keep_values() -> None:
    wide = np.random.default_rng(0).standard_normal((2, 3, 2, 68)).astype(BF16)
    with pytest.warns(MisalignedTensorWarning):
        copy = aligned_copy(view("k", wide[..., 1:65]), "reason")
    np.testing.assert_array_equal(copy.tensor, wide[..., 1:65])


def test_copies_need_a_known_framework() -> None:
    seen = view("k", OnlyDLPack(zeros(1, 2, 1, 68, dtype=np.float16)[..., 1:65]))
    with pytest.raises(TensorError, match="pass a dense aligned tensor"):
        aligned_copy(seen, "its address is odd")


def views(**changes: np.ndarray) -> tuple[TensorView, TensorView, TensorView]:
    made = {"q": zeros(2, 5, 4, 64), "k": zeros(2, 7, 2, 64), "v": zeros(2, 7, 2, 64)} | changes
    return tuple(view(name, tensor) for name, tensor in made.items())


def test_sizes_are_read_by_layout() -> None:
    expected = Problem(batch=2, heads=4, heads_kv=2, seqlen_q=5, seqlen_k=7)
    assert check_inputs(SPEC, *views()) == expected
    swapped = (view(v.name, v.tensor.transpose(0, 2, 1, 3)) for v in views())
    bhsd = AttentionSpec(dtype="bf16", head_dim=64, layout="bhsd")
    assert check_inputs(bhsd, *swapped) == expected


@pytest.mark.parametrize(
    ("changes", "field", "text"),
    [
        ({"q": zeros(5, 4, 64)}, "q", "four dimensions (b, s, h, d)"),
        ({"k": zeros(2, 7, 2, 64, dtype=np.float16)}, "k", "element type, bf16"),
        ({"v": zeros(2, 7, 2, 64, dtype=np.float32)}, "v", "nothing is converted silently"),
        ({"k": zeros(1, 7, 2, 64)}, "k", "batch of q, 2"),
        ({"v": zeros(3, 7, 2, 64)}, "v", "batch of q, 2"),
        ({"v": zeros(2, 7, 4, 64)}, "v", "heads of k, 2"),
        ({"v": zeros(2, 8, 2, 64)}, "v", "rows of k, 7"),
        ({"q": zeros(2, 5, 4, 128)}, "q", "head_dim=64"),
        ({"k": zeros(2, 7, 2, 128)}, "k", "head_dim=64"),
        ({"v": zeros(2, 7, 2, 128)}, "v", "head_dim_v=64"),
        ({"q": zeros(2, 5, 3, 64)}, "k", "must divide the 3 query heads"),
        ({"k": zeros(2, 7, 0, 64), "v": zeros(2, 7, 0, 64)}, "k", "must divide the 4 query heads"),
        ({"q": zeros(2, 5, 4, 64)[:, ::-1]}, "q", "must not be negative"),
        ({"k": zeros(2, 7, 2, 128)[..., ::2]}, "k", "last dimension must have stride 1"),
        ({"q": zeros(2, 5, 64, 4).transpose(0, 1, 3, 2)}, "q", "must have stride 1"),
    ],
)
def test_refusals_name_tensor_value_and_limit(
    changes: dict[str, np.ndarray], field: str, text: str
) -> None:
    with pytest.raises(TensorError) as caught:
        check_inputs(SPEC, *views(**changes))
    assert caught.value.field == field
    assert text in str(caught.value)
    assert caught.value.to_dict()["limit"]


def check(out: np.ndarray, q: np.ndarray | None = None, others: tuple[int, ...] = ()) -> None:
    problem = Problem(batch=2, heads=4, heads_kv=2, seqlen_q=5, seqlen_k=7)
    check_out(SPEC, problem, view("out", out), view("q", zeros(2, 5, 4, 64)), others)


def read_only() -> np.ndarray:
    array = zeros(2, 5, 4, 64)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (zeros(2, 5, 4, 128), "shape (2, 5, 4, 64)"),
        (zeros(2, 5, 4, 64, dtype=np.float16), "element type"),
        (zeros(2, 5, 4, 64)[:, ::-1], "negative"),
        (np.broadcast_to(zeros(2, 1, 4, 64), (2, 5, 4, 64)), "writable"),
        (read_only(), "writable"),
        (zeros(2, 5, 4, 68)[..., :64], "not a multiple of 16 bytes"),
        (zeros(2, 5, 4, 72)[..., 1:65], "address"),
    ],
)
def test_out_must_be_writable_in_place(out: np.ndarray, text: str) -> None:
    with pytest.raises(TensorError) as caught:
        check(out)
    assert caught.value.field == "out"
    assert text in str(caught.value)


def test_out_must_not_overlap_itself_or_an_input() -> None:
    array = zeros(2, 5, 4, 64)
    overlapping = np.lib.stride_tricks.as_strided(
        array, shape=(2, 5, 4, 64), strides=(0, 512, 128, 2)
    )
    with pytest.raises(TensorError, match="must not be expanded"):
        check(overlapping)
    with pytest.raises(TensorError, match="must not be q, k or v"):
        check(array, others=(array.__array_interface__["data"][0],))
    check(array)
    check(zeros(2, 4, 5, 64).transpose(0, 2, 1, 3))


def test_frameworks_may_be_mixed_and_results_are_of_q_s() -> None:
    """Host memory is read where it lies, whoever's it is."""
    rng = np.random.default_rng(0)
    q, k, v = (aligned_numpy((1, 70, 1, 64), np.float16) for _ in range(3))
    for tensor in (q, k, v):
        tensor[:] = rng.standard_normal(tensor.shape)
    spec = AttentionSpec(dtype="fp16", head_dim=64)
    kernel = compile_kernel(spec, device="emulator", target="gfx942")
    o = kernel(q, k, v)
    mixed = kernel(q, OnlyDLPack(k), fake_torch.tensor(v, device="cpu"))
    assert isinstance(mixed, np.ndarray)
    assert np.array_equal(mixed, o)
