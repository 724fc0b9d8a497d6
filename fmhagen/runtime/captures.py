"""Captured NumPy arrays: the copies that kernels on a device read."""

from __future__ import annotations

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

    def beside(self, captured: Mapping[str, Any], q: Any) -> dict[str, Any]:
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
                found |= {name: self._copy(name, array, tensor) for name, array in arrays.items()}
        return found

    def _copy(self, name: str, array: Any, q: TensorView) -> Any:
        key = id(array), q.place, str(q.framework)
        copy = self._copies.get(key)
        if copy is None:
            copy = self._copies[key] = beside(f"params[{name!r}]", array, q)
            weakref.finalize(array, self._copies.pop, key, None)
        return copy
