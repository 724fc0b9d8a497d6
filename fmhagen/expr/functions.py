"""Calls of functions on traced values, by the names of NumPy, torch and fmhagen."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from fmhagen.expr import build, predicates
from fmhagen.expr import composed as made
from fmhagen.expr.named import NAMED, OPTIONS, ORDER
from fmhagen.expr.nodes import Parameter, Type
from fmhagen.expr.traced import TensorHandle, Traced, apply, lift
from fmhagen.expr.userline import fail

_HARMLESS = (("inplace", False), ("out", None), ("alpha", 1))
CLIPS = ("clip", "clamp")
_LOWS, _HIGHS = ("min", "a_min", "low"), ("max", "a_max", "high")


def call_named(
    name: str, title: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Apply a function under a name that NumPy or torch gives it.

    Raises:
        TraceError: it is not known, or takes other operands.
    """
    options = {k: v for k, v in (kwargs or {}).items() if (k, v) not in _HARMLESS}
    if name in CLIPS:
        bounds = list(args[1:3]) + [None] * (3 - len(args))
        for i, keys in enumerate((_LOWS, _HIGHS)):
            for key in keys:
                bounds[i] = options.pop(key, bounds[i])
        if not options:
            return clip(args[0], *bounds)
    name = name.removeprefix("special_")  # of torch.special
    if name in _OF_LISTS:
        return _OF_LISTS[name](*args, **options)
    if name not in NAMED:
        no_counterpart(name, title)
    function, count = NAMED[name]
    names = ORDER.get(name, ("input", "other"))
    operands = [*args, *(options.pop(key) for key in names[len(args) :] if key in options)]
    choices = OPTIONS.get(name, ())
    chosen = dict(zip(choices, operands[count:], strict=False))
    del operands[count : count + len(choices)]
    chosen.update((key, options.pop(key)) for key in choices if key in options)
    if name in ("add", "sub", "subtract") and "alpha" in options and len(operands) == 2:
        operands[1] = apply(build.mul, operands[1], options.pop("alpha"))
    if options:
        fail(f"{title} takes no {', '.join(options)} here")
    if len(operands) != count:
        fail(f"{title} takes {count} operands here, not {len(operands)}")
    given = {
        key: value if value is None or isinstance(value, str) else lift(value, None)
        for key, value in chosen.items()
    }
    return apply(lambda *nodes: function(*nodes, **given), *operands)


def no_counterpart(name: str, title: str) -> NoReturn:
    """Refuse a function that no kernel has, and say which there are.

    Raises:
        TraceError: always.
    """
    near = difflib.get_close_matches(name.strip("_"), NAMED, 3)
    known = "known are " + ", ".join(sorted({*NAMED, *CLIPS, *_OF_LISTS}))
    if name.endswith("_") and name.strip("_") in NAMED:
        known = f"a value here does not change: use what {name.strip('_')} gives"
    elif near:
        known = f"near to it are {', '.join(near)}; {known}"
    fail(f"{title} has no counterpart in a kernel", known)


def _is_in(x: Any, values: Any, *, assume_unique: bool = False, invert: bool = False) -> Traced:
    """Return whether a value is one of those of a list, or of a captured tensor."""
    listed = values if isinstance(values, list | tuple | range | set) else _elements(values)
    found = apply(predicates.is_one_of, x, *listed)
    return apply(build.not_, found) if invert else found


def _elements(values: Any) -> Any:
    if not isinstance(values, Traced) and len(getattr(values, "shape", ())) == 1:
        return values[:]  # a row, of what is captured
    return (values,)


def _select(conditions: Any, choices: Any, default: Any = 0) -> Traced:
    """Return the choice of the first condition that holds (NumPy's select)."""
    pairs = [part for pair in zip(conditions, choices, strict=True) for part in pair]
    return apply(
        lambda last, *nodes: made.choice(last, *zip(nodes[::2], nodes[1::2], strict=True)),
        *(default, *pairs),
    )


def _stack(values: Any, *_: Any, dim: int = 0, axis: int = 0) -> Any:
    """Return values as a row."""
    from fmhagen.expr.rows import Row

    return Row(tuple(apply(lambda node: node, value) for value in values))


def _holds(value: Any, *_: Any, **__: Any) -> Traced:
    """Return whether any of one value holds."""
    return convert(value, Type.BOOL)


_OF_LISTS: dict[str, Callable[..., Any]] = {
    "all": _holds,
    "any": _holds,
    "isin": _is_in,
    "select": _select,
    "stack": _stack,
}


def convert(x: Any, dtype: Any) -> Traced:
    """Convert to i32 (towards zero), f32 or bool (x != 0)."""
    from fmhagen.expr.methods import type_of

    to = dtype if isinstance(dtype, Type) else type_of(dtype)
    return apply(lambda node: build.cast(node, to), x)


def clip(x: Any, low: Any = None, high: Any = None) -> Traced:
    """The number in [low, high] nearest to x; None is no limit."""
    given = [bound for bound in (low, high) if bound is not None]
    if low is None:
        return apply(lambda node, top: made.clip(node, None, top), x, *given)
    return apply(made.clip, x, *given)


def scalar(name: str, dtype: str = "f32") -> Traced:
    """Declare a number that each call passes in `params`.

    Args:
        name: under which a call passes it.
        dtype: f32 or i32.

    Raises:
        InvalidSpecError: the name or the dtype has no meaning.
    """
    return Traced(build.param(Parameter(name=name, dtype=dtype)))


def tensor(
    name: str,
    dtype: str = "f32",
    ndim: int = 1,
    *,
    non_decreasing: bool = False,
    finite: bool = False,
) -> TensorHandle:
    """Declare a tensor that each call passes in `params`.

    Args:
        name: under which a call passes it.
        dtype: f32, f16, bf16, i32, i64, u8 or bool.
        ndim: its dimensions.
        non_decreasing: along the last axis no element is less than the one before: what is
            visible can then be bounded by it without reading every key.
        finite: no element is infinite or NaN: a score function that adds it hides nothing.

    Raises:
        InvalidSpecError: the name or the dtype has no meaning.
    """
    return TensorHandle(
        Parameter(name=name, dtype=dtype, ndim=ndim, non_decreasing=non_decreasing, finite=finite)
    )


def _public(name: str, title: str, doc: str) -> Callable[..., Any]:
    function, count = NAMED[name]

    def call(*operands: Any) -> Traced:
        if len(operands) != count:
            fail(f"fmhagen.{title} takes {count} operands, not {len(operands)}")
        return apply(function, *operands)

    call.__name__ = call.__qualname__ = title
    call.__doc__ = doc
    return call


where = _public("where", "where", "a where the condition holds, else b.")
minimum = _public("minimum", "minimum", "The smaller of two numbers.")
maximum = _public("maximum", "maximum", "The larger of two numbers.")
abs = _public("abs", "abs", "|x|.")
exp = _public("exp", "exp", "e^x.")
exp2 = _public("exp2", "exp2", "2^x.")
log = _public("log", "log", "The natural logarithm.")
log2 = _public("log2", "log2", "The logarithm to base 2.")
tanh = _public("tanh", "tanh", "The hyperbolic tangent.")
sigmoid = _public("sigmoid", "sigmoid", "1 / (1 + e^-x).")
sqrt = _public("sqrt", "sqrt", "The square root.")
rsqrt = _public("rsqrt", "rsqrt", "1 / sqrt(x).")
floor = _public("floor", "floor", "The largest whole number that is not above.")
ceil = _public("ceil", "ceil", "The smallest whole number that is not below.")
