"""Functions of mask and score functions, by the names of NumPy, torch and fmhagen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fmhagen.expr import build
from fmhagen.expr import composed as made
from fmhagen.expr.nodes import Node, Parameter, Type
from fmhagen.expr.traced import TensorHandle, Traced, apply, lift
from fmhagen.expr.userline import fail


def _logical(function: Callable[..., Node]) -> Callable[..., Node]:
    return lambda *nodes: function(*(build.cast(node, Type.BOOL) for node in nodes))


_U = {name: partial(build.unary, name) for name in build.UNARY}

NAMED: dict[str, tuple[Callable[..., Node], int]] = {
    **{name: (function, 1) for name, function in _U.items()},
    "floor": (build.floor, 1),
    "ceil": (build.ceil, 1),
    **dict.fromkeys(("trunc", "fix"), (made.truncate, 1)),
    **dict.fromkeys(("round", "rint"), (made.nearest, 1)),
    "frac": (made.fraction, 1),
    **dict.fromkeys(("abs", "absolute", "fabs"), (build.absolute, 1)),
    **dict.fromkeys(("neg", "negative"), (build.neg, 1)),
    "positive": (lambda x: x, 1),
    **dict.fromkeys(("sign", "sgn"), (made.sign, 1)),
    "square": (made.square, 1),
    "reciprocal": (made.reciprocal, 1),
    "log1p": (made.log1p, 1),
    "log10": (made.log10, 1),
    "expm1": (made.expm1, 1),
    "erf": (made.erf, 1),
    "sin": (made.sin, 1),
    "cos": (made.cos, 1),
    "tan": (made.tan, 1),
    "sinh": (made.sinh, 1),
    "cosh": (made.cosh, 1),
    "relu": (made.relu, 1),
    "relu6": (lambda x: made.clip(x, build.const(0), build.const(6)), 1),
    "silu": (made.silu, 1),
    **dict.fromkeys(("logsigmoid", "log_sigmoid"), (made.log_sigmoid, 1)),
    "softsign": (made.softsign, 1),
    "isnan": (made.is_nan, 1),
    "isinf": (made.is_infinite, 1),
    "isfinite": (made.is_finite, 1),
    "add": (build.add, 2),
    **dict.fromkeys(("sub", "subtract"), (build.sub, 2)),
    "rsub": (lambda x, y: build.sub(y, x), 2),
    **dict.fromkeys(("mul", "multiply"), (build.mul, 2)),
    **dict.fromkeys(("div", "divide", "true_divide"), (made.divide, 2)),
    "floor_divide": (build.floor_div, 2),
    **dict.fromkeys(("remainder", "mod"), (build.floor_mod, 2)),
    "fmod": (made.truncated_mod, 2),
    **dict.fromkeys(("pow", "power", "float_power"), (build.power, 2)),
    "hypot": (made.hypot, 2),
    "logaddexp": (made.logaddexp, 2),
    **dict.fromkeys(("minimum", "fmin", "min", "clamp_max"), (build.minimum, 2)),
    **dict.fromkeys(("maximum", "fmax", "max", "clamp_min"), (build.maximum, 2)),
    **dict.fromkeys(("lt", "less"), (build.lt, 2)),
    **dict.fromkeys(("le", "less_equal"), (build.le, 2)),
    **dict.fromkeys(("gt", "greater"), (lambda a, b: build.lt(b, a), 2)),
    **dict.fromkeys(("ge", "greater_equal"), (lambda a, b: build.le(b, a), 2)),
    **dict.fromkeys(("eq", "equal"), (build.eq, 2)),
    **dict.fromkeys(("ne", "not_equal"), (build.ne, 2)),
    "bitwise_and": (build.and_, 2),
    "bitwise_or": (build.or_, 2),
    "bitwise_xor": (build.xor, 2),
    **dict.fromkeys(("bitwise_not", "invert", "bitwise_invert"), (build.not_, 1)),
    "logical_and": (_logical(build.and_), 2),
    "logical_or": (_logical(build.or_), 2),
    "logical_xor": (_logical(build.xor), 2),
    "logical_not": (_logical(build.not_), 1),
    **dict.fromkeys(("left_shift", "bitwise_left_shift"), (build.shl, 2)),
    **dict.fromkeys(("right_shift", "bitwise_right_shift"), (build.shr, 2)),
    "where": (build.where, 3),
    "masked_fill": (made.masked_fill, 3),
    "lerp": (made.lerp, 3),
    "gelu": (made.gelu, 1),
    "softplus": (made.softplus, 1),
    "leaky_relu": (made.leaky_relu, 1),
    "elu": (made.elu, 1),
    "hardtanh": (made.hardtanh, 1),
}
"""Function and number of operands by name."""

_ORDER: dict[str, tuple[str, ...]] = {
    "where": ("condition", "input", "other"),
    "masked_fill": ("input", "mask", "value"),
    "lerp": ("input", "end", "weight"),
}
"""Names of operands; other functions have `input` and `other`."""

_OPTIONS: dict[str, tuple[str, ...]] = {
    "gelu": ("approximate",),
    "softplus": ("beta", "threshold"),
    "leaky_relu": ("negative_slope",),
    "elu": ("alpha",),
    "hardtanh": ("min_val", "max_val"),
    "div": ("rounding_mode",),
    "divide": ("rounding_mode",),
}
"""Names of what may follow a function's operands, in order: numbers or texts, nothing traced."""

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
    names = _ORDER.get(name, ("input", "other"))
    operands = [*args, *(options.pop(key) for key in names[len(args) :] if key in options)]
    choices = _OPTIONS.get(name, ())
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
