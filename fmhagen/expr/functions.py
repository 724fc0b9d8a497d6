"""Functions of mask and score functions, by the names of NumPy, torch and fmhagen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fmhagen.expr import build
from fmhagen.expr.nodes import Node, Parameter, Type
from fmhagen.expr.traced import TensorHandle, Traced, apply, fail


def _clip(x: Node, low: Node | None = None, high: Node | None = None) -> Node:
    if low is not None:
        x = build.maximum(x, low)
    return x if high is None else build.minimum(x, high)


def _square(x: Node) -> Node:
    return build.mul(x, x)


def _reciprocal(x: Node) -> Node:
    return build.div(build.const(1.0), x)


def _truncate(x: Node) -> Node:
    if x.type != Type.F32:
        return x
    zero = build.const(0.0)
    return build.where(build.lt(x, zero), build.ceil(x), build.floor(x))


def _masked_fill(x: Node, mask: Node, value: Node) -> Node:
    return build.where(mask, value, x)


def _log1p(x: Node) -> Node:
    return build.unary("log", build.add(build.const(1.0), x))


def _expm1(x: Node) -> Node:
    return build.sub(build.unary("exp", x), build.const(1.0))


def _silu(x: Node) -> Node:
    return build.mul(x, build.unary("sigmoid", x))


def _softplus(x: Node) -> Node:
    return build.unary("log", build.add(build.const(1.0), build.unary("exp", x)))


def _erf(x: Node) -> Node:
    """erf to 1.5e-7 (Abramowitz and Stegun, 'Handbook of Mathematical Functions', 7.1.26)."""
    size, one = build.absolute(build.cast(x, Type.F32)), build.const(1.0)
    t = build.div(one, build.add(one, build.mul(build.const(0.3275911), size)))
    series: Node = build.const(0.0)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = build.mul(t, build.add(series, build.const(factor)))
    tail = build.mul(series, build.unary("exp", build.neg(_square(size))))
    half = build.sub(one, tail)
    return build.where(build.lt(x, build.const(0.0)), build.neg(half), half)


def _gelu(x: Node) -> Node:
    scaled = build.mul(x, build.const(0.5**0.5))
    return build.mul(build.mul(build.const(0.5), x), build.add(build.const(1.0), _erf(scaled)))


def _relu(x: Node) -> Node:
    return build.maximum(x, build.const(0))


def _sign(x: Node) -> Node:
    zero, one = build.const(0), build.const(1)
    below = build.where(build.lt(x, zero), build.const(-1), zero)
    return build.cast(build.where(build.lt(zero, x), one, below), x.type)


def _logical(function: Callable[..., Node]) -> Callable[..., Node]:
    return lambda *nodes: function(*(build.cast(node, Type.BOOL) for node in nodes))


def _truncated_mod(x: Node, y: Node) -> Node:
    """x - y * trunc(x / y): the sign of x, as in C."""
    size = build.floor_mod(build.absolute(x), build.absolute(y))
    return build.where(build.lt(x, build.const(0)), build.neg(size), size)


_U = {name: partial(build.unary, name) for name in build.UNARY}

NAMED: dict[str, tuple[Callable[..., Node], int]] = {
    **{name: (function, 1) for name, function in _U.items()},
    **dict.fromkeys(("floor",), (build.floor, 1)),
    **dict.fromkeys(("ceil",), (build.ceil, 1)),
    **dict.fromkeys(("trunc", "fix"), (_truncate, 1)),
    **dict.fromkeys(("abs", "absolute", "fabs"), (build.absolute, 1)),
    **dict.fromkeys(("neg", "negative"), (build.neg, 1)),
    **dict.fromkeys(("positive",), (lambda x: x, 1)),
    **dict.fromkeys(("sign",), (_sign, 1)),
    **dict.fromkeys(("square",), (_square, 1)),
    **dict.fromkeys(("reciprocal",), (_reciprocal, 1)),
    **dict.fromkeys(("relu",), (_relu, 1)),
    **dict.fromkeys(("silu",), (_silu, 1)),
    **dict.fromkeys(("softplus",), (_softplus, 1)),
    **dict.fromkeys(("log1p",), (_log1p, 1)),
    **dict.fromkeys(("expm1",), (_expm1, 1)),
    **dict.fromkeys(("erf",), (_erf, 1)),
    **dict.fromkeys(("gelu",), (_gelu, 1)),
    **dict.fromkeys(("add",), (build.add, 2)),
    **dict.fromkeys(("sub", "subtract"), (build.sub, 2)),
    **dict.fromkeys(("mul", "multiply"), (build.mul, 2)),
    **dict.fromkeys(("div", "divide", "true_divide"), (build.div, 2)),
    **dict.fromkeys(("floor_divide",), (build.floor_div, 2)),
    **dict.fromkeys(("remainder", "mod"), (build.floor_mod, 2)),
    **dict.fromkeys(("fmod",), (_truncated_mod, 2)),
    **dict.fromkeys(("pow", "power", "float_power"), (build.power, 2)),
    **dict.fromkeys(("minimum", "fmin", "min"), (build.minimum, 2)),
    **dict.fromkeys(("maximum", "fmax", "max"), (build.maximum, 2)),
    **dict.fromkeys(("lt", "less"), (build.lt, 2)),
    **dict.fromkeys(("le", "less_equal"), (build.le, 2)),
    **dict.fromkeys(("gt", "greater"), (lambda a, b: build.lt(b, a), 2)),
    **dict.fromkeys(("ge", "greater_equal"), (lambda a, b: build.le(b, a), 2)),
    **dict.fromkeys(("eq", "equal"), (build.eq, 2)),
    **dict.fromkeys(("ne", "not_equal"), (build.ne, 2)),
    **dict.fromkeys(("bitwise_and",), (build.and_, 2)),
    **dict.fromkeys(("bitwise_or",), (build.or_, 2)),
    **dict.fromkeys(("bitwise_xor",), (build.xor, 2)),
    **dict.fromkeys(("bitwise_not", "invert", "bitwise_invert"), (build.not_, 1)),
    **dict.fromkeys(("logical_and",), (_logical(build.and_), 2)),
    **dict.fromkeys(("logical_or",), (_logical(build.or_), 2)),
    **dict.fromkeys(("logical_xor",), (_logical(build.xor), 2)),
    **dict.fromkeys(("logical_not",), (_logical(build.not_), 1)),
    **dict.fromkeys(("left_shift", "bitwise_left_shift"), (build.shl, 2)),
    **dict.fromkeys(("right_shift", "bitwise_right_shift"), (build.shr, 2)),
    **dict.fromkeys(("where",), (build.where, 3)),
    **dict.fromkeys(("masked_fill",), (_masked_fill, 3)),
}
"""Function and number of operands by name."""

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
    if name not in NAMED:
        fail(f"{title} has no counterpart in a kernel", "known are " + ", ".join(sorted(NAMED)))
    function, count = NAMED[name]
    names = ("condition", "input", "other") if count == 3 else ("input", "other")
    if function is _masked_fill:
        names = ("input", "mask", "value")
    operands = [*args, *(options.pop(key) for key in names[len(args) :] if key in options)]
    rounding = options.pop("rounding_mode", None) if function is build.div else None
    if options:
        fail(f"{title} takes no {', '.join(options)} here")
    if len(operands) != count:
        fail(f"{title} takes {count} operands here, not {len(operands)}")
    if rounding is not None:
        function = {"floor": build.floor_div, "trunc": lambda a, b: _truncate(build.div(a, b))}[
            rounding
        ]
    return apply(function, *operands)


def convert(x: Any, dtype: Any) -> Traced:
    """Convert to i32 (towards zero), f32 or bool (x != 0)."""
    from fmhagen.expr.methods import type_of

    to = dtype if isinstance(dtype, Type) else type_of(dtype)
    return apply(lambda node: build.cast(node, to), x)


def clip(x: Any, low: Any = None, high: Any = None) -> Traced:
    """The number in [low, high] nearest to x; None is no limit."""
    given = [bound for bound in (low, high) if bound is not None]
    if low is None:
        return apply(lambda node, top: _clip(node, None, top), x, *given)
    return apply(_clip, x, *given)


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
