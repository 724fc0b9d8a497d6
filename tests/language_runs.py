"""Runs of mask and score functions on the emulator against float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from fmhagen.api import compile_kernel
from fmhagen.oracle.attention import reference
from fmhagen.oracle.comparison import Comparison, compare, tolerance_of
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target

HEADS, HEADS_KV, BATCH = 4, 2, 2


def is_supported(spec: AttentionSpec, target: Target) -> bool:
    """Return whether a target's kernels have what a spec needs."""
    needs = {
        "window": spec.window_left is not None or spec.window_right is not None,
        "mask_mod": spec.mask_mod is not None,
        "score_mod": spec.alibi or spec.soft_cap is not None or spec.score_mod is not None,
        "sink": spec.sink,
        "varlen": spec.varlen,
    }
    return all(name in target.features for name, needed in needs.items() if needed)


def run(
    spec: AttentionSpec,
    target: Target,
    seqlen_q: int,
    seqlen_k: int,
    params: Mapping[str, Any],
    *,
    heads: int = HEADS,
) -> Comparison:
    """Run a spec with random Q, K and V, NaN beside every tensor, and compare O and LSE."""
    generator = np.random.default_rng(seqlen_q * 1000 + seqlen_k)

    def tensor(rows: int, count: int) -> Any:
        whole = np.full((BATCH, rows + 3, count, spec.d), np.nan, np.float32)
        whole[:, :rows] = generator.standard_normal((BATCH, rows, count, spec.d))
        return whole.astype(ml_dtypes.bfloat16)[:, :rows]

    group = HEADS // HEADS_KV
    q, k = tensor(seqlen_q, heads), tensor(seqlen_k, max(1, heads // group))
    v = tensor(seqlen_k, max(1, heads // group))
    kernel = compile_kernel(spec, device="emulator", target=target.name)
    extras = {"alibi_slopes": params["alibi_slopes"]} if spec.alibi else {}
    rest = {name: value for name, value in params.items() if name not in extras}
    if rest:
        extras["params"] = rest
    o, lse = kernel(q, k, v, return_lse=True, **extras)
    return compare(o, lse, *reference(spec, q, k, v, **extras), layout="bshd")


def is_right(found: Comparison) -> bool:
    """Return whether a result counts as right; scores pass through an approximate tanh and exp."""
    allowed = tolerance_of("bf16")
    return (
        found.o_misplaced == found.lse_misplaced == 0
        and found.o_worst <= 2 * allowed.worst
        and found.o_rms <= 2 * allowed.rms
        and found.lse_worst <= 2e-3
    )
