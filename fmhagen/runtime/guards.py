"""Guards: PyTorch's own check that tensors have a known layout, in one call where it has one.

Reading shape, strides, element type and device of three tensors costs as much as launching a
kernel. The compiler of PyTorch compares all of that, and whether a gradient is wanted, in C++; the
function is not public, so it is used only where it does what is expected of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Guard = Callable[..., bool]


def guard_of(tensors: Sequence[Any]) -> Guard | None:
    """Return a function that says whether tensors have the layout of these, or None without one.

    It keeps no tensor alive, and is false for anything that is no tensor of PyTorch.
    """
    import torch

    if any(tensor.requires_grad for tensor in tensors):
        return None
    try:
        made = torch._C._dynamo.guards.TensorGuards(
            *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
        )
        check: Guard = made.check
        others = [tensor.unsqueeze(0) for tensor in tensors]
        as_expected = check(*tensors) is True and all(
            check(*tensors[:i], others[i], *tensors[i + 1 :]) is False for i in range(len(tensors))
        )
    except (AttributeError, RuntimeError, TypeError):
        return None
    return check if as_expected else None
