"""Functions by the names of NumPy and PyTorch against what NumPy gives for numbers."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fmhagen.errors import TraceError
from fmhagen.expr.evaluate import evaluate
from fmhagen.expr.functions import call_named
from fmhagen.expr.mods import MaskMod, ScoreMod

rng = np.random.default_rng(0)
SCORE = np.concatenate([rng.normal(0, 4, 60), [0, -0.5, 0.5, 1.5, 2.5, -2.5, 100, -100, 5e4]])
PLACES = {name: rng.integers(0, 50, SCORE.size) for name in ("b", "h", "q_idx", "kv_idx")}


def check(function: Callable[..., Any], exact: Callable[..., Any]) -> None:
    """Compare a score function with what a function of arrays gives."""
    score = SCORE
    mod = ScoreMod(function)
    got = evaluate(mod.node, {"score": score, **PLACES}, mod.bound)
    with np.errstate(all="ignore"):
        want = exact(score, *PLACES.values())
    np.testing.assert_allclose(np.broadcast_to(got, score.shape), want, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize(
    "name",
    [
        "sin",
        "cos",
        "tan",
        "rint",
        "sign",
        "log10",
        "expm1",
        "log1p",
        "square",
        "reciprocal",
        "trunc",
        "floor",
        "ceil",
        "fabs",
        "negative",
        "exp",
        "exp2",
        "log",
        "log2",
        "tanh",
        "sqrt",
        "arctan",
        "arcsinh",
        "arctanh",
        "arccos",
        "cbrt",
        "sinc",
        "degrees",
        "radians",
        "signbit",
        "nan_to_num",
    ],
)
def test_functions_of_numpy(name: str) -> None:
    function = getattr(np, name)
    check(lambda s, b, h, q, k: function(s), lambda s, b, h, q, k: function(s))


BOTH: dict[str, Callable[..., Any]] = {
    "many factors": lambda s, b, h, q, k: s**9 + s**10 - s**-3,
    "a power of an int": lambda s, b, h, q, k: s * (1 - k) ** 12 * 1e-9,
    "alternating": lambda s, b, h, q, k: s * (-1) ** (q + k),
    "of below zero": lambda s, b, h, q, k: s * np.float_power(-1.5, q % 7),
    "a fraction of below zero": lambda s, b, h, q, k: np.power(s, 1.5),
    "a root": lambda s, b, h, q, k: (s * s) ** 0.25,
    "round": lambda s, b, h, q, k: np.round(s) + np.round(q * 0.5),
    "hypot": lambda s, b, h, q, k: np.hypot(s, q - k),
    "logaddexp": lambda s, b, h, q, k: np.logaddexp(s, 0.1 * q),
    "rsub": lambda s, b, h, q, k: np.subtract(3, s),
    "is": lambda s, b, h, q, k: (
        np.where(np.isfinite(np.where(q > k, s, np.inf)), s, 1.0)
        + np.isinf(np.where(q > k, -np.inf, s))
        + np.isnan(np.sqrt(s))
    ),
    "distances": lambda s, b, h, q, k: s + np.cos((q - k) * 0.1) * np.sin(0.01 * q),
    "angles": lambda s, b, h, q, k: np.arctan2(s, q - k) + np.arctan2(q - k + 0.5, 0 * s),
    "inverses": lambda s, b, h, q, k: np.arcsin(np.sin(s)) + np.arccosh(1 + s * s),
    "logarithms": lambda s, b, h, q, k: np.logaddexp2(s, q) + np.ldexp(s, q % 5),
    "chosen": lambda s, b, h, q, k: np.select([np.isin(k, [3, 7]), q > k], [s, -s], 2.0),
    "not in": lambda s, b, h, q, k: s * np.isin(k, [3, 7], invert=True) + np.any(q > k) * 0,
    "one of a table": lambda s, b, h, q, k: s * np.isin(k % 9, ODD),
    "near": lambda s, b, h, q, k: s * np.isclose(q * 0.5, k * 0.5) + np.heaviside(q - k, 0.25),
    "signs": lambda s, b, h, q, k: np.copysign(s, k - q) + np.round(s, 2),
    "divmod": lambda s, b, h, q, k: s + divmod(70, q + 1)[0] * divmod(q, 7)[1],
}


@pytest.mark.parametrize("name", BOTH)
def test_expressions(name: str) -> None:
    check(BOTH[name], BOTH[name])


ODD = np.arange(1, 9, 2, dtype=np.int32)


def _gelu_tanh(s: Any) -> Any:
    return 0.5 * s * (1 + np.tanh((2 / np.pi) ** 0.5 * (s + 0.044715 * s**3)))


NAMES: dict[str, tuple[tuple[Any, ...], dict[str, Any], Callable[..., Any]]] = {
    "clamp_min": ((-1.0,), {}, lambda s: np.maximum(s, -1)),
    "clamp_max": ((2,), {}, lambda s: np.minimum(s, 2)),
    "frac": ((), {}, lambda s: s - np.trunc(s)),
    "relu6": ((), {"inplace": False}, lambda s: np.clip(s, 0, 6)),
    "hardtanh": ((), {"min_val": -2.0, "max_val": 3.0}, lambda s: np.clip(s, -2, 3)),
    "leaky_relu": ((), {"negative_slope": 0.1}, lambda s: np.where(s < 0, 0.1 * s, s)),
    "elu": ((), {"alpha": 2.0}, lambda s: np.where(s < 0, 2 * np.expm1(np.minimum(s, 0)), s)),
    "softplus": ((), {"threshold": 20}, lambda s: np.logaddexp(s, 0)),
    "log_sigmoid": ((), {}, lambda s: -np.logaddexp(-s, 0)),
    "softsign": ((), {}, lambda s: s / (1 + abs(s))),
    "gelu": ((), {"approximate": "tanh"}, _gelu_tanh),
    "lerp": ((3.0,), {"weight": 0.25}, lambda s: s + 0.25 * (3 - s)),
    "add": ((2.0,), {"alpha": 3}, lambda s: s + 6),
    "sub": ((2.0,), {"alpha": 3}, lambda s: s - 6),
    "div": ((0.3,), {"rounding_mode": "trunc"}, lambda s: np.trunc(s / 0.3)),
    "erfc": ((), {}, lambda s: np.array([math.erfc(x) for x in s])),
    "special_ndtr": ((), {}, lambda s: np.array([math.erfc(-x / 2**0.5) / 2 for x in s])),
    "selu": ((), {}, lambda s: 1.0507009873554805 * _elu(s, 1.6732632423543772)),
    "celu": ((1.5,), {}, lambda s: _elu(s / 1.5, 1.0) * 1.5),
    "mish": ((), {}, lambda s: s * np.tanh(np.logaddexp(s, 0))),
    "hardsigmoid": ((), {}, lambda s: np.clip(s / 6 + 0.5, 0, 1)),
    "hardswish": ((), {}, lambda s: s * np.clip(s / 6 + 0.5, 0, 1)),
    "tanhshrink": ((), {}, lambda s: s - np.tanh(s)),
    "softshrink": ((0.7,), {}, lambda s: np.sign(s) * np.maximum(abs(s) - 0.7, 0)),
    "hardshrink": ((), {"lambd": 0.7}, lambda s: np.where(abs(s) <= 0.7, 0, s)),
    "threshold": ((0.5, -2.0), {}, lambda s: np.where(s > 0.5, s, -2)),
    "addcmul": ((2.0, 3.0), {"value": 0.5}, lambda s: s + 3),
    "addcdiv": ((1.0, 4.0), {}, lambda s: s + 0.25),
    "logit": ((), {"eps": 1e-3}, lambda s: _logit(np.clip(s, 1e-3, 1 - 1e-3))),
    "round": ((), {"decimals": 1}, lambda s: np.round(s, 1)),
    "entr": ((), {}, lambda s: np.where(s < 0, -np.inf, -s * np.log(np.where(s > 0, s, 1)))),
    "isneginf": ((), {}, lambda s: s == -np.inf),
}


def _elu(s: Any, alpha: float) -> Any:
    return np.where(s < 0, alpha * np.expm1(np.minimum(s, 0)), s)


def _logit(s: Any) -> Any:
    return np.log(s / (1 - s))


@pytest.mark.parametrize("name", NAMES)
def test_functions_of_pytorch(name: str) -> None:
    args, options, exact = NAMES[name]
    check(
        lambda s, b, h, q, k: call_named(name, name, (s, *args), options),
        lambda s, *places: exact(s),
    )


def test_an_option_behind_the_operands_and_by_name() -> None:
    beta = lambda s, *args, **names: call_named("softplus", "softplus", (s, *args), names)  # noqa: E731
    check(lambda s, b, h, q, k: beta(s, 2), lambda s, *_: np.logaddexp(2 * s, 0) / 2)
    check(lambda s, b, h, q, k: beta(s, beta=0.5), lambda s, *_: np.logaddexp(s / 2, 0) * 2)


def test_a_softplus_of_large_scores_is_finite_in_the_kernel() -> None:
    node = ScoreMod(lambda s, b, h, q, k: call_named("softplus", "softplus", (s,))).node
    arguments = [n.args[0] for n in _nodes(node) if n.op == "exp"]
    for argument in arguments:  # e^x of fp32 is finite below 88
        assert (evaluate(argument, {"score": SCORE}) <= 0).all()


def _nodes(node: Any) -> list[Any]:
    from fmhagen.expr.nodes import walk

    return list(walk(node))


def test_a_quotient_of_ints_rounded_towards_zero_is_an_int() -> None:
    table = np.arange(20, dtype=np.int32)

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return table[call_named("div", "torch.div", (q - k, 4), {"rounding_mode": "trunc"})] > 3

    found = MaskMod(mask)
    q, k = np.arange(40)[:, None], np.arange(40)[None, :]
    got = evaluate(found.node, {"q_idx": q, "kv_idx": k}, {"table": table})
    places = np.clip(np.trunc((q - k) / 4).astype(int), 0, 19)
    np.testing.assert_array_equal(got, table[places] > 3)


@pytest.mark.skipif("torch" in sys.modules, reason="NumPy's dtypes are given where torch is not")
def test_the_dtype_of_a_value_is_one_of_numpy() -> None:
    mod = ScoreMod(lambda s, b, h, q, k: np.where(q >= k, s, np.finfo(s.dtype).min / 2))
    assert str(mod) == f"where(kv_idx <= q_idx, score, {float(np.finfo(np.float32).min / 2)!r})"
    mod = ScoreMod(lambda s, b, h, q, k: s + (q > k).astype(s.dtype) + q.astype(k.dtype))
    assert str(mod) == "score + f32(kv_idx < q_idx) + f32(q_idx)"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda s, b, h, q, k: {1: 2.0}[h] * s, "TypeError: unhashable"),
        (lambda s, b, h, q, k: undefined * s, "NameError: name 'undefined'"),  # type: ignore[name-defined]  # noqa: F821
        (lambda s, b, h, q, k: s @ s, "TypeError: unsupported operand"),
        (lambda s, b, h, q, k: round(s, 2), "round to 2 digits; scale the value"),
        (lambda s, b, h, q, k: f"{q:3d}", "TypeError: unsupported format"),
        (
            lambda s, b, h, q, k: call_named("div", "torch.div", (q, 2), {"rounding_mode": "up"}),
            "rounding_mode='up': must be None, floor or trunc",
        ),
        (
            lambda s, b, h, q, k: call_named("gelu", "torch.gelu", (s,), {"approximate": "erf"}),
            "approximate='erf': must be none or tanh",
        ),
        (lambda s, b, h, q, k: np.i0(s), "numpy.i0 has no counterpart in a kernel; known are abs"),
        (lambda s, b, h, q, k: s.add_(1), "a value here does not change: use what add gives"),
        (lambda s, b, h, q, k: s.arctam(), "near to it are arctan"),
        (lambda s, b, h, q, k: call_named("elu", "torch.elu", (s,), {"beta": 1}), "takes no beta"),
    ],
)
def test_errors_of_python_point_at_the_line(function: Any, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        ScoreMod(function)
    assert message in str(caught.value)
    assert caught.value.path == __file__
    first = function.__code__.co_firstlineno
    assert first <= caught.value.line <= first + 1
