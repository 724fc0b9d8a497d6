"""Tracing: a plain Python function -> an expression, and the tensors that it captures."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from fmhagen.errors import TraceError
from fmhagen.expr import build
from fmhagen.expr.nodes import PARAMETER_TYPES, Node, Parameter, Type
from fmhagen.expr.torch_functions import element, watch
from fmhagen.expr.traced import Traced, fail, lift

_DTYPES = {
    "float32": "f32",
    "float64": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "bool": "bool",
}
"""Parameter dtype by the dtype of a captured tensor; fp64 is converted when it is passed."""


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


def dtype_of(tensor: Any) -> str | None:
    """Return the parameter dtype of a tensor, or None if kernels do not read it."""
    return _DTYPES.get(str(tensor.dtype).removeprefix("torch."))


class Capture:
    """The tensors that one traced function captures; the scope of its traced values.

    Attributes:
        bound: tensor by the name of its parameter.
    """

    def __init__(self, function: Any) -> None:
        """Learn the names that the function has for its tensors."""
        self.bound: dict[str, Any] = {}
        self._names = {id(value): name for name, value in _captured(function, {}).items()}
        self._parameters: dict[int, Parameter] = {}

    def scalar(self, value: Any) -> Node | None:
        """Return the parameter of a captured 0-d tensor."""
        if not is_tensor(value) or tuple(value.shape):
            return None
        return build.param(self._parameter(value))

    def element(self, tensor: Any, indices: tuple[Node, ...]) -> Node | None:
        """Return an element of a captured tensor."""
        if not is_tensor(tensor):
            return None
        shape = tuple(tensor.shape)
        if len(indices) != len(shape):
            fail(
                f"{self._name(tensor)} has {len(shape)} dimensions but {len(indices)} indices;"
                " one element is needed"
            )
        wrapped = []
        for axis, (index, size) in enumerate(zip(indices, shape, strict=True)):
            if index.type == Type.F32:
                fail("a float is no index", "convert it: .to(torch.int32), or //")
            if index.is_const:
                if not -size <= int(index.value) < size:
                    fail(f"index {index.value} is out of range: axis {axis} has {size} elements")
                index = build.const(int(index.value) % size)
            wrapped.append(index)
        return build.load(self._parameter(tensor), *wrapped)

    def _name(self, tensor: Any) -> str:
        return self._names.get(id(tensor), "tensor")

    def _parameter(self, tensor: Any) -> Parameter:
        if id(tensor) not in self._parameters:
            dtype = dtype_of(tensor)
            if dtype is None:
                fail(
                    f"{self._name(tensor)} has dtype {tensor.dtype}",
                    "kernels read " + ", ".join(_DTYPES),
                )
            ndim = len(tuple(tensor.shape))
            if not ndim:  # a scalar is passed by value
                dtype = "f32" if PARAMETER_TYPES[dtype] == Type.F32 else "i32"
            name = _identifier(self._name(tensor))
            taken = {parameter.name for parameter in self._parameters.values()}
            number = 1
            while name in taken:
                number += 1
                name = f"{_identifier(self._name(tensor))}_{number}"
            self._parameters[id(tensor)] = Parameter(name=name, dtype=dtype, ndim=ndim)
            self.bound[name] = tensor
        return self._parameters[id(tensor)]


def _identifier(name: str) -> str:
    word = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    word = word.strip("_") or "tensor"
    return f"tensor_{word}" if word[0].isdigit() or word in _LEAF_NAMES else word


_LEAF_NAMES = ("b", "h", "q_idx", "kv_idx", "score", "seqlen_q", "seqlen_k")


class _Array:
    """A captured NumPy array (or the like) during a trace, since it has no protocol to index it."""

    def __init__(self, array: Any, scope: Capture) -> None:
        self._array = array
        self._scope = scope

    def __getitem__(self, index: Any) -> Any:
        return element(self._scope, self._array, index)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "ndim", "size"):
            return getattr(self._array, name)
        raise AttributeError(name)

    def __len__(self) -> int:
        return len(self._array)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return fail("a whole array stands where one number is needed", "index it")


def trace(
    function: Callable[..., Any], arguments: Mapping[str, Node], result: Type
) -> tuple[Node, dict[str, Any]]:
    """Trace a function.

    Args:
        function: what to call.
        arguments: the expressions that it is called with, in order.
        result: type that its value is converted to.

    Returns:
        The expression, and the captured tensor by the name of its parameter.

    Raises:
        TraceError: it does what no kernel can; names the user's line.
    """
    _check_arity(function, tuple(arguments))
    scope = Capture(function)
    called = _rebound(function, scope, {})
    traced = [Traced(node, scope) for node in arguments.values()]
    try:
        value = watch(scope, called, *traced)
        node = lift(value, scope)
    except TraceError as error:
        if error.path == __file__:
            raise _at(function, error.reason, error.suggestion) from None
        raise
    if value is None:
        raise _at(function, "returns nothing", "return the value")
    if result == Type.BOOL and node.type == Type.F32:
        raise _at(function, "a mask function gives a bool", "return a comparison")
    return build.cast(node, result), scope.bound


def _at(function: Any, message: str, hint: str | None) -> TraceError:
    code = getattr(inspect.unwrap(function), "__code__", None)
    path = code.co_filename if code else repr(function)
    return TraceError(message, path=path, line=code.co_firstlineno if code else 0, suggestion=hint)


def _check_arity(function: Any, names: tuple[str, ...]) -> None:
    try:
        inspect.signature(function).bind(*names)
    except TypeError as error:
        wanted = ", ".join(names)
        raise _at(function, f"is called with ({wanted}): {error}", None) from None
    except ValueError:
        return  # a callable without a signature


def _captured(value: Any, found: dict[str, Any], name: str = "", depth: int = 8) -> dict[str, Any]:
    """Return the tensors that a function reaches by name: closure, globals, attributes, items."""
    if depth == 0:
        return found
    if is_tensor(value):
        if all(value is not other for other in found.values()):
            number, free = 1, name
            while free in found:
                number += 1
                free = f"{name}_{number}"
            found[free] = value
    elif isinstance(value, types.FunctionType):
        for key, inner in _names_in(value).items():
            _captured(inner, found, key, depth - 1)
    elif isinstance(value, tuple | list):
        for inner in value:
            _captured(inner, found, name, depth - 1)
    elif isinstance(value, dict):
        for key, inner in value.items():
            _captured(inner, found, str(key), depth - 1)
    elif isinstance(value, types.MethodType):
        _captured(value.__func__, found, name, depth - 1)
        _captured(value.__self__, found, name, depth - 1)
    elif hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
        for inner in (value.func, value.args, value.keywords):
            _captured(inner, found, name, depth - 1)
    elif hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType):
        _captured(vars(value), found, name, depth - 1)
        call = getattr(type(value), "__call__", None)  # noqa: B004
        if isinstance(call, types.FunctionType):
            _captured(call, found, name, depth - 1)
    return found


def _names_in(function: types.FunctionType) -> dict[str, Any]:
    """Return what a function reads besides its arguments: closure, globals and defaults."""
    code = function.__code__
    names = {
        name: function.__globals__[name] for name in code.co_names if name in function.__globals__
    }
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


def _rebound(value: Any, scope: Capture, done: dict[int, Any]) -> Any:
    """Return a value in which arrays without a protocol of their own are replaced by `_Array`.

    torch's tensors stay: torch calls while it is watched. What holds no array is returned as is.
    """
    if id(value) in done:
        return done[id(value)]
    if is_tensor(value):
        is_torch = type(value).__module__.partition(".")[0] == "torch" or hasattr(value, "data_ptr")
        return value if is_torch or not value.shape else _Array(value, scope)
    done[id(value)] = value  # a function that reaches itself stays as it is
    changed: Any = value
    if isinstance(value, types.FunctionType):
        changed = _rebound_function(value, scope, done)
    elif isinstance(value, tuple | list) and type(value) in (tuple, list):
        items = [_rebound(inner, scope, done) for inner in value]
        if any(a is not b for a, b in zip(items, value, strict=True)):
            changed = type(value)(items)
    elif type(value) is dict:
        items_of = {key: _rebound(inner, scope, done) for key, inner in value.items()}
        if any(items_of[key] is not value[key] for key in value):
            changed = items_of
    done[id(value)] = changed
    return changed


def _rebound_function(
    function: types.FunctionType, scope: Capture, done: dict[int, Any]
) -> types.FunctionType:
    names = _names_in(function)
    replaced = {
        name: new for name, old in names.items() if (new := _rebound(old, scope, done)) is not old
    }
    if not replaced:
        return function
    code = function.__code__
    globals_ = {**function.__globals__}
    globals_.update({name: new for name, new in replaced.items() if name in code.co_names})
    cells = tuple(
        types.CellType(replaced[name]) if name in replaced else cell
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
    )
    defaults = function.__defaults__
    if defaults:
        last = code.co_varnames[: code.co_argcount][-len(defaults) :]
        defaults = tuple(replaced.get(name, old) for name, old in zip(last, defaults, strict=True))
    copy = types.FunctionType(code, globals_, function.__name__, defaults, cells)
    if function.__kwdefaults__:
        copy.__kwdefaults__ = {
            name: replaced.get(name, old) for name, old in function.__kwdefaults__.items()
        }
    return copy
