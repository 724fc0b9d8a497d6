"""Mask and score functions of every kind on the emulator of each target that has them."""

from __future__ import annotations

import dataclasses

import pytest
from language_cases import MASKS, SCORES
from language_runs import is_right, is_supported, run

from fmhagen.targets import TARGETS, Target

CASES = {**MASKS, **SCORES}
SIZES = [(100, 130), (70, 41)]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("name", list(CASES))
def test_equals_float64(target: Target, name: str) -> None:
    case = CASES[name]
    spec = dataclasses.replace(case.spec, head_dim=64)
    if not is_supported(spec, target):
        pytest.skip(f"{target.name} has no kernels for this yet")
    for seqlen_q, seqlen_k in SIZES:
        found = run(spec, target, seqlen_q, seqlen_k, case.params, heads=3)
        assert is_right(found), f"{seqlen_q} x {seqlen_k}: {found}"
