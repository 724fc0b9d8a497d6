"""Score functions that are lines in score and key, against what they give point by point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fmhagen
from fmhagen.expr.evaluate import evaluate
from fmhagen.expr.line import line_of
from fmhagen.expr.mods import ScoreMod
from fmhagen.formula import score_of
from fmhagen.spec import AttentionSpec

LEAVES: dict[str, Any] = {
    "b": 1,
    "h": 2,
    "seqlen_q": 40,
    "seqlen_k": 50,
    "q_idx": np.arange(40)[:, None],
    "kv_idx": np.arange(50)[None, :],
}
TABLE = np.linspace(-2, 3, 40).astype(np.float32)
Function = Callable[..., Any]

LINES: dict[str, Function] = {
    "temperature": lambda s, b, h, q, k: s * TABLE[h],
    "of_rows": lambda s, b, h, q, k: (s + TABLE[q]) / (1 + TABLE[h] ** 2),
    "distance": lambda s, b, h, q, k: s - 0.25 * (q - k),
    "both_ways": lambda s, b, h, q, k: 3 * (2 * s - (4 * k - 7 * q) * 0.5) - s,
    "chosen": lambda s, b, h, q, k: fmhagen.where(q % 2 == 0, s - 0.5 * k, 2 * s + TABLE[q]),
    "float_key": lambda s, b, h, q, k: -s - (k * 0.5 + q),
}
OTHERS: dict[str, Function] = {
    "squared": lambda s, b, h, q, k: s * s,
    "steps": lambda s, b, h, q, k: s + k // 3,
    "absolute": lambda s, b, h, q, k: s - abs(q - k),
    "element": lambda s, b, h, q, k: s + TABLE[k % 40],
    "product": lambda s, b, h, q, k: s * (k * 1.0),
    "chosen_by_key": lambda s, b, h, q, k: fmhagen.where(k < 9, s, 2 * s),
    "no_score": lambda s, b, h, q, k: k * 0.5,
    "wide": lambda s, b, h, q, k: s + k * 70000,
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_is_what_the_function_gives(name: str) -> None:
    spec = AttentionSpec(score_mod=ScoreMod(LINES[name]))
    score = score_of(spec)
    assert score is not None
    line = line_of(score)
    assert line is not None
    params = dict(ScoreMod(LINES[name]).bound)
    at = {**LEAVES, "score": np.random.default_rng(0).standard_normal((40, 50))}
    first = {**LEAVES, "score": 0.0, "kv_idx": 7}
    slope = 0.0 if line.slope is None else evaluate(line.slope, LEAVES, params)
    given = evaluate(line.gain, LEAVES, params) * at["score"] + slope * (at["kv_idx"] - 7)
    np.testing.assert_allclose(
        given + evaluate(score, first, params), evaluate(score, at, params), rtol=1e-12, atol=1e-9
    )


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_line_is_none(name: str) -> None:
    assert line_of(score_of(AttentionSpec(score_mod=ScoreMod(OTHERS[name])))) is None


def test_alibi_is_a_line_and_a_soft_cap_is_none() -> None:
    line = line_of(score_of(AttentionSpec(alibi=True, causal=True)))
    assert line is not None
    assert line.gain.is_const
    assert line.gain.value == 1.0
    assert line.slope is not None
    assert line.slope.op == "load"
    assert line_of(score_of(AttentionSpec(soft_cap=20.0))) is None
    assert line_of(score_of(AttentionSpec())) is None
