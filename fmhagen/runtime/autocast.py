"""Autocast of PyTorch: what a norm left in fp32 goes back to 16 bits."""

from __future__ import annotations

import sys
from typing import Any


def is_wide(q: Any, k: Any, v: Any) -> bool:
    """Return whether a tensor has elements of more than 16 bits, which no kernel takes."""
    try:
        return bool(q.dtype.itemsize > 2 or k.dtype.itemsize > 2 or v.dtype.itemsize > 2)
    except AttributeError:  # neither NumPy's nor PyTorch's
        return False


def autocast(*tensors: Any) -> tuple[Any, ...]:
    """Return tensors as autocast wants them, if it is on for their device; else as they are."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        return tensors
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    return cast_for(torch.get_autocast_dtype(device), *tensors)


def cast_for(dtype: Any, *tensors: Any) -> tuple[Any, ...]:
    """Return tensors in the element type of autocast; those of 8 bits, of a cache, as they are."""
    return tuple(t.to(dtype) if t.dtype.itemsize > 1 else t for t in tensors)
