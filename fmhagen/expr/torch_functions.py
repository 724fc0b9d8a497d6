"""torch's functions on traced values. torch is imported by nobody here: it calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from fmhagen.expr import build
from fmhagen.expr.build import Number
from fmhagen.expr.functions import call_named
from fmhagen.expr.nodes import Node
from fmhagen.expr.traced import Scope, Traced, lift, scope_of
from fmhagen.expr.userline import fail

_METADATA = (
    "__get__",
    "__len__",
    "dim",
    "size",
    "stride",
    "numel",
    "is_floating_point",
    "__repr__",
    "__hash__",
    "__format__",
    "item",
    "tolist",
)
_RANDOM = ("normal", "bernoulli", "multinomial", "dropout")
_FACTORIES = ("tensor", "as_tensor", "full", "zeros", "ones", "scalar_tensor")
_LIKES = {"zeros_like": 0.0, "ones_like": 1.0, "full_like": None}
_REVERSED = ("__radd__", "__rsub__", "__rmul__", "__rtruediv__", "__rfloordiv__", "__rmod__")
_RENAMED = {
    "truediv": "div",
    "floordiv": "floor_divide",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}


def call_torch(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Answer a torch function of which an operand is traced.

    Raises:
        TraceError: it has no counterpart in a kernel.
    """
    name = getattr(func, "__name__", str(func))
    if name == "__getitem__":
        return element(scope_of(*_flat(args)), args[0], args[1])
    if name in _LIKES and args:
        fill = _LIKES[name] if _LIKES[name] is not None else args[1]
        return Traced(build.cast(lift(fill, scope_of(*args)), lift(args[0], None).type))
    if name == "where" and func is sys.modules["torch"].Tensor.where:
        args = (args[1], args[0], *args[2:])  # the method has its own tensor first
    if name in _REVERSED:
        name, args = "__" + name[3:], args[::-1]
    plain = name.strip("_")
    return call_named(_RENAMED.get(plain, plain), f"torch.{name}", args, kwargs)


def element(scope: Scope | None, tensor: Any, index: Any) -> Any:
    """Return an element of a captured tensor, or what waits for the indices that are left open.

    Raises:
        TraceError: the indices are no numbers, or there is no such element.
    """
    return _at(scope, tensor, (), index)


def _at(scope: Scope | None, tensor: Any, before: tuple[Node, ...], index: Any) -> Any:
    """Return what `index` finds behind the indices that were given before."""
    from fmhagen.expr.rows import Part, Row

    indices = index if isinstance(index, tuple) else (index,)
    while indices and (indices[-1] is Ellipsis or _is_whole(indices[-1])):
        indices = indices[:-1]
    for i in indices:
        if i is None or i is Ellipsis or isinstance(i, slice):
            fail("one element of a tensor is read at a time", "index it without slices")
    nodes = (*before, *(lift(i, scope) for i in indices))
    missing = len(tensor.shape) - len(nodes)
    if missing == 1:
        return Row(
            length=tensor.shape[-1],
            read=lambda i: _one(scope, tensor, (*nodes, lift(i, scope))),
        )
    if missing > 1:
        return Part(missing, lambda more: _at(scope, tensor, nodes, more))
    return _one(scope, tensor, nodes)


def _is_whole(index: Any) -> bool:
    if not isinstance(index, slice):
        return False
    return all(part is None for part in (index.start, index.stop, index.step))


def _one(scope: Scope | None, tensor: Any, nodes: tuple[Node, ...]) -> Traced:
    found = scope.element(tensor, nodes) if scope is not None else None
    if found is None:
        fail(f"a {type(tensor).__name__} cannot be indexed here")
    return Traced(found, scope)


def _flat(values: tuple[Any, ...]) -> tuple[Any, ...]:
    flat: list[Any] = []
    for value in values:
        flat.extend(value if isinstance(value, tuple | list) else (value,))
    return tuple(flat)


def watch(scope: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function while torch's indexing of captured tensors is traced, too.

    Where torch has not been imported no tensor of it can be met.
    """
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "overrides"):
        return function(*args)
    base: Any = torch.overrides.TorchFunctionMode

    class Mode(base):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return _answer(scope, torch, func, args, kwargs or {})

    with Mode():
        return function(*args)


def _answer(
    scope: Any, torch: Any, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    from fmhagen.expr.rows import Row, call_row

    operands = _flat((*args, *kwargs.values()))
    if any(isinstance(operand, Row) for operand in operands):
        return call_row(getattr(func, "__name__", "").strip("_"), args)
    if any(isinstance(operand, Traced) for operand in operands):
        return call_torch(func, args, kwargs)
    name = getattr(func, "__name__", "")
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    if name == "__getitem__" and isinstance(args[0], torch.Tensor):
        return element(scope, args[0], args[1])
    if name.startswith("rand") or name in _RANDOM:
        fail(
            f"torch.{name} inside a mask or score function would give one number for all places",
            "make a tensor of them outside, and index it inside",
        )
    if not tensors or name in _METADATA:
        result = func(*args, **kwargs)
        if name in _FACTORIES and isinstance(result, torch.Tensor) and result.ndim == 0:
            number: Number = result.item()
            return Traced(build.const(number), scope)
        return result
    if all(tensor.ndim == 0 for tensor in tensors):
        # NOTE: arithmetic on captured scalars stays in the kernel: the scalars may change.
        traced = [_as_traced(scope, torch, arg) for arg in args]
        return call_torch(func, tuple(traced), kwargs)
    return fail(
        f"torch.{name} of whole tensors inside a mask or score function",
        "compute it outside, and index the result inside",
    )


def _as_traced(scope: Any, torch: Any, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    node: Node = lift(value, scope)
    return Traced(node, scope)
