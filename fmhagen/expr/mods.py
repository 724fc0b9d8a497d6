"""MaskMod and ScoreMod: traced functions as values that compare, hash and print."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self, TypeVar

from fmhagen.errors import InvalidSpecError
from fmhagen.expr import build
from fmhagen.expr.nodes import LEAVES, POSITIONS, Node, Parameter, Type, parameters_of
from fmhagen.expr.text import from_text, to_text

_LENGTHS = ("seqlen_q", "seqlen_k")
_Kind = TypeVar("_Kind", bound="Mod")


class Mod:
    """A traced function of positions.

    It is equal to another of the same expression, whatever file that came from; the tensors that
    the function captured stand beside it, and are neither compared nor printed.

    Attributes:
        node: the expression.
        bound: captured tensor by the name of its parameter; those that the expression reads.
    """

    __slots__ = ("bound", "node")

    ARGUMENTS: ClassVar[tuple[str, ...]] = POSITIONS
    RESULT: ClassVar[Type] = Type.BOOL

    node: Node
    bound: Mapping[str, Any]

    def __init__(
        self,
        function: str | Callable[..., Any] | Node,
        *,
        bound: Mapping[str, Any] | None = None,
        non_decreasing: Iterable[str] = (),
        finite: Iterable[str] = (),
    ) -> None:
        """Trace a function, or read the text form.

        Args:
            function: a plain Python function of the arguments, a text, or an expression.
            bound: tensor by the name of its parameter, for parameters that are declared.
            non_decreasing: names of captured tensors whose elements never fall along the last
                axis; whoever passes others in their place keeps that promise.
            finite: names of captured tensors whose elements are finite; the same.

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

            _check_function(function, type(self))
            leaves = {name: build.leaf(name) for name in self.ARGUMENTS}
            traits = {"non_decreasing": frozenset(non_decreasing), "finite": frozenset(finite)}
            node, found = trace(function, leaves, self.RESULT, traits)
        field = type(self).__name__
        if self.RESULT == Type.BOOL and node.type == Type.F32:
            raise InvalidSpecError(field, to_text(node), "must give a bool")
        foreign = node.leaves - {*self.ARGUMENTS, *_LENGTHS}
        if foreign:
            limit = f"must read {', '.join(self.ARGUMENTS)}, not {', '.join(sorted(foreign))}"
            raise InvalidSpecError(field, to_text(node), limit)
        object.__setattr__(self, "node", build.cast(node, self.RESULT))
        read = {parameter.name for parameter in parameters_of(node)}
        known = {**found, **(bound or {})}
        left = {name: tensor for name, tensor in known.items() if name in read}
        object.__setattr__(self, "bound", left)

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """Return a mod from whatever a field of a spec may be given as."""
        return value if value is None or isinstance(value, cls) else cls(value)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What it reads at run time, by name."""
        return parameters_of(self.node)

    def __call__(self, *arguments: Any) -> Any:
        """Apply it to traced values, as the plain function that it was made of.

        Raises:
            InvalidSpecError: a value is not traced: to compute, use `fmhagen.reference`.
        """
        return applied(self, *arguments)

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
        """Pickle and copy with the captured tensors."""
        return _remade, (type(self), str(self), dict(self.bound))


def _remade(kind: type[Mod], text: str, bound: Mapping[str, Any]) -> Mod:
    return kind(text, bound=bound)


def _check_function(value: Any, kind: type[Mod]) -> None:
    """Refuse what is no function, and a function of the other kind.

    Raises:
        InvalidSpecError: says what works.
    """
    field = "mask_mod" if kind.RESULT == Type.BOOL else "score_mod"
    limit = f"must be a function of ({', '.join(kind.ARGUMENTS)}), a text, or a {kind.__name__}"
    if isinstance(value, Mod) and not isinstance(value, kind):
        other = "score_mod" if field == "mask_mod" else "mask_mod"
        raise InvalidSpecError(field, type(value).__name__, limit, f"give this one as {other}")
    if callable(value) and not hasattr(value, "kv_indices"):
        return
    hint = None
    if hasattr(value, "kv_indices"):
        hint = "of a BlockMask give its mask_mod here, or itself to flex_attention"
    elif hasattr(value, "shape"):
        maker = "masks.dense" if field == "mask_mod" else "scores.additive"
        hint = f"make one of a tensor by fmhagen.{maker}"
    raise InvalidSpecError(field, type(value).__name__, limit, hint)


def merge_bound(bound: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add tensors by name.

    Raises:
        InvalidSpecError: two different tensors have one name.
    """
    for name, tensor in more.items():
        if bound.setdefault(name, tensor) is not tensor:
            limit = "two functions capture different tensors under this name"
            raise InvalidSpecError(name, type(tensor).__name__, limit, "rename one of them")


class MaskMod(Mod):
    """Which keys a query sees: a function of (b, h, q_idx, kv_idx) that gives a bool.

    `a & b`, `a | b` and `~a` are masks again; b may be a plain function.
    """

    __slots__ = ()

    def __and__(self, other: MaskMod | Callable[..., Any]) -> MaskMod:
        """What both show."""
        return both(self, other)

    __rand__ = __and__

    def __or__(self, other: MaskMod | Callable[..., Any]) -> MaskMod:
        """What either shows."""
        return either(self, other)

    __ror__ = __or__

    def __invert__(self) -> MaskMod:
        """What it hides."""
        return complement(self)


class ScoreMod(Mod):
    """What becomes of a scaled score: a function of (score, b, h, q_idx, kv_idx)."""

    __slots__ = ()

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("score", *POSITIONS)
    RESULT: ClassVar[Type] = Type.F32

    def then(self, other: ScoreMod | Callable[..., Any]) -> ScoreMod:
        """This function first, and the other one, also a plain one, on what it gives."""
        return chained(self, other)


# NOTE: what the methods do stands in functions, since a compiled region of PyTorch can have others
# in the place of functions, but not of methods.


def applied(mod: Mod, *arguments: Any) -> Any:
    """Return what a mod gives for traced values; see `Mod.__call__`."""
    from fmhagen.expr.substitution import substitute
    from fmhagen.expr.traced import Traced, lift, scope_of

    if len(arguments) != len(mod.ARGUMENTS):
        limit = f"takes {', '.join(mod.ARGUMENTS)}"
        raise InvalidSpecError(type(mod).__name__, len(arguments), limit)
    scope = scope_of(*arguments)
    if scope is None:
        limit = "is called by other mask and score functions alone"
        raise InvalidSpecError(type(mod).__name__, str(mod), limit)
    values = {
        build.leaf(name): build.cast(lift(value, scope), LEAVES[name])
        for name, value in zip(mod.ARGUMENTS, arguments, strict=True)
    }
    scope.include(mod.bound)
    return Traced(substitute(mod.node, values), scope)


def both(a: MaskMod, b: MaskMod | Callable[..., Any]) -> MaskMod:
    """Return `a & b`."""
    b = b if isinstance(b, MaskMod) else MaskMod(b)
    return _joined(build.and_(a.node, b.node), a, b)


def either(a: MaskMod, b: MaskMod | Callable[..., Any]) -> MaskMod:
    """Return `a | b`."""
    b = b if isinstance(b, MaskMod) else MaskMod(b)
    return _joined(build.or_(a.node, b.node), a, b)


def complement(a: MaskMod) -> MaskMod:
    """Return `~a`."""
    return _joined(build.not_(a.node), a)


def chained(first: ScoreMod, second: ScoreMod | Callable[..., Any]) -> ScoreMod:
    """Return `first.then(second)`."""
    from fmhagen.expr.substitution import substitute

    second = second if isinstance(second, ScoreMod) else ScoreMod(second)

    score = {build.leaf("score"): first.node}
    return _joined(substitute(second.node, score), first, second)


def _joined(node: Node, *mods: _Kind) -> _Kind:
    bound: dict[str, Any] = {}
    for mod in mods:
        merge_bound(bound, mod.bound)
    return type(mods[0])(node, bound=bound)


__all__ = ["LEAVES", "MaskMod", "Mod", "ScoreMod"]
