"""Tensors: any framework's tensor seen as one light record.

NumPy, PyTorch and CuPy tensors are read through their attributes, which costs least; any other
object through `__dlpack__` or `__cuda_array_interface__`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fmhagen.errors import TensorError

ALIGNMENT_BYTES = 16  # of every address and stride: one vector load, one step of a tensor map


class MisalignedTensorWarning(UserWarning):
    """An input was copied, since the kernels read 16 bytes at a time."""


class Memory(StrEnum):
    """Which kind of memory a tensor lies in."""

    HOST = "host"
    CUDA = "cuda"
    HIP = "hip"


class Framework(StrEnum):
    """Who made a tensor, and so who allocates copies and outputs."""

    TORCH = "torch"
    NUMPY = "numpy"
    CUPY = "cupy"
    OTHER = "other"


# Names of element types in the frameworks -> names in a spec; whole numbers keep theirs.
_DTYPE_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
_DTYPE_NAMES |= {"bool8": "bool"}  # as DLPack counts bits
_DTYPE_NAMES |= {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
_DTYPE_NAMES |= {"float8_e4m3fnuz": "e4m3fnuz", "float8_e5m2fnuz": "e5m2fnuz"}
_FRAMEWORK_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
DTYPE_BYTES = {
    **{"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8},
    **{"e4m3": 1, "e5m2": 1, "e4m3fnuz": 1, "e5m2fnuz": 1},
    **{"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorView:
    """Where a tensor lies and how it is strided.

    Attributes:
        name: the argument's name, for messages.
        address: of the first element; 0 is allowed for a tensor without elements.
        shape: sizes.
        strides: in elements; may be 0 (expanded).
        dtype: the spec's name of the element type ("bf16"), else the framework's.
        memory: host, cuda or hip.
        device: index of the device; 0 for the host.
        framework: who made it.
        writable: whether it may be written.
        stream: the stream that its producer named, or None.
        tensor: the object itself, or what keeps its memory alive.
    """

    name: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    memory: Memory
    device: int
    framework: Framework
    writable: bool
    stream: int | None
    tensor: Any

    @property
    def place(self) -> str:
        """Memory and device as text, such as "cuda:0"."""
        return "host" if self.memory == Memory.HOST else f"{self.memory}:{self.device}"

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def extent_bytes(self) -> int:
        """Bytes from the first element to behind the last; strides must not be negative."""
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.element_bytes


def view(name: str, tensor: Any) -> TensorView:
    """Return the record of a tensor argument.

    Raises:
        TensorError: it is no tensor, or lies where no kernel runs.
    """
    module = type(tensor).__module__.partition(".")[0]
    if hasattr(tensor, "data_ptr") and hasattr(tensor, "stride"):
        return _view_torch(name, tensor)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(tensor, numpy.ndarray):
        return _view_numpy(name, tensor)
    if module == "cupy":
        return _view_cupy(name, tensor)
    from fmhagen.runtime import interchange

    if hasattr(tensor, "__dlpack__"):
        return interchange.view_dlpack(name, tensor)
    if hasattr(tensor, "__cuda_array_interface__"):
        return interchange.view_cuda_array(name, tensor)
    raise TensorError(
        name,
        type(tensor).__name__,
        "must be a tensor",
        "pass a NumPy, PyTorch or CuPy array, or an object with __dlpack__",
    )


def is_tensor(value: Any) -> bool:
    """Return whether `view` can read a value."""
    return any(
        hasattr(value, name) for name in ("data_ptr", "__dlpack__", "__cuda_array_interface__")
    )


def dtype_name(text: str) -> str:
    """Return the spec's name of a framework's element type, else the name as it is."""
    return _DTYPE_NAMES.get(text, text)


def beside(name: str, value: Any, q: TensorView) -> Any:
    """Return a copy of a NumPy array on the device of Q by Q's framework; else the value itself."""
    if not is_tensor(value):
        return value
    tensor = view(name, value)
    if tensor.framework != Framework.NUMPY or tensor.place == q.place:
        return value
    if q.framework == Framework.TORCH:
        import torch

        return torch.tensor(value, device=q.tensor.device)  # takes an array that is read-only, too
    return import_cupy().asarray(value) if q.framework == Framework.CUPY else value


def converted(tensor: TensorView, dtype: str) -> TensorView:
    """Return a dense copy of a tensor with another element type, by its own framework.

    Raises:
        TensorError: the framework is unknown, so nobody can convert.
    """
    source = tensor.tensor
    name = _FRAMEWORK_NAMES.get(dtype, dtype)
    if tensor.framework == Framework.TORCH:
        import torch

        return view(tensor.name, source.detach().to(getattr(torch, name)).contiguous())
    if tensor.framework == Framework.NUMPY:
        import ml_dtypes
        import numpy as np

        kind = ml_dtypes.bfloat16 if dtype == "bf16" else np.dtype(name)
        return view(tensor.name, np.array(source, kind, order="C"))
    if tensor.framework == Framework.CUPY:
        return view(tensor.name, import_cupy().ascontiguousarray(source, name))
    limit = f"must be {dtype} and dense; fmhagen cannot convert this framework's tensors"
    raise TensorError(tensor.name, tensor.dtype, limit, "convert it before the call")


def element_strides(
    name: str, strides_bytes: tuple[int, ...] | None, shape: tuple[int, ...], element_bytes: int
) -> tuple[int, ...]:
    """Return strides in elements; None means C order.

    Raises:
        TensorError: a stride is not a whole number of elements.
    """
    if strides_bytes is None:
        return contiguous_strides(shape)
    if any(n > 1 and s % element_bytes for n, s in zip(shape, strides_bytes, strict=True)):
        raise TensorError(
            name,
            strides_bytes,
            f"strides must be whole numbers of {element_bytes}-byte elements",
            "pass a contiguous copy",
        )
    return tuple(s // element_bytes for s in strides_bytes)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a dense tensor in C order, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def torch_memory(device: Any) -> Memory | None:
    """Return the memory of a torch device, or None where no kernel runs."""
    if device.type == "cpu":
        return Memory.HOST
    if device.type == "cuda":
        import torch

        return Memory.HIP if torch.version.hip else Memory.CUDA
    return None


def _view_torch(name: str, tensor: Any) -> TensorView:
    device = tensor.device
    memory = torch_memory(device)
    if memory is None:
        raise TensorError(name, str(device), "must lie in host, CUDA or ROCm memory")
    if tensor.requires_grad:
        import torch

        if torch.is_grad_enabled():
            hint = "call under torch.no_grad(), or pass a detached tensor"
            limit = "the backward pass is not generated yet"
            raise TensorError(name, "requires_grad=True", limit, hint)
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:  # of torch.vmap, of a graph that is traced
        limit = "has no memory of its own, as under torch.vmap or where a graph is traced"
        hint = "call a fmhagen.frontends.torch_ops.Attention there, whose operators have rules"
        raise TensorError(name, type(tensor).__name__, limit, hint) from error
    return TensorView(
        name=name,
        address=address,
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        dtype=dtype_name(str(tensor.dtype).removeprefix("torch.")),
        memory=memory,
        device=device.index or 0,
        framework=Framework.TORCH,
        writable=True,
        stream=None,
        tensor=tensor,
    )


def _view_numpy(name: str, tensor: Any) -> TensorView:
    dtype = tensor.dtype
    if dtype.byteorder == ">":
        limit = "must have the machine's byte order"
        raise TensorError(name, dtype.str, limit, "use astype(dtype.newbyteorder('='))")
    shape = tuple(tensor.shape)
    return TensorView(
        name=name,
        address=tensor.__array_interface__["data"][0],
        shape=shape,
        strides=element_strides(name, tuple(tensor.strides), shape, dtype.itemsize),
        dtype=dtype_name(dtype.name),
        memory=Memory.HOST,
        device=0,
        framework=Framework.NUMPY,
        writable=bool(tensor.flags.writeable),
        stream=None,
        tensor=tensor,
    )


def import_cupy() -> Any:
    """Return CuPy, whose tensor the caller has in hand."""
    import importlib

    return importlib.import_module("cupy")


def _view_cupy(name: str, tensor: Any) -> TensorView:
    cupy = import_cupy()
    shape = tuple(tensor.shape)
    hip = bool(cupy.cuda.runtime.is_hip)
    return TensorView(
        name=name,
        address=tensor.data.ptr,
        shape=shape,
        strides=element_strides(name, tuple(tensor.strides), shape, tensor.dtype.itemsize),
        dtype=dtype_name(tensor.dtype.name),
        memory=Memory.HIP if hip else Memory.CUDA,
        device=tensor.device.id,
        framework=Framework.CUPY,
        writable=True,
        stream=cupy.cuda.get_current_stream().ptr,
        tensor=tensor,
    )
