"""Soft caps: what counts as one, and the polynomial in place of tanh."""

from __future__ import annotations

import numpy as np

import fmhagen
from fmhagen.expr.cap import Cap, cap_of
from fmhagen.expr.mods import ScoreMod
from fmhagen.formula import score_of
from fmhagen.lowering.warp_specialised_scores import COEFFICIENTS, LIMIT
from fmhagen.spec import AttentionSpec


def test_the_polynomial_is_closer_than_the_instruction() -> None:
    """PTX gives tanh.approx a relative error of 2^-11; the polynomial is evaluated in fp32."""
    x = np.linspace(-LIMIT, LIMIT, 200_001, dtype=np.float32)
    x = x[x != 0]
    c1, c3 = (np.float32(c) for c in COEFFICIENTS)
    given = x * (c3 * (x * x) + c1)
    exact = np.tanh(x.astype(np.float64))
    assert np.max(np.abs(given / exact - 1)) < 1.31e-4 < 2.0**-12.8
    assert np.max(np.abs(50 * (given - exact))) < 0.002


def test_what_is_a_soft_cap() -> None:
    def found(function: object) -> Cap | None:
        return cap_of(score_of(AttentionSpec(score_mod=ScoreMod(function))))

    assert cap_of(score_of(AttentionSpec(soft_cap=20.0))) == Cap(outer=20.0, inner=0.05)
    assert found(lambda s, b, h, q, k: -3 * fmhagen.tanh(-(s / 4))) == Cap(outer=-3, inner=-0.25)
    assert found(lambda s, b, h, q, k: fmhagen.tanh(s + 1)) is None
    assert found(lambda s, b, h, q, k: 2 * fmhagen.tanh(s) + q) is None
    assert found(lambda s, b, h, q, k: s * 2) is None
    assert cap_of(score_of(AttentionSpec(soft_cap=20.0, alibi=True))) is None
    assert cap_of(None) is None
