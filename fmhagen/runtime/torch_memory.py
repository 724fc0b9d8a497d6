"""Memory from PyTorch, by the quickest of its functions that does what is expected of it.

An allocation through PyTorch's dispatcher costs the host more than a launch. What its compiler
emits allocates past the dispatcher; that function is not public, so it is tried on one element
first, and what is public stands ready.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Allocate = Callable[[], Any]


def torch_allocator(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: Any
) -> Allocate:
    """Return a function that makes such a tensor, of strides in elements, on a device."""
    import torch

    public = _public(torch, shape, strides, dtype, device)
    if device.type != "cuda":
        return public
    try:
        empty = torch._C._dynamo.guards._empty_strided_cuda
        current, devices = torch._C._cuda_getDevice, torch.cuda.device_count()
        made = empty((1,), (1,), dtype)
    except (AttributeError, RuntimeError, TypeError):
        return public
    if (made.shape, made.stride(), made.dtype) != ((1,), (1,), dtype) or made.device.type != "cuda":
        return public
    if devices == 1:
        return functools.partial(empty, shape, strides, dtype)
    # NOTE: it knows no device but the current one, which the caller may change from call to call.
    index = device.index
    return lambda: empty(shape, strides, dtype) if current() == index else public()


def _public(
    torch: Any, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: Any
) -> Allocate:
    # NOTE: one element that is repeated has the shape and costs nothing to keep; `empty_like` of
    # it has fewer arguments to read than any other way to allocate.
    one = torch.empty(1, dtype=dtype, device=device).expand(shape)
    if torch.empty_like(one, device="meta").stride() == strides:
        return functools.partial(torch.empty_like, one)
    empty_strided = torch.empty_strided
    return lambda: empty_strided(shape, strides, dtype=dtype, device=device)
