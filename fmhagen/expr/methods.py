"""Methods of arrays on traced values: `score.tanh()`, `q_idx.to(torch.float32)`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from fmhagen.expr.functions import CLIPS, call_named, convert, no_counterpart
from fmhagen.expr.named import NAMED
from fmhagen.expr.nodes import Type
from fmhagen.expr.traced import DTYPES, Traced
from fmhagen.expr.userline import fail


def _dtype(type: Type) -> Any:
    """Return torch's dtype of a type where torch is there, else NumPy's.

    It is for what functions do with it: `x.to(score.dtype)`, `torch.finfo(score.dtype).min`,
    `torch.zeros((), dtype=score.dtype)`.
    """
    name = {Type.BOOL: "bool", Type.I32: "int32", Type.F32: "float32"}[type]
    torch = sys.modules.get("torch")
    if hasattr(torch, name):
        return getattr(torch, name)
    import numpy as np

    return np.dtype(name)


def type_of(dtype: Any) -> Type:
    """Return the type that a dtype of Python, NumPy or torch names.

    Raises:
        TraceError: it names none.
    """
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    name = str(name).removeprefix("torch.")
    if name not in DTYPES:
        fail(f"{dtype} is no type of a value here", "use bool, int32 or float32")
    return DTYPES[name]


_CASTS = {
    "bool": Type.BOOL,
    "int": Type.I32,
    "long": Type.I32,
    "short": Type.I32,
    "float": Type.F32,
    "half": Type.F32,
    "bfloat16": Type.F32,
    "double": Type.F32,
}
_SAME = ("clone", "contiguous", "detach", "item", "squeeze", "unsqueeze", "view_as")


def method_of(value: Traced, name: str) -> Any:
    """Return what `value.name` gives where the value were an array.

    Raises:
        TraceError: arrays have no such thing here.
    """
    if name in _CASTS:
        return lambda: convert(value, _CASTS[name])
    if name in ("to", "astype", "type"):
        return lambda *args, **kwargs: _to(value, args, kwargs)
    if name in _SAME:
        return lambda *args: value
    if name in _NEW:
        return lambda *args, **options: _new(value, name, args, options)
    if name == "where":  # of arrays: itself where the condition holds
        return lambda condition, other: call_named(name, f".{name}()", (condition, value, other))
    if name in NAMED or name in CLIPS:
        return lambda *args, **kwargs: call_named(name, f".{name}()", (value, *args), kwargs)
    if name == "shape":
        return ()
    if name in ("ndim",):
        return 0
    if name == "dtype":
        return _dtype(value.node.type)
    if name == "type_as":
        return lambda other: _to(value, (other,), {})
    if name == "device":
        return None
    if name in ("any", "all"):
        return lambda *args, **kwargs: call_named(name, f".{name}()", (value, *args), kwargs)
    return no_counterpart(name, f".{name}")


_NEW = {"new_zeros": 0, "new_ones": 1, "new_full": None, "new_tensor": None}


def _new(value: Traced, name: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Traced:
    """Return a number beside a value, as `q_idx.new_ones((), dtype=torch.bool)`."""
    given = list(args)
    shape = () if name == "new_tensor" else options.get("size", given.pop(0) if given else ())
    if not isinstance(shape, tuple | list) or tuple(shape) != ():
        fail(f".{name} of shape {shape}: a position or a score is one number")
    number = given[0] if given else options.get("fill_value", options.get("data", _NEW[name]))
    if number is None:
        fail(f".{name} takes a number")
    to = options.get("dtype")
    return convert(number, value.node.type if to is None else to)


_DEVICES = ("cpu", "cuda", "hip", "xpu", "mps", "meta")


def _to(value: Traced, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Traced:
    targets = (*args, *(kwargs[key] for key in ("dtype",) if key in kwargs))
    for target in targets:
        if target is None:  # the device of a value here
            continue
        if isinstance(target, Traced):
            return convert(value, target.node.type)
        is_device = type(target).__name__ == "device" or str(target).startswith(_DEVICES)
        if not is_device and not isinstance(target, bool):
            return convert(value, type_of(target))
    return value  # to a device
