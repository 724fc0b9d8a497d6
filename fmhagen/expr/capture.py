"""Tracing: a plain Python function -> an expression, and the tensors that it captures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fmhagen.errors import FmhagenError, InvalidSpecError, TraceError
from fmhagen.expr import build
from fmhagen.expr.closures import captured, free_name, is_tensor, rebound
from fmhagen.expr.mods import merge_bound
from fmhagen.expr.nodes import PARAMETER_TYPES, Node, Parameter, Type
from fmhagen.expr.torch_functions import element, watch
from fmhagen.expr.traced import TensorHandle, Traced, lift
from fmhagen.expr.userline import fail, last_line_of_user

__all__ = ["Capture", "declared", "dtype_of", "is_tensor", "trace"]

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


def dtype_of(tensor: Any) -> str | None:
    """Return the parameter dtype of a tensor, or None if kernels do not read it."""
    return _DTYPES.get(str(tensor.dtype).removeprefix("torch."))


class Capture:
    """The tensors that one traced function captures; the scope of its traced values.

    Attributes:
        bound: tensor by the name of its parameter.
    """

    def __init__(
        self,
        function: Any,
        traits: Mapping[str, frozenset[str]] | None = None,
        unnamed: str = "tensor",
    ) -> None:
        """Learn the names that the function has for its tensors.

        Args:
            function: what is traced.
            traits: names of the tensors that have a property, by the property's name.
            unnamed: what tensors are called that the function makes.
        """
        self.bound: dict[str, Any] = {}
        self._traits = traits or {}
        self._unnamed = unnamed
        self._names = {id(value): name for name, value in captured(function).items()}
        self._parameters: dict[int, Parameter] = {}

    def scalar(self, value: Any) -> Node | None:
        """Return the parameter of a captured 0-d tensor."""
        if not is_tensor(value) or tuple(value.shape):
            return None
        node = build.param(self._parameter(value))
        # NOTE: a kernel gets a bool as a number, whose ~ would be another.
        return build.cast(node, Type.BOOL) if dtype_of(value) == "bool" else node

    def element(self, tensor: Any, indices: tuple[Node, ...]) -> Node | None:
        """Return an element of a captured tensor."""
        if not is_tensor(tensor):
            return None
        shape = tuple(tensor.shape)
        if len(indices) != len(shape):
            fail(f"{self._name(tensor)} has {len(shape)} dimensions but {len(indices)} indices")
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

    def include(self, bound: Mapping[str, Any]) -> None:
        """Take over the tensors of a mask or score function that is called within."""
        merge_bound(self.bound, bound)

    def _name(self, tensor: Any) -> str:
        return self._names.get(id(tensor), self._unnamed)

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
            name = free_name(_identifier(self._name(tensor)), self.bound)
            has = {trait: name in names for trait, names in self._traits.items()}
            self._parameters[id(tensor)] = Parameter(name=name, dtype=dtype, ndim=ndim, **has)
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
        if name.startswith("__"):
            raise AttributeError(name)
        return fail(
            f".{name} of a whole array inside a mask or score function",
            "compute it outside, and index the result inside",
        )

    def __len__(self) -> int:
        return len(self._array)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return fail("a whole array stands where one number is needed", "index it")


def declared(name: str, tensor: Any, **traits: bool) -> TensorHandle:
    """Return a parameter of a tensor's dtype and dimensions, to be indexed in a function.

    Raises:
        InvalidSpecError: the name has no meaning, or kernels do not read the dtype.
    """
    dtype = dtype_of(tensor)
    if dtype is None:
        raise InvalidSpecError(name, str(tensor.dtype), "must be one of " + ", ".join(_DTYPES))
    ndim = len(tuple(tensor.shape))
    return TensorHandle(Parameter(name=name, dtype=dtype, ndim=ndim, **traits))


def trace(
    function: Callable[..., Any],
    arguments: Mapping[str, Node],
    result: Type,
    traits: Mapping[str, frozenset[str]] | None = None,
) -> tuple[Node, dict[str, Any]]:
    """Trace a function.

    Args:
        function: what to call.
        arguments: the expressions that it is called with, in order.
        result: type that its value is converted to.
        traits: names of captured tensors that have a property, by the property's name.

    Returns:
        The expression, and the captured tensor by the name of its parameter.

    Raises:
        TraceError: it does what no kernel can; names the user's line.
    """
    _check_arity(function, tuple(arguments))
    # NOTE: a mask and a score function of one kernel may both make some.
    scope = Capture(function, traits, "mask_tensor" if result == Type.BOOL else "score_tensor")
    called = rebound(function, lambda array: _Array(array, scope))
    traced = [Traced(node, scope) for node in arguments.values()]
    try:
        value = watch(scope, called, *traced)
    except FmhagenError:
        raise
    except Exception as error:
        line = last_line_of_user(error.__traceback__)
        if line is None:
            raise
        raise TraceError(f"{type(error).__name__}: {error}", path=line[0], line=line[1]) from error
    if value is None:
        raise _at(function, "returns nothing", "return the value")
    try:
        node = lift(value, scope)
    except TraceError as error:  # its line is the caller's: the function has returned
        raise _at(function, error.reason, error.suggestion) from None
    for names in (traits or {}).values():
        for name in sorted(names - scope.bound.keys()):
            raise _at(function, f"captures no tensor {name}", f"it has {', '.join(scope.bound)}")
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
