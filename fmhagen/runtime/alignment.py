"""Alignment: which inputs the kernels can read in place, and copies of the others."""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any

from fmhagen.errors import TensorError
from fmhagen.runtime.tensors import (
    ALIGNMENT_BYTES,
    Framework,
    MisalignedTensorWarning,
    TensorView,
    import_cupy,
    view,
)


def misalignment(tensor: TensorView) -> str | None:
    """Return why the kernels cannot read a tensor in place, or None if they can."""
    if 0 in tensor.shape:
        return None
    if tensor.address % ALIGNMENT_BYTES:
        return f"its address {tensor.address:#x} is not a multiple of {ALIGNMENT_BYTES} bytes"
    element = tensor.element_bytes
    for axis, (size, stride) in enumerate(zip(tensor.shape[:-1], tensor.strides, strict=False)):
        if size > 1 and stride * element % ALIGNMENT_BYTES:
            return (
                f"its stride of {stride} elements along axis {axis} is not a multiple of"
                f" {ALIGNMENT_BYTES} bytes"
            )
    return None


def aligned_copy(tensor: TensorView, reason: str) -> TensorView:
    """Return an aligned dense copy of an input in the same framework, with one warning.

    Raises:
        TensorError: the framework is unknown, so nobody can copy.
    """
    source = tensor.tensor
    if tensor.framework == Framework.TORCH:
        import torch

        copy = source.detach().clone(memory_format=torch.contiguous_format)
    elif tensor.framework == Framework.NUMPY:
        copy = aligned_numpy(tensor.shape, source.dtype)
        copy[...] = source
    elif tensor.framework == Framework.CUPY:
        copy = import_cupy().array(source, order="C", copy=True)
    else:
        raise TensorError(tensor.name, tensor.strides, reason, "pass a dense aligned tensor")
    message = f"{tensor.name} is copied for this call: {reason}"
    warnings.warn(message, MisalignedTensorWarning, stacklevel=_caller_depth())
    return view(tensor.name, copy)


def aligned_numpy(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an uninitialised NumPy array whose address is a multiple of 64 bytes."""
    import numpy as np

    alignment = 64
    count = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(count + alignment, np.uint8)
    skip = -raw.__array_interface__["data"][0] % alignment
    return raw[skip : skip + count].view(dtype).reshape(shape)


def _caller_depth() -> int:
    """Return the stack level of the first frame outside fmhagen, for a warning's place."""
    depth = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fmhagen"):
        frame = frame.f_back
        depth += 1
    return depth
