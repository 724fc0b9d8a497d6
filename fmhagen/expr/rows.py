"""Row: several elements of a captured tensor at once, unrolled when the function is traced.

interval = intervals[image[kv_idx]]            a row of two
(interval[0] <= q_idx) & (q_idx < interval[1])
(chosen[b, h, q_idx // 64] == kv_idx // 64).any(dim=-1)
torch.dot(rope_q[b, h, q_idx], rope_k[b, h, kv_idx])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

from fmhagen.expr import build
from fmhagen.expr.named import NAMED
from fmhagen.expr.nodes import Node
from fmhagen.expr.traced import Traced, apply
from fmhagen.expr.userline import fail

LONGEST = 256
"""Most elements of a row: each of them is a load and more in the kernel."""

_JOINS: dict[str, Callable[[Node, Node], Node]] = {
    "any": build.or_,
    "all": build.and_,
    "sum": build.add,
    "max": build.maximum,
    "amax": build.maximum,
    "min": build.minimum,
    "amin": build.minimum,
}
_SAME = ("unsqueeze", "squeeze", "contiguous", "flatten", "clone", "detach")


class Row:
    """Elements along the last axis of a tensor, each of them a traced value."""

    __slots__ = ("_elements", "_length", "_read")
    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 1001

    def __init__(
        self,
        elements: tuple[Traced, ...] | None = None,
        *,
        length: int = 0,
        read: Callable[[Any], Traced] | None = None,
    ) -> None:
        """Take the elements, or how many a tensor has and what reads one of them."""
        self._elements = elements
        self._length = length if elements is None else len(elements)
        self._read = read

    @property
    def elements(self) -> tuple[Traced, ...]:
        """All elements.

        Raises:
            TraceError: they are too many to unroll.
        """
        if self._length > LONGEST:
            fail(f"a row of {self._length} elements; at most {LONGEST} are unrolled")
        if self._elements is None:
            assert self._read is not None
            self._elements = tuple(self._read(i) for i in range(self._length))
        return self._elements

    @property
    def shape(self) -> tuple[int]:
        """Its length, as the shape of an array."""
        return (self._length,)

    def __len__(self) -> int:
        """Return how many elements it has."""
        return self._length

    def __iter__(self) -> Iterator[Traced]:
        """Yield the elements."""
        return iter(self.elements)

    def __bool__(self) -> bool:
        """Refuse."""
        fail("a row of values that are known only in the kernel decides nothing here")

    def __getitem__(self, index: Any) -> Any:
        """Return one element, or a row of some by numbers known when the function is traced."""
        if isinstance(index, tuple) and len(index) < 2:
            index = index[0] if index else Ellipsis
        if index is Ellipsis:
            return self
        if self._read is not None and not isinstance(index, int | slice):
            return self._read(index)
        if isinstance(index, Traced):
            fail("a row that was computed is indexed by numbers", "index the tensors themselves")
        try:
            found = self.elements[index]
        except (IndexError, TypeError):
            fail(f"index {index!r} is out of range: the row has {len(self)} elements")
        return found if isinstance(found, Traced) else Row(found)

    def __getattr__(self, name: str) -> Any:
        """Return a method of arrays, such as `row.any(dim=-1)`."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _SAME:
            return lambda *args, **kwargs: self
        return lambda *args, **kwargs: call_row(name, (self, *args))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Answer a NumPy function of elements, or its reduction."""
        joins = {"logical_or": "any", "logical_and": "all", "add": "sum"}
        if method == "reduce" and ufunc.__name__ in joins:
            return call_row(joins[ufunc.__name__], inputs[:1])
        return call_row(ufunc.__name__, inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Answer a NumPy function of arrays."""
        return call_row(func.__name__, args)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a torch function."""
        return call_row(getattr(func, "__name__", str(func)).strip("_"), args)


class Part:
    """Elements of a tensor of which two or more indices are missing: `bias[b]` of four."""

    __slots__ = ("_missing", "_read")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, missing: int, read: Callable[[Any], Any]) -> None:
        """Take how many indices are missing, and what reads on with more of them."""
        self._missing = missing
        self._read = read

    def __getitem__(self, index: Any) -> Any:
        """Return what further indices find."""
        return self._read(index)

    def __getattr__(self, name: str) -> Any:
        """Refuse."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        return fail(
            f"{self._missing} indices of a tensor are missing", "one may be left open, the last"
        )

    __bool__ = __len__ = __iter__ = __array_ufunc__ = __array_function__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __and__ = __or__ = __rand__ = _refuse

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse."""
        return next(part for part in args if isinstance(part, cls))._refuse()


def call_row(name: str, args: tuple[Any, ...]) -> Any:
    """Apply a function of which an operand is a row.

    Raises:
        TraceError: it is not known.
    """
    if name in _JOINS and args and isinstance(args[0], Row):
        return apply(lambda *nodes: reduce(_JOINS[name], nodes), *args[0].elements)
    if name in ("dot", "inner", "vdot", "matmul") and len(args) == 2:
        return call_row("sum", (elementwise(build.mul, *args),))
    if name in NAMED and NAMED[name][1] == len(args):
        return elementwise(NAMED[name][0], *args)
    return fail(f"{name} of a row has no counterpart in a kernel")


def elementwise(function: Callable[..., Node], *args: Any) -> Row:
    """Apply a function to each element of some rows; numbers serve every element."""
    lengths = {len(arg) for arg in args if isinstance(arg, Row)}
    if len(lengths) > 1:
        fail(f"rows of {' and '.join(map(str, sorted(lengths)))} elements do not fit one another")
    columns = [arg.elements if isinstance(arg, Row) else (arg,) * max(lengths) for arg in args]
    return Row(tuple(apply(function, *column) for column in zip(*columns, strict=True)))


def _operator(function: Callable[..., Node], *, is_reversed: bool) -> Callable[[Any, Any], Row]:
    def of_two(self: Any, other: Any) -> Row:
        return elementwise(function, *((other, self) if is_reversed else (self, other)))

    return of_two


def _install() -> None:
    from fmhagen.expr.traced import BINARY, COMPARISONS, UNARY

    for name, function in {**BINARY, **COMPARISONS}.items():
        setattr(Row, f"__{name}__", _operator(function, is_reversed=False))
    for name, function in BINARY.items():
        setattr(Row, f"__r{name}__", _operator(function, is_reversed=True))
    for name, function in UNARY.items():
        setattr(Row, f"__{name}__", lambda self, f=function: elementwise(f, self))


_install()
