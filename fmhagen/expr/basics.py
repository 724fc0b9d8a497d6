"""Leaves, constants, parameters, conversions, and the folding of constants."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from fmhagen.expr.exact import exactly
from fmhagen.expr.nodes import LEAVES, Node, Parameter, Type

Number = bool | int | float
_I32_MIN, _I32_MAX = -(2**31), 2**31 - 1


class ExpressionError(ValueError):
    """An operation that an expression cannot have; the tracer adds where it was asked for."""


def is_in_graph() -> bool:
    """Return whether PyTorch's compiler traces this line."""
    torch: Any = sys.modules.get("torch")
    return hasattr(torch, "compiler") and bool(torch.compiler.is_dynamo_compiling())


def leaf(name: str) -> Node:
    """Return a leaf: a position, a length, or the score; every function that is traced has some.

    Raises:
        TypeError: PyTorch's compiler traces this line, and could not say why it cannot.
    """
    if is_in_graph():
        raise TypeError(
            "a MaskMod or a ScoreMod is not made in a compiled region: make it outside; for what is"
            " in fmhagen.masks and fmhagen.scores import fmhagen.frontends.torch_ops before"
        )
    return Node.of("leaf", LEAVES[name], value=name)


def const(value: Number, type: Type | None = None) -> Node:
    """Return a constant: a bool, an i32 or an f32, by the Python type unless one is given."""
    if type is None:
        type = (
            Type.BOOL if isinstance(value, bool) else Type.I32 if isinstance(value, int) else None
        ) or Type.F32
    if type == Type.BOOL:
        return Node.of("const", type, value=bool(value))
    if type == Type.F32:
        if math.isnan(value):
            raise ExpressionError("NaN is no constant of a mask or score function")
        return Node.of("const", type, value=float(value))
    if not _I32_MIN <= value <= _I32_MAX:
        raise ExpressionError(f"{value} is beyond 32 bits")
    return Node.of("const", type, value=int(value))


TRUE, FALSE = const(True), const(False)


def param(parameter: Parameter) -> Node:
    """Return the value of a scalar parameter."""
    return Node.of("param", parameter.type, value=parameter)


def load(parameter: Parameter, *indices: Node) -> Node:
    """Return an element of a tensor parameter; indices beyond its size read the nearest one."""
    if len(indices) != parameter.ndim:
        raise ExpressionError(
            f"{parameter.name} has {parameter.ndim} dimensions but {len(indices)} indices"
        )
    for index in indices:
        if index.type == Type.F32:
            raise ExpressionError(f"{parameter.name} is indexed by a float; convert it to an int")
    return Node.of("load", parameter.type, tuple(cast(i, Type.I32) for i in indices), parameter)


def cast(x: Node, type: Type) -> Node:
    """Convert to a type: to i32 towards zero, to bool as != 0."""
    if x.type == type:
        return x
    if x.is_const:
        if type == Type.I32 and x.type == Type.F32 and not math.isfinite(x.value):
            raise ExpressionError(f"{x.value} is no integer")
        return const(int(x.value) if type == Type.I32 else x.value, type)
    if type == Type.BOOL:
        return Node.of("ne", Type.BOOL, (exactly(x), const(0, x.type)))
    return Node.of("cast", type, (exactly(x),))


def f32(x: Node) -> Node:
    """A number as a float."""
    return cast(x, Type.F32)


def common(*operands: Node, least: Type = Type.BOOL) -> tuple[Node, ...]:
    """Convert operands to the widest of their types, in the order bool, i32, f32."""
    order = (Type.BOOL, Type.I32, Type.F32)
    widest = max((*(x.type for x in operands), least), key=order.index)
    return tuple(cast(x, widest) for x in operands)


def is_number(node: Node, value: float) -> bool:
    """Return whether an expression is a certain constant."""
    return node.is_const and node.value == value


def folded(op: str, type: Type, function: Callable[..., Number], *args: Node) -> Node:
    """Return a constant if all operands are, else a node."""
    if all(arg.is_const for arg in args):
        try:
            return const(function(*(arg.value for arg in args)), type)
        except (ValueError, ZeroDivisionError, OverflowError) as error:
            if isinstance(error, ExpressionError):
                raise
            numbers = ", ".join(str(arg.value) for arg in args)
            raise ExpressionError(f"{op}({numbers}): {error}") from error
    return Node.of(op, type, args)
