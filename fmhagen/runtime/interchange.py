"""Interchange: tensors of unknown frameworks through DLPack or the CUDA array interface."""

from __future__ import annotations

import ctypes
from typing import Any

from fmhagen.errors import TensorError
from fmhagen.runtime.tensors import (
    Framework,
    Memory,
    TensorView,
    contiguous_strides,
    dtype_name,
    element_strides,
)

# DLDeviceType of dlpack.h; pinned host memory counts as the host's.
_MEMORIES = {1: Memory.HOST, 2: Memory.CUDA, 3: Memory.HOST, 10: Memory.HIP, 11: Memory.HOST}
_MEMORIES[13] = Memory.CUDA  # managed
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_LEGACY_STREAMS = {Memory.CUDA: 1, Memory.HIP: 0}  # as `__dlpack__(stream=)` names them


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h; it stands first in a DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def view_dlpack(name: str, tensor: Any) -> TensorView:
    """Return the record of an object with `__dlpack__`.

    The capsule is not consumed: it is kept by the record and freed with it.

    Raises:
        TensorError: its device is none that a kernel runs on.
    """
    kind, index = tensor.__dlpack_device__()
    memory = _MEMORIES.get(int(kind))
    if memory is None:
        raise TensorError(name, f"DLPack device {int(kind)}", "must be host, CUDA or ROCm memory")
    stream = _LEGACY_STREAMS.get(memory)
    capsule = tensor.__dlpack__() if stream is None else tensor.__dlpack__(stream=stream)
    pointer = _capsule_pointer(capsule)
    content = ctypes.cast(pointer, ctypes.POINTER(_Tensor)).contents
    rank = content.ndim
    shape = tuple(content.shape[axis] for axis in range(rank))
    if content.strides:
        strides = tuple(content.strides[axis] for axis in range(rank))
    else:
        strides = contiguous_strides(shape)
    return TensorView(
        name=name,
        address=(content.data or 0) + content.byte_offset,
        shape=shape,
        strides=strides,
        dtype=_dtype_of(content.dtype),
        memory=memory,
        device=0 if memory == Memory.HOST else int(index),
        framework=Framework.OTHER,
        writable=True,
        stream=None,
        tensor=(tensor, capsule),
    )


def view_cuda_array(name: str, tensor: Any) -> TensorView:
    """Return the record of an object with `__cuda_array_interface__`.

    Raises:
        TensorError: its element type is not told apart by the interface.
    """
    description = tensor.__cuda_array_interface__
    typestr = description["typestr"]
    names = {"<f2": "float16", "<f4": "float32", "<f8": "float64"}
    names |= {"<i4": "int32", "<i8": "int64", "|u1": "uint8", "|b1": "bool"}
    if typestr not in names:
        limit = "is not an element type that fmhagen knows"
        raise TensorError(name, typestr, limit, "pass an object with __dlpack__")
    shape = tuple(description["shape"])
    address, read_only = description["data"]
    device = getattr(getattr(tensor, "device", None), "id", 0)
    return TensorView(
        name=name,
        address=address,
        shape=shape,
        strides=element_strides(name, description.get("strides"), shape, int(typestr[2:])),
        dtype=dtype_name(names[typestr]),
        memory=Memory.CUDA,
        device=device,
        framework=Framework.OTHER,
        writable=not read_only,
        stream=description.get("stream"),
        tensor=tensor,
    )


def _capsule_pointer(capsule: Any) -> int:
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    return int(get_pointer(capsule, b"dltensor"))


def _dtype_of(dtype: _DataType) -> str:
    text = f"{_CODES.get(dtype.code, f'code{dtype.code}_')}{dtype.bits}"
    return dtype_name(text if dtype.lanes == 1 else f"{text}x{dtype.lanes}")
