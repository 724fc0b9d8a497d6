"""The functions that mask and score functions may call, by the names of NumPy and torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from fmhagen.expr import activations, basics, build, circular, predicates
from fmhagen.expr import composed as made
from fmhagen.expr.nodes import Node, Type


def _logical(function: Callable[..., Node]) -> Callable[..., Node]:
    return lambda *nodes: function(*(build.cast(node, Type.BOOL) for node in nodes))


def _times(factor: float) -> Callable[[Node], Node]:
    return lambda x: build.mul(basics.f32(x), build.const(factor))


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
    "erfc": (made.erfc, 1),
    "ndtr": (made.normal_below, 1),
    "entr": (made.entropy, 1),
    "logit": (made.logit, 1),
    "expit": (_U["sigmoid"], 1),
    "cbrt": (made.cube_root, 1),
    **dict.fromkeys(("asin", "arcsin"), (circular.asin, 1)),
    **dict.fromkeys(("acos", "arccos"), (circular.acos, 1)),
    **dict.fromkeys(("atan", "arctan"), (circular.atan, 1)),
    **dict.fromkeys(("atan2", "arctan2"), (circular.atan2, 2)),
    **dict.fromkeys(("asinh", "arcsinh"), (circular.asinh, 1)),
    **dict.fromkeys(("acosh", "arccosh"), (circular.acosh, 1)),
    **dict.fromkeys(("atanh", "arctanh"), (circular.atanh, 1)),
    "sinc": (circular.sinc, 1),
    **dict.fromkeys(("deg2rad", "radians"), (_times(math.pi / 180), 1)),
    **dict.fromkeys(("rad2deg", "degrees"), (_times(180 / math.pi), 1)),
    "sin": (circular.sin, 1),
    "cos": (circular.cos, 1),
    "tan": (circular.tan, 1),
    "sinh": (circular.sinh, 1),
    "cosh": (circular.cosh, 1),
    "relu": (activations.relu, 1),
    "relu6": (lambda x: made.clip(x, build.const(0), build.const(6)), 1),
    "silu": (activations.silu, 1),
    **dict.fromkeys(("logsigmoid", "log_sigmoid"), (activations.log_sigmoid, 1)),
    "softsign": (activations.softsign, 1),
    "isnan": (predicates.is_nan, 1),
    "isinf": (predicates.is_infinite, 1),
    "isfinite": (predicates.is_finite, 1),
    "isposinf": (predicates.is_positive_infinite, 1),
    "isneginf": (predicates.is_negative_infinite, 1),
    "isclose": (predicates.is_close, 2),
    "signbit": (predicates.is_negative, 1),
    "nan_to_num": (made.numbers_for, 1),
    "copysign": (made.copy_sign, 2),
    "heaviside": (made.heaviside, 2),
    "xlogy": (made.xlogy, 2),
    "logaddexp2": (made.logaddexp2, 2),
    "ldexp": (made.scaled_by_power, 2),
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
    "gelu": (activations.gelu, 1),
    "softplus": (activations.softplus, 1),
    "leaky_relu": (activations.leaky_relu, 1),
    "elu": (activations.elu, 1),
    "hardtanh": (activations.hardtanh, 1),
    "selu": (activations.selu, 1),
    "celu": (activations.celu, 1),
    "mish": (activations.mish, 1),
    "hardsigmoid": (activations.hard_sigmoid, 1),
    "hardswish": (activations.hard_swish, 1),
    "tanhshrink": (activations.tanh_shrink, 1),
    "softshrink": (activations.soft_shrink, 1),
    "hardshrink": (activations.hard_shrink, 1),
    "threshold": (activations.threshold, 3),
    "addcmul": (made.add_product, 3),
    "addcdiv": (made.add_quotient, 3),
}
"""Function and number of operands by name."""

ORDER: dict[str, tuple[str, ...]] = {
    "where": ("condition", "input", "other"),
    "masked_fill": ("input", "mask", "value"),
    "lerp": ("input", "end", "weight"),
    "threshold": ("input", "threshold", "value"),
    "addcmul": ("input", "tensor1", "tensor2"),
    "addcdiv": ("input", "tensor1", "tensor2"),
    "heaviside": ("input", "values"),
}
"""Names of operands; other functions have `input` and `other`."""

OPTIONS: dict[str, tuple[str, ...]] = {
    "gelu": ("approximate",),
    "softplus": ("beta", "threshold"),
    "leaky_relu": ("negative_slope",),
    "elu": ("alpha",),
    "hardtanh": ("min_val", "max_val"),
    "div": ("rounding_mode",),
    "divide": ("rounding_mode",),
    "round": ("decimals",),
    "logit": ("eps",),
    "celu": ("alpha",),
    "softshrink": ("lambd",),
    "hardshrink": ("lambd",),
    "addcmul": ("value",),
    "addcdiv": ("value",),
    "nan_to_num": ("nan", "posinf", "neginf"),
    "isclose": ("rtol", "atol"),
}
"""Names of what may follow a function's operands, in order: numbers or texts, nothing traced."""
