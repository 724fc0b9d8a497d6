"""The oracle against loops over scalars, and the comparison against planted faults."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fmhagen.errors import InvalidSpecError, TensorError
from fmhagen.oracle.attention import reference
from fmhagen.oracle.comparison import Comparison, Tolerance, compare, tolerance_of
from fmhagen.spec import AttentionSpec

SHAPES = ((1, 1, 1, 1, 1), (2, 5, 7, 4, 2), (1, 7, 5, 3, 3), (1, 9, 2, 6, 1), (2, 3, 0, 2, 1))


def inputs(
    spec: AttentionSpec, shape: tuple[int, int, int, int, int], seed: int = 0
) -> tuple[Any, Any, Any]:
    batch, rows, keys, heads, heads_kv = shape
    generator = np.random.default_rng(seed)
    sizes = ((heads, rows, spec.d), (heads_kv, keys, spec.d), (heads_kv, keys, spec.dv))
    made = (generator.standard_normal((batch, h, s, d)) for h, s, d in sizes)
    return tuple(t if spec.layout == "bhsd" else t.transpose(0, 2, 1, 3) for t in made)


def naive(spec: AttentionSpec, q: Any, k: Any, v: Any, scale: float) -> tuple[Any, Any]:
    """Attention by loops, one score at a time; q, k, v are (B, H, S, d)."""
    batch, heads, rows, depth = q.shape
    keys = k.shape[2]
    o = np.zeros((batch, heads, rows, v.shape[3]))
    lse = np.full((batch, heads, rows), -math.inf)
    off = 0 if spec.anchor == "top_left" else keys - rows
    for b in range(batch):
        for h in range(heads):
            head_kv = h // (heads // k.shape[1])
            for m in range(rows):
                weights = {}
                for n in range(keys):
                    if spec.causal and n > m + off:
                        continue
                    if spec.window_left is not None and n < m + off - spec.window_left:
                        continue
                    if spec.window_right is not None and n > m + off + spec.window_right:
                        continue
                    score = scale * sum(q[b, h, m, i] * k[b, head_kv, n, i] for i in range(depth))
                    if spec.soft_cap is not None:
                        score = spec.soft_cap * math.tanh(score / spec.soft_cap)
                    weights[n] = math.exp(score)
                total = sum(weights.values())
                if weights:
                    lse[b, h, m] = math.log(total)
                for n, weight in weights.items():
                    o[b, h, m] += weight / total * v[b, head_kv, n]
    return o, lse


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"causal": True},
        {"causal": True, "anchor": "top_left"},
        {"window_left": 1, "window_right": 2},
        {"window_left": 0, "causal": True},
        {"soft_cap": 1.5},
        {"scale": 0.0},
        {"head_dim_v": 3},
    ],
)
def test_the_oracle_equals_loops_over_scalars(
    shape: tuple[int, int, int, int, int], layout: str, fields: dict[str, Any]
) -> None:
    spec = AttentionSpec(head_dim=4, layout=layout, **fields)
    q, k, v = inputs(spec, shape)
    o, lse = reference(spec, q, k, v)
    first = (t if layout == "bhsd" else t.transpose(0, 2, 1, 3) for t in (q, k, v))
    o_naive, lse_naive = naive(spec, *first, spec.scale_value)
    if layout == "bshd":
        o_naive = o_naive.transpose(0, 2, 1, 3)
    np.testing.assert_allclose(o, o_naive, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(lse, lse_naive, rtol=1e-12, atol=1e-12)
    assert o.dtype == lse.dtype == np.float64


def test_rows_that_see_nothing_are_zero_and_minus_infinity() -> None:
    spec = AttentionSpec(head_dim=64, causal=True)
    q, k = np.zeros((1, 5, 1, 64)), np.zeros((1, 2, 1, 64))
    v = np.arange(2.0)[None, :, None, None] * np.ones((1, 2, 1, 64))
    o, lse = reference(spec, q, k, v)
    np.testing.assert_array_equal(o[0, :, 0, 0], [0, 0, 0, 0, 0.5])
    np.testing.assert_array_equal(lse[0, 0, :4], [-math.inf] * 3 + [0.0])
    assert lse[0, 0, 4] == pytest.approx(math.log(2))


def test_large_scores_do_not_overflow() -> None:
    spec = AttentionSpec(head_dim=4, scale=1.0)
    q = np.full((1, 2, 1, 4), 50.0)
    k = np.stack([np.full((1, 1, 4), 50.0), np.full((1, 1, 4), -50.0)], 1)
    o, lse = reference(spec, q, k, k)
    np.testing.assert_allclose(o, 50.0)
    np.testing.assert_allclose(lse, 10000.0)


def test_hidden_keys_have_no_effect_whatever_they_hold() -> None:
    spec = AttentionSpec(head_dim=4, causal=True)
    q, k, v = (np.ascontiguousarray(t) for t in inputs(spec, (1, 4, 4, 1, 1)))
    before, _ = reference(spec, q, k, v)
    v[0, 3] = math.nan
    k[0, 3] = math.nan
    after, lse = reference(spec, q, k, v)
    np.testing.assert_allclose(after[0, :3], before[0, :3])
    assert np.isfinite(lse[0, 0, :3]).all()
    assert np.isnan(after[0, 3]).all()


def test_many_keys_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = AttentionSpec(head_dim=4, causal=True)
    q, k, v = inputs(spec, (1, 9, 11, 2, 1))
    whole = reference(spec, q, k, v)
    monkeypatch.setattr("fmhagen.oracle.attention._SCORES_AT_A_TIME", 25)
    for one, other in zip(whole, reference(spec, q, k, v), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14)


def test_a_call_scale_overrides_the_specs() -> None:
    spec = AttentionSpec(head_dim=4, scale=3.0)
    q, k, v = inputs(spec, (1, 3, 3, 1, 1))
    other = AttentionSpec(head_dim=4, scale=0.5)
    np.testing.assert_array_equal(
        reference(spec, q, k, v, scale=0.5)[0], reference(other, q, k, v)[0]
    )
    with pytest.raises(InvalidSpecError, match="scale"):
        reference(spec, q, k, v, scale=math.nan)


def test_bf16_inputs_are_taken_exactly() -> None:
    spec = AttentionSpec(head_dim=4)
    q, k, v = (t.astype(ml_dtypes.bfloat16) for t in inputs(spec, (1, 3, 5, 1, 1)))
    wide = (t.astype(np.float64) for t in (q, k, v))
    np.testing.assert_array_equal(reference(spec, q, k, v)[0], reference(spec, *wide)[0])


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"alibi": True}, "alibi_slopes"),
        ({"sink": True}, "sinks"),
        ({"varlen": True}, "cu_seqlens_q"),
        ({"mask_mod": "limit: i32; kv_idx < limit"}, "limit"),
    ],
)
def test_what_is_missing_is_named(fields: dict[str, Any], error: str) -> None:
    q = np.zeros((1, 2, 1, 4))
    with pytest.raises(TensorError, match=error):
        reference(AttentionSpec(head_dim=4, **fields), q, q, q)


def test_what_is_not_read_is_refused() -> None:
    q = np.zeros((1, 2, 1, 4))
    spec = AttentionSpec(head_dim=4)
    with pytest.raises(TensorError, match="neither mask nor score"):
        reference(spec, q, q, q, params={"limit": 3})
    with pytest.raises(TensorError, match="sink=True"):
        reference(spec, q, q, q, sinks=np.zeros(1))
    with pytest.raises(TensorError, match="block table"):
        reference(AttentionSpec(head_dim=4, page_size=16), q, q, q)


def test_shapes_that_do_not_fit_are_refused() -> None:
    spec = AttentionSpec(head_dim=4)
    q, k, v = inputs(spec, (1, 3, 5, 3, 2))
    with pytest.raises(TensorError, match="key heads must divide the 3 query heads"):
        reference(spec, q, k, v)
    with pytest.raises(TensorError, match="rows of k"):
        reference(spec, q[:, :, :2], k, v[:, :4])


def perturbed(**changes: float) -> tuple[Comparison, Any]:
    spec = AttentionSpec(head_dim=4)
    q, k, v = inputs(spec, (2, 5, 7, 4, 2))
    o_ref, lse_ref = reference(spec, q, k, v)
    o, lse = o_ref.copy(), lse_ref.copy()
    if "o" in changes:
        o[1, 3, 2, 1] += changes["o"] * np.abs(o_ref).max()
    if "lse" in changes:
        lse[1, 2, 3] = changes["lse"]
    return compare(o, lse, o_ref, lse_ref), lse_ref


def test_equal_results_compare_as_equal() -> None:
    comparison, _ = perturbed()
    assert comparison.o_worst == comparison.lse_worst == comparison.o_rms == 0
    assert comparison.within(tolerance_of("fp16"))


def test_the_worst_element_is_named_as_b_h_m_d() -> None:
    comparison, _ = perturbed(o=0.25)
    assert comparison.o_worst == pytest.approx(0.25)
    assert comparison.o_worst_index == (1, 2, 3, 1)
    assert not comparison.within(tolerance_of("bf16"))


def test_misplaced_infinities_and_nans_come_first() -> None:
    comparison, _ = perturbed(o=math.nan, lse=-math.inf)
    assert (comparison.o_misplaced, comparison.o_first_misplaced) == (1, (1, 2, 3, 1))
    assert (comparison.lse_misplaced, comparison.lse_first_misplaced) == (1, (1, 2, 3))
    assert str(comparison).startswith("O: 1 infinities or NaNs differ")
    assert not comparison.within(Tolerance(worst=9, rms=9, lse=9))


def test_infinities_in_the_right_places_are_right() -> None:
    lse = np.array([[[-math.inf, 1.0]]])
    o = np.zeros((1, 2, 1, 1))
    assert compare(o, lse, o, lse).within(tolerance_of("fp16"))
    assert compare(o, -lse, o, lse).lse_misplaced == 1


def test_empty_results_compare() -> None:
    o, lse = np.zeros((0, 3, 2, 4)), np.zeros((0, 2, 3))
    assert compare(o, lse, o, lse).within(tolerance_of("bf16"))


def test_rounding_to_16_bits_is_within_tolerance() -> None:
    generator = np.random.default_rng(0)
    o = generator.standard_normal((2, 64, 4, 64))
    for name, dtype in (("bf16", ml_dtypes.bfloat16), ("fp16", np.float16)):
        # Twice, as P and O are: at most the sum of both roundings
        rounded = o.astype(dtype).astype(np.float64)
        comparison = compare(o + 2 * (rounded - o), None, o, None)
        assert comparison.within(
            Tolerance(worst=tolerance_of(name).worst, rms=tolerance_of(name).rms * 1.3, lse=0)
        ), comparison


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="O has shape"):
        compare(np.zeros((1, 2, 3, 4)), None, np.zeros((1, 2, 3, 5)), None)
