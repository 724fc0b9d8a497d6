"""Captured NumPy arrays: the copies that kernels on a device read."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from typing import Any

from fmhagen.runtime.tensors import Memory, beside, view

_Key = tuple[int, str, str]  # identity of the array, place and framework of Q
_COPIES: dict[_Key, Any] = {}


def captured_beside(captured: Mapping[str, Any], q: Any) -> dict[str, Any]:
    """Return what functions captured, with NumPy arrays copied to the device of Q.

    An array is copied once for each device, and its copies live as long as it does.

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
            found |= {name: _copy(name, array, tensor) for name, array in arrays.items()}
    return found


def _copy(name: str, array: Any, q: Any) -> Any:
    key = id(array), q.place, str(q.framework)
    copy = _COPIES.get(key)
    if copy is None:
        copy = _COPIES[key] = beside(f"params[{name!r}]", array, q)
        weakref.finalize(array, _COPIES.pop, key, None)
    return copy
