"""Captured NumPy arrays: the copies that kernels on a device read."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Mapping
from typing import Any

from fmhagen.runtime.tensors import Memory, TensorView, beside, view


class CapturedArrays:
    """Copies of captured arrays, one for each device, which live as long as their array."""

    def __init__(self) -> None:
        """Start with none."""
        self._copies: dict[
            tuple[int, str, str], Any
        ] = {}  # by identity, and Q's place and framework

    def all_beside(self, captured: Mapping[str, Any], q: Any) -> dict[str, Any]:
        """Return what functions captured, with NumPy arrays copied to the device of Q.

        Args:
            captured: tensors and numbers by parameter name.
            q: the query.
        """
        numpy = sys.modules.get("numpy")
        found = dict(captured)
        arrays = numpy and {x: y for x, y in found.items() if isinstance(y, numpy.ndarray)}
        if arrays:
            tensor = view("q", q)
            if tensor.memory != Memory.HOST:
                found |= {x: self.beside(f"params[{x!r}]", y, tensor) for x, y in arrays.items()}
        return found

    def beside(self, label: str, value: Any, q: TensorView) -> Any:
        """Return the copy of an array on the device of Q; what needs none is returned as it is.

        Args:
            label: of the parameter, for messages.
            value: what a function captured.
            q: the query.
        """
        key = id(value), q.place, str(q.framework)
        copy = self._copies.get(key)
        if copy is None:
            copy = beside(label, value, q)
            if copy is not value:
                self._copies[key] = copy
                weakref.finalize(value, self._copies.pop, key, None)
        return copy


@functools.cache
def captured_arrays() -> CapturedArrays:
    """Return those of this process, so that an array is copied once for all kernels."""
    return CapturedArrays()
