"""Nodes of PyTorch's graphs: what they call, what they depend on, whose line they are from."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fmhagen.errors import TraceError


def is_ours(node: Any, *names: str) -> bool:
    """Return whether a node calls one of our operators."""
    target = str(node.target).removesuffix(".default")
    return node.op == "call_function" and target in [f"fmhagen.{name}" for name in names]


def ancestors(node: Any) -> set[Any]:
    """Return a node and all that its value is made of."""
    found, pending = {node}, [node]
    while pending:
        more = [other for other in pending.pop().all_input_nodes if other not in found]
        found.update(more)
        pending += more
    return found


def number(value: Any) -> Any:
    """Return a value for a trace: a number that PyTorch lets change is a constant of a kernel."""
    if isinstance(value, torch.SymInt):
        return int(value)  # which adds a guard
    return float(value) if isinstance(value, torch.SymFloat) else value


def wrapped(target: Any) -> Callable[..., Any] | None:
    """Return what Dynamo's wrapper of an operation on NumPy's arrays stands for, or None."""
    kind = type(target).__name__
    if kind == "numpy_operator_wrapper":
        operation: Callable[..., Any] = target.op
        return operation
    if kind == "numpy_method_wrapper":
        return lambda array, *args, **kwargs: getattr(array, target.method)(*args, **kwargs)
    if kind == "numpy_to_tensor_wrapper":
        named: Callable[..., Any] | None = getattr(np, target.f.__name__, None)
        return named
    return None


def error_at(node: Any, error: Exception) -> Exception:
    """Return an error that names the line of the user's that a node is from."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.stack_trace or "")
    path, line = lines[-1] if lines else ("a compiled region", 0)
    reason = getattr(error, "reason", None) or f"{type(error).__name__}: {error}"
    hint = getattr(error, "suggestion", None)
    found = TraceError(reason, path=path, line=int(line), suggestion=hint)
    if torch._guards.TracingContext.try_get() is None:
        return found
    # NOTE: one of those that end a graph, where a graph may end.
    from torch._subclasses.fake_tensor import UnsupportedFakeTensorException

    ends_graph: Exception = UnsupportedFakeTensorException(str(found))
    return ends_graph
