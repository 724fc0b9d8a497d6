"""Node: one hash-consed, typed expression of a mask or score function.

Equal expressions are the same object, so nodes compare by identity and common subexpressions are
shared from the start. A node never changes. Nodes are made by `fmhagen.expr.build`, which checks
types and folds constants; nothing else calls `Node.of`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from fmhagen.errors import InvalidSpecError


class Type(StrEnum):
    """Type of an expression's value."""

    I32 = "i32"
    F32 = "f32"
    BOOL = "bool"


LEAVES: dict[str, Type] = {
    "b": Type.I32,
    "h": Type.I32,
    "q_idx": Type.I32,
    "kv_idx": Type.I32,
    "score": Type.F32,
    "seqlen_q": Type.I32,
    "seqlen_k": Type.I32,
    "m_first": Type.I32,
    "m_last": Type.I32,
    "n_first": Type.I32,
    "n_last": Type.I32,
}
"""What an expression may read besides parameters. The last four stand in expressions about a
tile: its first and last query row, and its first and last key."""

POSITIONS = ("b", "h", "q_idx", "kv_idx")

PARAMETER_TYPES: dict[str, Type] = {
    "f32": Type.F32,
    "f16": Type.F32,
    "bf16": Type.F32,
    "i32": Type.I32,
    "i64": Type.I32,
    "u8": Type.I32,
    "bool": Type.BOOL,
}
"""The dtypes of parameters, and the type that reading one gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A value that a mask or score function reads at run time.

    Attributes:
        name: identifier under which a call passes it.
        dtype: f32, f16, bf16, i32, i64, u8 or bool; a scalar is f32 or i32. An i64 is read as
            its low 32 bits.
        ndim: dimensions of the tensor; 0 for a scalar.
        non_decreasing: along the last axis no element is less than the one before, so that bounds
            of what is visible may be read from it.
        finite: no element is infinite or NaN.

    Raises:
        InvalidSpecError: a name or a value has no meaning.
    """

    name: str
    dtype: str = "f32"
    ndim: int = 0
    non_decreasing: bool = False
    finite: bool = False

    def __post_init__(self) -> None:
        """Refuse names that C++ cannot spell and dtypes that no kernel reads."""
        if not (self.name.isidentifier() and self.name.isascii()) or self.name in LEAVES:
            limit = "must be an ASCII identifier other than " + ", ".join(LEAVES)
            raise InvalidSpecError("parameter", self.name, limit)
        known = tuple(PARAMETER_TYPES) if self.ndim else ("f32", "i32")
        if self.dtype not in known:
            kind = "tensor" if self.ndim else "scalar"
            limit = f"the dtype of a {kind} must be one of {', '.join(known)}"
            raise InvalidSpecError(self.name, self.dtype, limit)
        if self.ndim < 0 or self.ndim > 8:
            raise InvalidSpecError(self.name, self.ndim, "must have from 0 to 8 dimensions")

    @property
    def type(self) -> Type:
        """Type of one element in an expression."""
        return PARAMETER_TYPES[self.dtype]

    @property
    def declaration(self) -> str:
        """The parameter as text: `name: dtype`, or `name: dtype[ndim, flags]`."""
        flags = [flag for flag in ("non_decreasing", "finite") if getattr(self, flag)]
        inside = ", ".join([str(self.ndim), *flags] if self.ndim or flags else [])
        return f"{self.name}: {self.dtype}" + (f"[{inside}]" if inside else "")


class Node:
    """One expression.

    Attributes:
        op: what it does; see `fmhagen.expr.build`.
        args: its operands.
        value: a constant's number, a leaf's name, or the parameter of `param` and `load`.
        type: type of its value.
        leaves: names of the leaves that it depends on.
    """

    __slots__ = ("__weakref__", "args", "leaves", "op", "type", "value")

    op: str
    args: tuple[Node, ...]
    value: Any
    type: Type
    leaves: frozenset[str]

    _known: ClassVar[weakref.WeakValueDictionary[tuple[Any, ...], Node]]
    _lock: ClassVar[threading.Lock]
    _known, _lock = weakref.WeakValueDictionary(), threading.Lock()

    @classmethod
    def of(cls, op: str, type: Type, args: tuple[Node, ...] = (), value: Any = None) -> Node:
        """Return the one node of this content."""
        # NOTE: 1 == 1.0 == True and 0.0 == -0.0, but they are different constants.
        exact = value.hex() if isinstance(value, float) else value
        key = (op, type, args, exact)
        with cls._lock:
            node = cls._known.get(key)
            if node is None:
                node = object.__new__(cls)
                node.op, node.type, node.args, node.value = op, type, args, value
                own = frozenset((value,)) if op == "leaf" else frozenset[str]()
                node.leaves = own.union(*(arg.leaves for arg in args))
                cls._known[key] = node
        return node

    def __init__(self) -> None:
        """Refuse: nodes are made by `fmhagen.expr.build`."""
        raise TypeError("nodes are made by fmhagen.expr.build")

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same object; PyTorch wants to be told so of its constants."""
        return self is other

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by content, so that a copy is the same object."""
        return Node.of, (self.op, self.type, self.args, self.value)

    def __repr__(self) -> str:
        """Return the expression as text."""
        from fmhagen.expr.text import to_text

        return f"<{self.type} {to_text(self)}>"

    @property
    def is_const(self) -> bool:
        """Whether it is a number known when the kernel is written."""
        return self.op == "const"

    def reads(self, *leaves: str) -> bool:
        """Return whether it depends on any of some leaves."""
        return not self.leaves.isdisjoint(leaves)


def walk(*roots: Node) -> Iterator[Node]:
    """Yield every node below some roots once, operands before what uses them."""
    seen: set[Node] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args) if arg not in seen)


def parameters_of(*roots: Node) -> tuple[Parameter, ...]:
    """Return the parameters that some expressions read, by name.

    Raises:
        InvalidSpecError: two of them differ but have one name.
    """
    found: dict[str, Parameter] = {}
    for node in walk(*roots):
        if node.op in ("param", "load"):
            known = found.setdefault(node.value.name, node.value)
            if known != node.value:
                limit = f"{known.declaration} and {node.value.declaration} share one name"
                raise InvalidSpecError("parameter", known.name, limit, "rename one of them")
    return tuple(found[name] for name in sorted(found))
