"""Values of arguments: one tensor as a kernel reads it, one number as a Python number."""

from __future__ import annotations

from typing import Any

from fmhagen.errors import TensorError
from fmhagen.runtime.tensors import TensorView, contiguous_strides, converted, is_tensor, view


def fit_tensor(
    name: str,
    value: Any,
    q: TensorView,
    dtype: str,
    converts: tuple[str, ...],
    *,
    dense: bool,
) -> TensorView:
    """Return a tensor as the kernel reads it: on the device of q, with the kernel's element type.

    Args:
        name: of the argument, for messages.
        value: what the call gave.
        q: the query.
        dtype: the element type that the kernel reads.
        converts: element types that are converted to it.
        dense: whether the kernel takes no strides.

    Raises:
        TensorError: it is no tensor, lies elsewhere, or has an element type of another kind.
    """
    if not is_tensor(value):
        limit = f"must be a tensor of {dtype}"
        raise TensorError(name, shown(value), limit, "pass it in the memory of q")
    tensor = view(name, value)
    if tensor.place != q.place:
        limit = f"must lie on the device of q, {q.place}"
        raise TensorError(name, tensor.place, limit, "move it")
    if tensor.dtype not in (dtype, *converts):
        types = " or ".join((dtype, *converts))
        raise TensorError(name, tensor.dtype, f"must have the element type {types}")
    # NOTE: a view into packed data may lie at any byte, and kernels load whole elements; a kernel
    # without strides reads one element behind another.
    fits = tensor.dtype == dtype and tensor.address % tensor.element_bytes == 0
    if dense and fits:
        steps = contiguous_strides(tensor.shape)
        fits = all(
            n < 2 or s == t for n, s, t in zip(tensor.shape, tensor.strides, steps, strict=True)
        )
    return tensor if fits else converted(tensor, dtype)


def read_number(name: str, value: Any, most: int) -> int:
    """Return a number that is an int, or a tensor without dimensions in host memory.

    Raises:
        TensorError: it is neither, is negative or above `most`, or lies on a device, where
            reading it would wait.
    """
    if is_tensor(value):
        tensor = view(name, value)
        if tensor.place != "host":
            limit = "lies on a device; reading it would synchronise"
            raise TensorError(name, tensor.place, limit, "pass an int")
        if tensor.shape != ():
            raise TensorError(name, tensor.shape, "must be one number", "pass an int")
        value = value.item()
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TensorError(name, shown(value), "must be a whole number", "pass an int")
    number = int(value)
    if not 0 <= number <= most:
        raise TensorError(name, number, f"must be from 0 to {most}", f"or leave {name} out")
    return number


def shown(value: Any) -> object:
    """Return a value that a message can show: a tensor's type instead of its elements."""
    if value is None or isinstance(value, int | float | str):
        return value
    return type(value).__name__
