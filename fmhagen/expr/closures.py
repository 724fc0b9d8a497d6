"""Closures: the tensors that a function reaches, and copies of it that reach others."""

from __future__ import annotations

import copy
import functools
import sys
import types
from collections.abc import Callable, Collection
from typing import Any

FOREIGN = frozenset(("torch", "numpy", "cupy", "jax", "fmhagen")) | sys.stdlib_module_names
"""Packages whose modules and classes hold nothing of the user's."""
_DEPTH = 8  # how far from a function its tensors are looked for


def is_tensor(value: Any) -> bool:
    """Return whether a value is some framework's tensor."""
    return (
        hasattr(value, "shape")
        and hasattr(value, "dtype")
        and (hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__"))
        and type(value).__name__ != "Traced"
        and not _is_number(value)
    )


def _is_number(value: Any) -> bool:
    """Return whether a value is a NumPy scalar such as np.float32(2)."""
    return any(base.__name__ == "generic" for base in type(value).__mro__)


def captured(function: Any) -> dict[str, Any]:
    """Return the tensors that a function reaches by name: closure, globals, attributes, items."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    pending: list[tuple[str, Any, int]] = [("", function, _DEPTH)]
    while pending:
        name, value, depth = pending.pop(0)
        if id(value) in seen or depth == 0:
            continue
        seen.add(id(value))
        if is_tensor(value):
            found[free_name(name, found)] = value
        else:
            pending += [(key or name, inner, depth - 1) for key, inner in _parts(value)]
    return found


def free_name(name: str, taken: Collection[str]) -> str:
    """Return a name, with a number behind it if it is taken."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Return what a value holds that may hold a tensor, by name; "" where it has none."""
    if isinstance(value, types.FunctionType):
        return list(_names_in(value).items())
    if isinstance(value, tuple | list):
        return [("", inner) for inner in value]
    if isinstance(value, dict):
        return [(str(key), inner) for key, inner in value.items()]
    if isinstance(value, types.MethodType):
        return [("", value.__func__), ("", value.__self__)]
    if isinstance(value, functools.partial):
        return [("", value.func), ("", value.args), ("", value.keywords)]
    if hasattr(type(value), "node") or isinstance(value, type | types.ModuleType):
        return []  # traced values; what belongs to nobody's function
    call = getattr(type(value), "__call__", None)  # noqa: B004
    own = [("", call)] if isinstance(call, types.FunctionType) else []
    return own + list(getattr(value, "__dict__", {}).items())


def _names_in(function: types.FunctionType) -> dict[str, Any]:
    """Return what a function reads besides its arguments: closure, globals and defaults."""
    code = function.__code__
    globals_ = function.__globals__
    names = {name: globals_[name] for name in _global_names(code) if name in globals_}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    names.update(function.__kwdefaults__ or {})
    defaults = function.__defaults__ or ()
    last = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
    names.update(zip(last, defaults, strict=True))
    return names


def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that code and the functions inside it may read from the globals."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return (*code.co_names, *(name for part in inner for name in _global_names(part)))


def rebound(function: Any, wrap: Callable[[Any], Any]) -> Any:
    """Return a function in which arrays without a protocol of their own are wrapped.

    torch's tensors stay: torch calls while it is watched. What holds no array is returned as is.
    """
    return _rebound(function, wrap, {}, _DEPTH)


def _rebound(value: Any, wrap: Callable[[Any], Any], done: dict[int, Any], depth: int) -> Any:
    if id(value) in done or not depth:
        return done.get(id(value), value)
    depth -= 1
    if is_tensor(value):
        is_torch = type(value).__module__.partition(".")[0] == "torch" or hasattr(value, "data_ptr")
        return value if is_torch or not value.shape else wrap(value)
    done[id(value)] = value  # a function that reaches itself stays as it is
    changed: Any = value
    if isinstance(value, types.FunctionType):
        changed = _rebound_function(value, wrap, done, depth)
    elif isinstance(value, tuple | list) and (
        type(value) in (tuple, list) or hasattr(value, "_fields")
    ):
        items = [_rebound(inner, wrap, done, depth) for inner in value]
        if any(a is not b for a, b in zip(items, value, strict=True)):
            changed = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    elif type(value) is dict:
        items_of = {key: _rebound(inner, wrap, done, depth) for key, inner in value.items()}
        if any(items_of[key] is not value[key] for key in value):
            changed = items_of
    elif isinstance(value, types.MethodType):
        owner = _rebound_object(value.__self__, wrap, done, depth)
        changed = value if owner is value.__self__ else types.MethodType(value.__func__, owner)
    elif isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        new_parts = [_rebound(part, wrap, done, depth) for part in parts]
        if any(a is not b for a, b in zip(new_parts, parts, strict=True)):
            changed = functools.partial(new_parts[0], *new_parts[1], **new_parts[2])
    elif isinstance(value, types.ModuleType):
        changed = _rebound_module(value, wrap)
    elif type(value) is types.SimpleNamespace or _is_of_user(type(value)):
        changed = _rebound_object(value, wrap, done, depth)
    done[id(value)] = changed
    return changed


def _is_of_user(kind: type) -> bool:
    """Return whether objects of a class may hold arrays that a function of the user's reads."""
    home = kind.__module__.partition(".")[0]
    return home not in FOREIGN and kind is not type and not hasattr(kind, "node")


def _rebound_module(module: types.ModuleType, wrap: Callable[[Any], Any]) -> types.ModuleType:
    """Return a module, or a copy with the arrays among its names wrapped."""
    if module.__name__.partition(".")[0] in FOREIGN:
        return module
    arrays = {
        name: new
        for name, value in vars(module).items()
        if is_tensor(value) and (new := _rebound(value, wrap, {}, 1)) is not value
    }
    if not arrays:
        return module
    other = types.ModuleType(module.__name__)
    vars(other).update({**vars(module), **arrays})
    return other


def _rebound_object(
    value: Any, wrap: Callable[[Any], Any], done: dict[int, Any], depth: int
) -> Any:
    """Return an object, or a shallow copy with arrays among its attributes wrapped."""
    changes = {
        name: new
        for name, old in getattr(value, "__dict__", {}).items()
        if (new := _rebound(old, wrap, done, depth)) is not old
    }
    if not changes:
        return value
    other = copy.copy(value)
    vars(other).update(changes)
    return other


def _rebound_function(
    function: types.FunctionType, wrap: Callable[[Any], Any], done: dict[int, Any], depth: int
) -> types.FunctionType:
    names = _names_in(function)
    replaced = {
        name: new
        for name, old in names.items()
        if (new := _rebound(old, wrap, done, depth)) is not old
    }
    if not replaced:
        return function
    code = function.__code__
    globals_ = {**function.__globals__}
    known = _global_names(code)
    globals_.update({name: new for name, new in replaced.items() if name in known})
    cells = tuple(
        types.CellType(replaced[name]) if name in replaced else cell
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
    )
    defaults = function.__defaults__
    if defaults:
        last = code.co_varnames[: code.co_argcount][-len(defaults) :]
        defaults = tuple(replaced.get(name, old) for name, old in zip(last, defaults, strict=True))
    other = types.FunctionType(code, globals_, function.__name__, defaults, cells)
    if function.__kwdefaults__:
        other.__kwdefaults__ = {
            name: replaced.get(name, old) for name, old in function.__kwdefaults__.items()
        }
    return other
