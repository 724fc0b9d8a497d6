"""Memory: which tensors of a call overlap, and what a launch may touch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fmhagen.runtime.base import Memories
from fmhagen.runtime.tensors import TensorView


def share_elements(one: TensorView, other: TensorView) -> bool:
    """Return whether two views have an element in common; interleaved ones need not."""
    import numpy as np

    if not ranges_meet(one, other):
        return False

    class Shadow:  # NOTE: never read, so that it may stand for memory of a device
        def __init__(self, tensor: TensorView) -> None:
            size = tensor.element_bytes
            self.__array_interface__ = {
                "version": 3,
                "shape": tensor.shape,
                "strides": tuple(stride * size for stride in tensor.strides),
                "typestr": f"|V{size}",
                "data": (tensor.address, True),
            }

    work: Any = 100_000  # the stubs know two of its values
    try:
        return np.shares_memory(np.asarray(Shadow(one)), np.asarray(Shadow(other)), work)
    except np.exceptions.TooHardError:
        return True


def memories_of(inputs: tuple[TensorView, ...], outputs: tuple[TensorView, ...]) -> Memories:
    """Return what a launch touches: an output among inputs is one piece of memory with them.

    Outputs that share such a piece are one with it, too.
    """
    fresh: list[TensorView] = []
    updated: list[TensorView] = []
    read = list(inputs)
    for output in outputs:
        joined = [t for t in (*updated, *read) if ranges_meet(t, output)]
        read = [t for t in read if t not in joined]
        updated = [t for t in updated if t not in joined]
        if not joined:
            fresh.append(output)
            continue
        first = min(t.address for t in (*joined, output))
        end = max(t.address + t.extent_bytes for t in (*joined, output))
        size = end - first
        updated.append(replace(output, address=first, shape=(size,), strides=(1,), dtype="uint8"))
    return Memories(inputs=tuple(read), outputs=tuple(fresh), updated=tuple(updated))


def ranges_meet(one: TensorView, other: TensorView) -> bool:
    """Return whether two views reach into the same piece of memory."""
    return (
        one.address < other.address + other.extent_bytes
        and other.address < one.address + one.extent_bytes
    )
