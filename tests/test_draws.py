"""Random calls: they fit the reference, for every kind of spec."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fmhagen.checking.draws import draw
from fmhagen.checking.verification import Case
from fmhagen.oracle.attention import reference
from fmhagen.spec import AttentionSpec

CASE = Case(batch=3, heads=4, heads_kv=2, seqlen_q=9, seqlen_k=13, seed=4)
SPECS: dict[str, dict[str, Any]] = {
    "plain": {},
    "packed": {"varlen": True, "causal": True},
    "sink": {"sink": True, "layout": "bhsd"},
    "alibi": {"alibi": True, "soft_cap": 3.0},
    "mods": {
        "mask_mod": "limit: i32[1]; start: i32[1, non_decreasing]; flag: bool[2];"
        "((kv_idx < limit[b]) | flag[h, kv_idx]) & (start[q_idx] <= kv_idx + 9)",
        "score_mod": "bias: bf16[4]; w: f32; scale: f16[1]; t: u8[1];"
        "score * w + bias[b, h, q_idx, kv_idx] * scale[2] + f32(t[kv_idx // 2])",
    },
    "all": {
        "varlen": True,
        "sink": True,
        "alibi": True,
        "mask_mod": "d: i64[2]; d[b, q_idx] != d[b, kv_idx]",
    },
}


@pytest.mark.parametrize("name", list(SPECS))
def test_draws_fit_the_reference(name: str) -> None:
    spec = AttentionSpec(head_dim=16, **SPECS[name])
    drawn = draw(spec, CASE)
    o, lse = reference(spec, drawn.q, drawn.k, drawn.v, **drawn.extras)
    assert o.shape == drawn.q.shape
    assert np.isfinite(o).all()
    assert not np.isnan(lse).any()
    assert np.isfinite(lse).any()
    again = draw(spec, CASE)
    np.testing.assert_array_equal(drawn.q, again.q)
    other = draw(spec, dataclasses.replace(CASE, seed=5))
    assert drawn.q.shape != other.q.shape or (drawn.q != other.q).any()


def test_parameters_are_as_large_as_their_indices() -> None:
    params = draw(AttentionSpec(head_dim=16, **SPECS["mods"]), CASE).extras["params"]
    assert params["limit"].shape == (3,)
    assert params["start"].shape == (9,)
    assert (np.diff(params["start"]) >= 0).all()
    assert params["flag"].shape == (4, 13)
    assert params["flag"].dtype == np.bool_
    assert params["bias"].shape == (3, 4, 9, 13)
    assert params["bias"].dtype.name == "bfloat16"
    assert params["scale"].shape == (3,)
    assert isinstance(params["w"], float)


def test_captured_tensors_are_not_drawn() -> None:
    table = np.zeros(13, np.int32)
    spec = AttentionSpec(head_dim=16, mask_mod=lambda b, h, q, k: table[k] < 3)
    assert "params" not in draw(spec, CASE).extras


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_packed_sequences_have_the_layout_without_its_batch(layout: str) -> None:
    spec = AttentionSpec(head_dim=64, varlen=True, causal=True, layout=layout)
    drawn = draw(spec, Case())
    o, lse = reference(spec, drawn.q, drawn.k, drawn.v, **drawn.extras)
    total = drawn.extras["cu_seqlens_q"][-1]
    assert drawn.q.shape == ((total, 4, 64) if layout == "bshd" else (4, total, 64))
    assert o.shape == drawn.q.shape
    assert lse.shape == (4, total)
