"""Tracing of the functions that calls are given, once for each function and what it captures.

A function is known by its code and by every number, text and tensor shape that it can reach through
its closure, globals and defaults, and through the attributes of modules, classes and functions that
it names: with the same of all those it traces to the same expression.
Tensors themselves are looked up anew in each call, so none is kept alive here.
"""

from __future__ import annotations

import types
from collections import OrderedDict
from typing import Any

from fmhagen.expr.capture import is_tensor
from fmhagen.expr.closures import FOREIGN
from fmhagen.expr.mods import MaskMod, Mod, ScoreMod
from fmhagen.expr.traced import TensorHandle, Traced

MAX_FUNCTIONS = 256  # expressions kept
_DEEPEST = 16


class _Unknown(Exception):
    """A function reaches something that cannot be compared, so it is traced each time."""


class _Same:
    """An object that is equal to itself alone."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class _Reach:
    """What a function reaches: a key that tells functions apart, and the tensors in order."""

    def __init__(self, function: Any) -> None:
        self.tensors: list[Any] = []
        self._inside: set[int] = set()
        self._names: set[str] = set()  # that some code reads
        self._owners: dict[int, types.ModuleType | type] = {}  # whose attributes it may read
        self.key = self._of(function, 0), self._attributes()

    def _of(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool | int | str | bytes):
            return type(value), value
        if isinstance(value, float):
            return float, value.hex()
        if isinstance(value, Traced):
            return "expression", value.node
        if isinstance(value, TensorHandle):
            return "declared", value.parameter
        if is_tensor(value):
            for number, known in enumerate(self.tensors):
                if known is value:
                    return "tensor", number
            self.tensors.append(value)
            return "tensor", str(value.dtype), tuple(value.shape)
        if depth > _DEEPEST or id(value) in self._inside:
            raise _Unknown
        self._inside.add(id(value))
        found = self._of_object(value, depth + 1)
        self._inside.discard(id(value))
        return found

    def _of_object(self, value: Any, depth: int) -> Any:
        if isinstance(value, types.FunctionType):
            self._names.update(_words(value.__code__))
            own = self._pairs(vars(value), depth) if vars(value) else ()
            return value.__code__, self._pairs(_names_in(value), depth), own
        if isinstance(value, Mod):
            return type(value), value.node, self._pairs(dict(value.bound), depth)
        if isinstance(value, types.MethodType):
            return "method", self._of(value.__func__, depth), self._of(value.__self__, depth)
        if isinstance(value, tuple | list):
            return type(value), tuple(self._of(item, depth) for item in value)
        if isinstance(value, dict):
            return self._pairs(value, depth)
        if isinstance(value, types.ModuleType | type):
            self._own(value)
            return _Same(value)
        if isinstance(value, types.BuiltinFunctionType):
            return _Same(value)
        if isinstance(value, staticmethod | classmethod):
            return type(value), self._of(value.__func__, depth)
        if isinstance(value, property):
            return "property", self._of(value.fget, depth)
        if hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
            parts = (value.func, value.args, value.keywords)
            return "partial", tuple(self._of(part, depth) for part in parts)
        if hasattr(value, "__dict__"):
            self._own(type(value))
            call = getattr(type(value), "__call__", None)  # noqa: B004
            code = self._of(call, depth) if isinstance(call, types.FunctionType) else None
            return _Same(type(value)), code, self._pairs(vars(value), depth)
        raise _Unknown

    def _own(self, value: types.ModuleType | type) -> None:
        """Remember a module or a class and its bases: code may read their attributes."""
        for owner in value.__mro__ if isinstance(value, type) else (value,):
            home = owner.__module__ if isinstance(owner, type) else owner.__name__
            if home.partition(".")[0] not in FOREIGN:
                self._owners.setdefault(id(owner), owner)

    def _attributes(self) -> tuple[Any, ...]:
        """Return what stands in modules and classes under names that code reads."""
        found: dict[tuple[int, str], Any] = {}
        while more := [
            (number, name)
            for number, owner in self._owners.items()
            for name in sorted(self._names)
            if name in vars(owner) and (number, name) not in found
        ]:
            for number, name in more:
                found[number, name] = self._of(vars(self._owners[number])[name], 0)
        return tuple(found.items())

    def _pairs(self, values: dict[str, Any], depth: int) -> tuple[Any, ...]:
        return tuple((name, self._of(item, depth)) for name, item in values.items())


def _names_in(function: types.FunctionType) -> dict[str, Any]:
    """Return what a function's code can reach by name, that of functions inside it included."""
    names = {
        name: function.__globals__[name]
        for name in _global_names(function.__code__)
        if name in function.__globals__
    }
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            names[f"closure {name}"] = cell.cell_contents
        except ValueError:  # not assigned yet
            raise _Unknown from None
    names["defaults"] = function.__defaults__
    names["keyword defaults"] = function.__kwdefaults__
    return names


def _global_names(code: types.CodeType) -> list[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return [*code.co_names, *(name for part in inner for name in _global_names(part))]


def _words(code: types.CodeType) -> list[str]:
    """Return all names that code may read from anything, as in getattr(config, "window")."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    texts = (constant for constant in code.co_consts if isinstance(constant, str))
    return [*code.co_names, *texts, *(word for part in inner for word in _words(part))]


class TracedMods:
    """Functions that were traced."""

    def __init__(self) -> None:
        """Start with none."""
        self._known: OrderedDict[Any, tuple[Mod, dict[str, int]]] = OrderedDict()

    def __call__(
        self, kind: type[MaskMod] | type[ScoreMod], function: Any
    ) -> tuple[Mod, dict[str, Any]]:
        """Return a function's mod without captured tensors, and those by parameter name.

        Raises:
            TraceError: the function does what no kernel can; names its line.
        """
        if isinstance(function, kind):
            return _bare(function), dict(function.bound)
        if isinstance(function, str):
            known = self._known.get((kind, function))
            return (known[0] if known else self._keep((kind, function), kind(function), {})), {}
        try:
            reach = _Reach(function)
        except _Unknown:
            mod = kind(function)
            return _bare(mod), dict(mod.bound)
        key = kind, reach.key
        found = self._known.get(key)
        if found is None:
            mod = kind(function)
            places = {
                name: next((i for i, known in enumerate(reach.tensors) if known is tensor), -1)
                for name, tensor in mod.bound.items()
            }
            if -1 in places.values():  # made while it was traced
                return _bare(mod), dict(mod.bound)
            found = self._keep(key, mod, places), places
        bare, places = found
        return bare, {name: reach.tensors[place] for name, place in places.items()}

    def _keep(self, key: Any, mod: Mod, places: dict[str, int]) -> Mod:
        if len(self._known) >= MAX_FUNCTIONS:
            self._known.popitem(last=False)
        bare = _bare(mod)
        self._known[key] = bare, places
        return bare


def _bare(mod: Mod) -> Mod:
    return type(mod)(mod.node)
