"""Derivatives of score functions against finite differences in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from language_cases import SCORES, MaskCase

import fmhagen
from fmhagen.expr import build
from fmhagen.expr.derivative import gradient
from fmhagen.expr.evaluate import evaluate
from fmhagen.expr.mods import ScoreMod
from fmhagen.expr.nodes import Node
from fmhagen.formula import score_of

STEP = 1e-6
LEAVES: dict[str, Any] = {
    "b": 1,
    "h": 2,
    "seqlen_q": 40,
    "seqlen_k": 50,
    "q_idx": np.arange(40)[:, None],
    "kv_idx": np.arange(50)[None, :],
}


def expression(case: MaskCase) -> Node:
    node = score_of(case.spec)
    assert node is not None
    return node


def wide(params: dict[str, Any]) -> dict[str, Any]:
    """Return float parameters in float64, so that a small step is not rounded away."""
    return {
        name: np.asarray(value, np.float64)
        if np.asarray(value).dtype.kind == "f" or np.asarray(value).dtype == ml_dtypes.bfloat16
        else value
        for name, value in params.items()
    }


def scores() -> Any:
    # Away from 0 and whole numbers, where some of the functions have corners and steps.
    generator = np.random.default_rng(2)
    return generator.integers(-3, 3, (40, 50)) + generator.uniform(0.1, 0.9, (40, 50))


@pytest.mark.parametrize("case", SCORES.values(), ids=list(SCORES))
def test_with_respect_to_the_score(case: MaskCase) -> None:
    node, params, score = expression(case), wide(case.params), scores()

    def value(at: Any) -> Any:
        return evaluate(node, {**LEAVES, "score": at}, params)

    with np.errstate(invalid="ignore"):
        numeric = (value(score + STEP) - value(score - STEP)) / (2 * STEP)
    numeric = np.where(np.isfinite(numeric), numeric, 0.0)  # -inf - -inf: hidden either way
    got = evaluate(gradient(node).score, {**LEAVES, "score": score}, params)
    np.testing.assert_allclose(np.broadcast_to(got, numeric.shape), numeric, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [n for n, case in SCORES.items() if case.params])
def test_with_respect_to_parameters(name: str) -> None:
    node, params, score = expression(SCORES[name]), wide(SCORES[name].params), scores()
    weights = np.random.default_rng(3).standard_normal(score.shape)
    leaves = {**LEAVES, "score": score}
    found: dict[str, Any] = {}
    for read in gradient(node).reads:
        total = found.setdefault(
            read.parameter.name, np.zeros(np.shape(params[read.parameter.name]))
        )
        share = np.broadcast_to(evaluate(read.derivative, leaves, params), score.shape) * weights
        indices = tuple(
            np.broadcast_to(np.clip(evaluate(index, leaves, params), 0, size - 1), score.shape)
            for index, size in zip(read.indices, total.shape, strict=True)
        )
        np.add.at(total, indices, share) if indices else total.__iadd__(share.sum())
    assert set(found) == {k for k, v in params.items() if np.asarray(v).dtype == np.float64}
    generator = np.random.default_rng(4)
    for key, total in found.items():
        direction = generator.standard_normal(total.shape)

        def loss(sign: int, key: str = key, direction: Any = direction) -> float:
            moved = {**params, key: params[key] + sign * STEP * direction}
            return float((evaluate(node, leaves, moved) * weights).sum())

        numeric = (loss(1) - loss(-1)) / (2 * STEP)
        assert float((total * direction).sum()) == pytest.approx(numeric, rel=1e-5, abs=1e-4)


def test_a_score_that_is_ignored_has_no_derivative() -> None:
    bias = np.ones((3,), np.float32)
    mod = ScoreMod(lambda s, b, h, q, k: bias[h] * 2)
    found = gradient(mod.node)
    assert found.score is build.const(0.0)
    (read,) = found.reads
    assert read.derivative is build.const(2.0)
    assert read.indices == (build.leaf("h"),)


def test_a_plain_score_has_derivative_one() -> None:
    assert gradient(ScoreMod(lambda s, b, h, q, k: s).node).score is build.const(1.0)
    found = gradient(ScoreMod(lambda s, b, h, q, k: 20 * fmhagen.tanh(s / 20)).node).score
    at = np.linspace(-90, 90, 19)
    got = evaluate(found, {"score": at})
    np.testing.assert_allclose(got, 1 - np.tanh(at / 20) ** 2, rtol=1e-12, atol=1e-15)


def test_a_scalar_parameter_gets_the_sum_of_where_it_is_read() -> None:
    w = fmhagen.scalar("w")
    found = gradient(ScoreMod(lambda s, b, h, q, k: w * s + w * w).node)
    (read,) = found.reads
    got = evaluate(read.derivative, {"score": np.array([1.0, 3.0])}, {"w": 2.0})
    np.testing.assert_allclose(got, [5.0, 7.0])
