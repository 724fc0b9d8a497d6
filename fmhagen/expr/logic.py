"""Constructors of conditions, bit operations and choices."""

from __future__ import annotations

from collections.abc import Callable

from fmhagen.expr.basics import (
    FALSE,
    TRUE,
    ExpressionError,
    Number,
    cast,
    common,
    folded,
    is_number,
)
from fmhagen.expr.exact import exactly
from fmhagen.expr.nodes import Node, Type


def _bits(op: str, a: Node, b: Node) -> Node:
    a, b = common(a, b)
    if a.type == Type.F32:
        raise ExpressionError(f"{op} of floats; bit operations take ints and bools")
    functions: dict[str, Callable[..., Number]] = {
        "and": lambda x, y: x & y,
        "or": lambda x, y: x | y,
        "xor": lambda x, y: x ^ y,
    }
    return folded(op, a.type, functions[op], a, b)


def and_(a: Node, b: Node) -> Node:
    """a & b."""
    if a.type == b.type == Type.BOOL:
        for x, y in ((a, b), (b, a)):
            if x.is_const:
                return y if x.value else FALSE
        if a is b:
            return a
    return _bits("and", a, b)


def or_(a: Node, b: Node) -> Node:
    """a | b."""
    if a.type == b.type == Type.BOOL:
        for x, y in ((a, b), (b, a)):
            if x.is_const:
                return TRUE if x.value else y
        if a is b:
            return a
    return _bits("or", a, b)


def xor(a: Node, b: Node) -> Node:
    """a ^ b."""
    if a is b and a.type != Type.F32:
        return cast(FALSE, a.type)
    if a.type == b.type == Type.BOOL:
        for x, y in ((a, b), (b, a)):
            if x.is_const:
                return not_(y) if x.value else y
    return _bits("xor", a, b)


def not_(a: Node) -> Node:
    """~a: of a bool its opposite, of an int its complement."""
    if a.type == Type.F32:
        raise ExpressionError("~ of a float; bit operations take ints and bools")
    if a.op == "not":
        return a.args[0]
    if a.type == Type.BOOL:
        opposite = {"eq": "ne", "ne": "eq"}.get(a.op)
        if opposite:
            return Node.of(opposite, Type.BOOL, a.args)
        # NOTE: not for floats, where a comparison with NaN is false both ways.
        if a.op in ("lt", "le") and a.args[0].type == Type.I32:
            x, y = a.args
            return le(y, x) if a.op == "lt" else lt(y, x)
        return folded("not", Type.BOOL, lambda x: not x, a)
    return folded("not", Type.I32, lambda x: ~x, a)


def _shift(op: str, a: Node, b: Node) -> Node:
    a, b = common(a, b, least=Type.I32)
    if a.type == Type.F32:
        raise ExpressionError("a shift of floats")
    if b.is_const and not 0 <= b.value < 32:
        raise ExpressionError(f"a shift by {b.value}; it must be from 0 to 31")
    if is_number(b, 0):
        return a
    function = (lambda x, y: x << y) if op == "shl" else (lambda x, y: x >> y)
    return folded(op, Type.I32, function, a, b)


def shl(a: Node, b: Node) -> Node:
    """a << b."""
    return _shift("shl", a, b)


def shr(a: Node, b: Node) -> Node:
    """a >> b, which keeps the sign."""
    return _shift("shr", a, b)


def lt(a: Node, b: Node) -> Node:
    """a < b."""
    a, b = map(exactly, common(a, b, least=Type.I32))
    if a is b:
        return FALSE
    return folded("lt", Type.BOOL, lambda x, y: x < y, a, b)


def le(a: Node, b: Node) -> Node:
    """a <= b."""
    a, b = map(exactly, common(a, b, least=Type.I32))
    if a is b and a.type == Type.I32:
        return TRUE
    return folded("le", Type.BOOL, lambda x, y: x <= y, a, b)


def eq(a: Node, b: Node) -> Node:
    """a == b."""
    a, b = map(exactly, common(a, b))
    if a.type == Type.BOOL:
        return not_(xor(a, b))
    if a is b and a.type == Type.I32:
        return TRUE
    return folded("eq", Type.BOOL, lambda x, y: x == y, a, b)


def ne(a: Node, b: Node) -> Node:
    """a != b."""
    a, b = map(exactly, common(a, b))
    if a.type == Type.BOOL:
        return xor(a, b)
    if a is b and a.type == Type.I32:
        return FALSE
    return folded("ne", Type.BOOL, lambda x, y: x != y, a, b)


def where(condition: Node, a: Node, b: Node) -> Node:
    """a where the condition holds, else b."""
    condition = cast(condition, Type.BOOL)
    a, b = common(a, b)
    if condition.is_const:
        return a if condition.value else b
    if a is b:
        return a
    if a.type == Type.BOOL:
        if a.is_const:
            return or_(condition, b) if a.value else and_(not_(condition), b)
        if b.is_const:
            return or_(not_(condition), a) if b.value else and_(condition, a)
    return Node.of("where", a.type, (condition, a, b))
