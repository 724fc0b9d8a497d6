"""MaskMod and ScoreMod: traced functions as values that compare, hash and print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from fmhagen.errors import InvalidSpecError
from fmhagen.expr import build
from fmhagen.expr.nodes import LEAVES, POSITIONS, Node, Parameter, Type, parameters_of
from fmhagen.expr.text import from_text, to_text

_LENGTHS = ("seqlen_q", "seqlen_k")


class Mod:
    """A traced function of positions.

    It is equal to another of the same expression, whatever file that came from; the tensors that
    the function captured stand beside it, and are neither compared nor printed.

    Attributes:
        node: the expression.
        bound: captured tensor by the name of its parameter.
    """

    __slots__ = ("bound", "node")

    ARGUMENTS: ClassVar[tuple[str, ...]] = POSITIONS
    RESULT: ClassVar[Type] = Type.BOOL

    node: Node
    bound: Mapping[str, Any]

    def __init__(
        self, function: str | Callable[..., Any] | Node, *, bound: Mapping[str, Any] | None = None
    ) -> None:
        """Trace a function, or read the text form.

        Args:
            function: a plain Python function of the arguments, a text, or an expression.
            bound: tensor by the name of its parameter, for parameters that are declared.

        Raises:
            TraceError: the function does what no kernel can; names its line.
            InvalidSpecError: the text has no meaning.
        """
        found: Mapping[str, Any] = {}
        if isinstance(function, Node):
            node = function
        elif isinstance(function, str):
            node = from_text(function, (*self.ARGUMENTS, *_LENGTHS))
        else:
            from fmhagen.expr.capture import trace

            leaves = {name: build.leaf(name) for name in self.ARGUMENTS}
            node, found = trace(function, leaves, self.RESULT)
        field = type(self).__name__
        if self.RESULT == Type.BOOL and node.type == Type.F32:
            raise InvalidSpecError(field, to_text(node), "must give a bool")
        foreign = node.leaves - {*self.ARGUMENTS, *_LENGTHS}
        if foreign:
            limit = f"must read {', '.join(self.ARGUMENTS)}, not {', '.join(sorted(foreign))}"
            raise InvalidSpecError(field, to_text(node), limit)
        object.__setattr__(self, "node", build.cast(node, self.RESULT))
        object.__setattr__(self, "bound", {**found, **(bound or {})})

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """Return a mod from whatever a field of a spec may be given as."""
        return value if value is None or isinstance(value, cls) else cls(value)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What it reads at run time, by name."""
        return parameters_of(self.node)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse."""
        raise AttributeError(f"a {type(self).__name__} does not change")

    def __eq__(self, other: object) -> bool:
        """Return whether the other is the same expression."""
        return type(other) is type(self) and other.node is self.node

    def __hash__(self) -> int:
        """Hash the expression."""
        return hash((type(self).__name__, str(self)))

    def __str__(self) -> str:
        """Return the expression as text."""
        return to_text(self.node)

    def __repr__(self) -> str:
        """Return the constructor call that recreates it, captured tensors aside."""
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the captured tensors."""
        return type(self), (str(self),)


class MaskMod(Mod):
    """Which keys a query sees: a function of (b, h, q_idx, kv_idx) that gives a bool."""

    __slots__ = ()


class ScoreMod(Mod):
    """What becomes of a scaled score: a function of (score, b, h, q_idx, kv_idx)."""

    __slots__ = ()

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("score", *POSITIONS)
    RESULT: ClassVar[Type] = Type.F32


__all__ = ["LEAVES", "MaskMod", "Mod", "ScoreMod"]
