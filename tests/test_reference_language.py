"""The float64 oracle against plain loops: mods, sinks and packed sequences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fmhagen.oracle.attention import reference
from fmhagen.spec import AttentionSpec

SLOPES = np.array([0.5, 0.25, 0.125, 0.0625])
PREFIX = np.array([2, 0], np.int32)
DOCUMENT = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3], np.int32)
BIAS = np.random.default_rng(7).standard_normal((2, 4, 7, 11))
SINKS = np.array([0.3, -2.0, 5.0, -math.inf])


def causal(b: int, h: int, m: int, n: int) -> bool:
    return n <= m


@dataclass(frozen=True, kw_only=True)
class Case:
    """A spec and the same in scalars: which keys are seen, and what becomes of a score."""

    fields: dict[str, Any]
    sees: Callable[[int, int, int, int], bool] = lambda b, h, m, n: True
    score: Callable[[float, int, int, int, int], float] = lambda s, b, h, m, n: s
    call: dict[str, Any] = field(default_factory=dict)


SQ, SK, OFF = 7, 11, 4
CASES = {
    "alibi": Case(
        fields={"alibi": True},
        score=lambda s, b, h, m, n: s + SLOPES[h] * (n - m - OFF),
        call={"alibi_slopes": SLOPES},
    ),
    "alibi_of_batches": Case(
        fields={"alibi": True, "causal": True, "anchor": "top_left"},
        sees=causal,
        score=lambda s, b, h, m, n: s + (b + 1) * SLOPES[h] * (n - m),
        call={"alibi_slopes": np.stack([SLOPES, 2 * SLOPES])},
    ),
    "cap_then_alibi_then_mod": Case(
        fields={
            "soft_cap": 0.7,
            "alibi": True,
            "score_mod": lambda s, b, h, q, k: s * 2 + np.where(q == k, 1.0, 0.0),
        },
        score=lambda s, b, h, m, n: (
            2 * (0.7 * math.tanh(s / 0.7) + SLOPES[h] * (n - m - OFF)) + (m == n)
        ),
        call={"alibi_slopes": SLOPES},
    ),
    "prefix_by_capture": Case(
        fields={"mask_mod": lambda b, h, q, k: (k < PREFIX[b]) | (k <= q)},
        sees=lambda b, h, m, n: n < PREFIX[b] or n <= m,
    ),
    "prefix_by_params": Case(
        fields={"mask_mod": "prefix: i32[1]; (kv_idx < prefix[b]) | (kv_idx <= q_idx)"},
        sees=lambda b, h, m, n: n < PREFIX[b] or n <= m,
        call={"params": {"prefix": PREFIX}},
    ),
    "documents_and_causal": Case(
        fields={
            "causal": True,
            "anchor": "top_left",
            "mask_mod": lambda b, h, q, k: DOCUMENT[q] == DOCUMENT[k],
        },
        sees=lambda b, h, m, n: bool(n <= m and DOCUMENT[m] == DOCUMENT[n]),
    ),
    "bias": Case(
        fields={"score_mod": lambda s, b, h, q, k: s + BIAS[b, h, q, k]},
        score=lambda s, b, h, m, n: float(s + BIAS[b, h, m, n]),
    ),
    "hidden_by_score": Case(
        fields={"score_mod": lambda s, b, h, q, k: np.where((q + k) % 3 == 0, s, -np.inf)},
        sees=lambda b, h, m, n: (m + n) % 3 == 0,
    ),
    "rows_that_see_nothing": Case(
        fields={"mask_mod": lambda b, h, q, k: (q % 2 == 0) & (k > q), "sink": True},
        sees=lambda b, h, m, n: m % 2 == 0 and n > m,
        call={"sinks": SINKS},
    ),
    "sinks": Case(
        fields={"sink": True, "soft_cap": 1.5},
        call={"sinks": SINKS},
        score=lambda s, b, h, m, n: 1.5 * math.tanh(s / 1.5),
    ),
}


def tensors(batch: int) -> tuple[Any, Any, Any]:
    generator = np.random.default_rng(3)
    q = generator.standard_normal((batch, SQ, 4, 8))
    k, v = (generator.standard_normal((batch, SK, 2, 8)) for _ in range(2))
    return q, k, v


def naive(
    case: Case, q: Any, k: Any, v: Any, sinks: Any, b: int, h: int, m: int
) -> tuple[Any, float]:
    """Return one row of O and its LSE; q, k, v are (S, H, d) of one sequence."""
    weights: list[float] = []
    values = []
    for n in range(len(k)):
        if case.sees(b, h, m, n):
            score = float(q[m, h] @ k[n, h // 2]) / math.sqrt(8)
            weights.append(math.exp(case.score(score, b, h, m, n)))
            values.append(v[n, h // 2])
    if not weights:
        return np.zeros(8), -math.inf if sinks is None else sinks[h]
    total = math.fsum(weights) + (0.0 if sinks is None else math.exp(sinks[h]))
    o = sum(w / total * value for w, value in zip(weights, values, strict=True))
    return o, math.log(total)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_equals_loops_over_scalars(case: Case) -> None:
    spec = AttentionSpec(head_dim=8, **case.fields)
    q, k, v = tensors(2)
    o, lse = reference(spec, q, k, v, **case.call)
    for b, h, m in np.ndindex(2, 4, SQ):
        row, log_sum = naive(case, q[b], k[b], v[b], case.call.get("sinks"), b, h, m)
        np.testing.assert_allclose(o[b, m, h], row, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(lse[b, h, m], log_sum, rtol=1e-12)


@pytest.mark.parametrize("used", [False, True])
def test_packed_sequences_are_sequences_of_their_own(*, used: bool) -> None:
    generator = np.random.default_rng(4)
    lengths_q, lengths_k = np.array([3, 0, 5, 1]), np.array([4, 2, 0, 9])
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(n)]) for n in (lengths_q, lengths_k))
    used_q, used_k = (lengths_q + 1) // 2, (lengths_k + 1) // 2
    spec = AttentionSpec(head_dim=8, causal=True, varlen=True)
    q = generator.standard_normal((9, 4, 8))
    k, v = (generator.standard_normal((15, 2, 8)) for _ in range(2))
    call = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    if used:
        call |= {"seqused_q": used_q, "seqused_k": used_k}
    o, lse = reference(spec, q, k, v, **call)
    assert o.shape == q.shape
    assert lse.shape == (4, 9)
    one = AttentionSpec(head_dim=8, causal=True)
    for i in range(4):
        rows = slice(cu_q[i], cu_q[i] + used_q[i] if used else cu_q[i + 1])
        keys = slice(cu_k[i], cu_k[i] + used_k[i] if used else cu_k[i + 1])
        o_one, lse_one = reference(one, q[None, rows], k[None, keys], v[None, keys])
        np.testing.assert_array_equal(o[rows], o_one[0])
        np.testing.assert_array_equal(lse[:, rows], lse_one[0])
        unused = slice(rows.stop, cu_q[i + 1])
        assert not o[unused].any()
        assert (lse[:, unused] == -math.inf).all()


def test_given_parameters_replace_captured_ones() -> None:
    limit = np.array([3], np.int32)
    spec = AttentionSpec(head_dim=8, mask_mod=lambda b, h, q, k: k < limit[0])
    q, k, v = tensors(1)
    captured = reference(spec, q, k, v)
    given = reference(spec, q, k, v, params={"limit": np.array([6], np.int32)})
    plain = AttentionSpec(head_dim=8)
    for (o, _), keys in ((captured, 3), (given, 6)):
        np.testing.assert_allclose(o, reference(plain, q, k[:, :keys], v[:, :keys])[0])
