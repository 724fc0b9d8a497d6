"""Features together on the emulator of each target: masks, scores, sinks, packed sequences."""

from __future__ import annotations

import random
from typing import Any

import pytest
from language_runs import is_supported

from fmhagen.checking.verification import Case, verify
from fmhagen.instance import Instance
from fmhagen.oracle.comparison import Tolerance
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS, Target

MASKS: tuple[dict[str, Any], ...] = (
    {},
    {"causal": True},
    {"causal": True, "anchor": "top_left"},
    {"causal": True, "window_left": 30},
    {"window_left": 11, "window_right": 25},
    {"mask_mod": "((kv_idx < 5) | (q_idx - kv_idx < 40)) & (kv_idx <= q_idx)"},
    {"mask_mod": "q_idx // 48 == kv_idx // 48", "causal": True},
    {"mask_mod": "prefix: i32[1]; (kv_idx < prefix[b]) | (kv_idx <= q_idx)"},
    {"mask_mod": "d: i32[1]; d[q_idx // 8] != d[kv_idx // 8]"},
    {"mask_mod": "seen: bool[4]; seen[b, h, q_idx, kv_idx]"},
    {"mask_mod": "(q_idx // 32 - kv_idx // 32) % 3 == 0", "causal": True},
    {"mask_mod": "where(h % 2 == 0, kv_idx <= q_idx, abs(q_idx - kv_idx) < 20)"},
    {"mask_mod": "at: i32[1, non_decreasing]; (at[q_idx] <= kv_idx) & (kv_idx <= q_idx + 9)"},
)
SCORES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"soft_cap": 3.0},
    {"alibi": True},
    {"soft_cap": 5.0, "alibi": True},
    {"score_mod": "bias: f32[4]; score + bias[b, h, q_idx, kv_idx]"},
    {"score_mod": "t: bf16[2]; score + t[h, minimum(maximum(kv_idx - q_idx, -20), 20) + 20]"},
    {"score_mod": "w: f32; where((q_idx + kv_idx) % 5 == 0, -inf, score * w)"},
)


def combinations(count: int, seed: int) -> list[AttentionSpec]:
    """Return specs that draw from everything, the same ones each time."""
    chosen = random.Random(seed)
    specs = []
    while len(specs) < count:
        fields = {
            **chosen.choice(MASKS),
            **chosen.choice(SCORES),
            "sink": chosen.random() < 0.4,
            "varlen": chosen.random() < 0.4,
            "head_dim": chosen.choice((64, 64, 128, 96)),
            "dtype": chosen.choice(("bf16", "bf16", "fp16")),
            "layout": chosen.choice(("bshd", "bhsd")),
        }
        if fields["varlen"]:
            del fields["layout"]
        specs.append(AttentionSpec(**fields))
    return specs


SPECS = combinations(16, seed=11)
SIZES = ((100, 133), (67, 40), (1, 90))
# A score that hides keys leaves rows of few keys, whose O is as large as a value.
ALLOWED = {
    "bf16": Tolerance(worst=2e-2, rms=6e-3, lse=2e-3),
    "fp16": Tolerance(worst=3e-3, rms=1e-3, lse=2e-3),
}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("number", range(len(SPECS)))
def test_combinations_equal_float64(target: Target, number: int) -> None:
    spec = SPECS[number]
    if not is_supported(spec, target):
        pytest.skip(f"{target.name} has no kernels for this yet")
    instance = Instance.of(spec, target)
    for seed, (seqlen_q, seqlen_k) in enumerate(SIZES):
        case = Case(batch=3, heads=4, heads_kv=2, seqlen_q=seqlen_q, seqlen_k=seqlen_k, seed=seed)
        result = verify(instance, case, device="emulator")
        assert result.comparison.within(ALLOWED[spec.dtype]), f"{spec}\n{case}\n{result.comparison}"
