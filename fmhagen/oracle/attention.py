"""Oracle: attention in float64 with NumPy, written from the conventions, not from the kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fmhagen.errors import TensorError, UnsupportedSpecError
from fmhagen.expr.evaluate import evaluate
from fmhagen.expr.finite import LEAST_SCORE, may_hide
from fmhagen.expr.nodes import Node
from fmhagen.formula import mask_of, score_of
from fmhagen.oracle.cache import gather_cache
from fmhagen.oracle.inputs import (
    as_float64,
    parameter_values,
    sequence_offsets,
    sink_logits,
    used_rows,
)
from fmhagen.records import plain
from fmhagen.validate import check_scale

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from fmhagen.spec import AttentionSpec

    Array = npt.NDArray[np.float64]

_SCORES_AT_A_TIME = 2**22  # elements of S in memory: 32 MiB


def reference(
    spec: AttentionSpec,
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float | None = None,
    params: Mapping[str, Any] | None = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    cache_seqlens: Any = None,
    block_table: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    max_logit: Array | None = None,
) -> tuple[Array, Array]:
    """Compute attention in float64.

    Args:
        spec: what to compute; its dtype does not matter here.
        q: query, in the spec's layout, which has no batch if packed; any framework's tensor.
        k: key.
        v: value.
        scale: softmax scale; None means the spec's.
        params: what the mask and the score function read, by name; captured tensors that are not
            given are those of the functions.
        alibi_slopes: (H,) or (B, H), for a spec with `alibi`.
        sinks: (H,), one logit a query head, for a spec with `sink`.
        cu_seqlens_q: (B + 1,) offsets of packed sequences, for a spec with `varlen`.
        cu_seqlens_k: the same of the keys.
        seqused_q: (B,) rows of each sequence that are used; None means all.
        seqused_k: the same of the keys.
        cache_seqlens: (B,) keys of each sequence, for a spec with `kv_cache`.
        block_table: (B, max_pages), for a spec with a `page_size`.
        k_scale: factors of K, for a spec with a `kv_scale`: (1,), (Hk,), (B, Hk) or one a token.
        v_scale: factors of V.
        max_logit: (H,) numbers that are raised, in place, to the largest score of each query head,
            for a spec with `max_logit`.

    Returns:
        O as q is laid out, and LSE (natural logarithm, the sink included) of shape (B, H, Sq), or
        (H, total_q) if packed. A row that sees no key has O = 0 and LSE = -inf, or the sink where
        there is one; a row of no sequence has O = 0 and LSE = -inf.

    Raises:
        UnsupportedSpecError: the spec is of a backward pass.
        TensorError: the shapes do not fit one another, or something is missing.
    """
    import numpy as np

    _check_spec(spec)
    check_scale("scale", plain(scale))
    factor = spec.scale_value if scale is None else float(scale)
    q64 = as_float64(q)
    if spec.kv_cache:
        if spec.varlen:
            q64 = _heads_first(spec, q64[None])
            rows = used_rows(sequence_offsets("cu_seqlens_q", cu_seqlens_q), seqused_q)
        else:
            q64 = _heads_first(spec, q64)
            rows = [slice(0, q64.shape[2])] * len(q64)
        k64, v64, keys = gather_cache(spec, k, v, cache_seqlens, block_table, k_scale, v_scale)
    elif spec.varlen:
        k64, v64 = as_float64(k), as_float64(v)
        offsets_q = sequence_offsets("cu_seqlens_q", cu_seqlens_q)
        offsets_k = sequence_offsets("cu_seqlens_k", cu_seqlens_k)
        rows = used_rows(offsets_q, seqused_q)
        keys = used_rows(offsets_k, seqused_k)
        # (H, S, d) as one batch
        q64, k64, v64 = (_heads_first(spec, tensor[None]) for tensor in (q64, k64, v64))
    else:
        q64, k64, v64 = (_heads_first(spec, t) for t in (q64, as_float64(k), as_float64(v)))
        rows, keys = ([slice(0, t.shape[2])] * len(t) if t.ndim == 4 else [] for t in (q64, k64))
    _check_shapes(spec, q64, k64, v64, len(rows) if spec.kv_cache else q64.shape[0])
    heads = q64.shape[1]
    values = _Values(
        spec, factor, parameter_values(spec, params, alibi_slopes), sink_logits(spec, sinks)
    )
    o = np.zeros((*q64.shape[:3], spec.dv))
    lse = np.full(q64.shape[:3], -np.inf)
    group = heads // max(1, k64.shape[1])
    for b, (r, n) in enumerate(zip(rows, keys, strict=True)):
        at = 0 if spec.varlen else b
        for h in range(heads):
            hk = h // group
            of = b if spec.kv_cache else at
            o[at, h, r], lse[at, h, r], largest = _head(
                values, b, h, q64[at, h, r], k64[of, hk, n], v64[of, hk, n]
            )
            if max_logit is not None:
                max_logit[h] = max(max_logit[h], largest)
    if spec.varlen:
        return _heads_first(spec, o)[0], lse[0]
    return _heads_first(spec, o), lse


@dataclass(frozen=True, slots=True)
class _Values:
    """What all heads share: the functions as expressions, and what they read."""

    spec: AttentionSpec
    scale: float
    params: dict[str, Any]
    sinks: Array | None

    @property
    def least(self) -> float:
        return LEAST_SCORE if may_hide(score_of(self.spec)) else -math.inf

    @property
    def mask(self) -> Node | None:
        return mask_of(self.spec)

    @property
    def score(self) -> Node | None:
        return score_of(self.spec)


def _head(
    values: _Values, b: int, h: int, q: Array, k: Array, v: Array
) -> tuple[Array, Array, float]:
    """Return O, LSE and the largest score of one head of one sequence."""
    import numpy as np

    o = np.zeros((len(q), v.shape[1]))
    lse = np.full(len(q), -np.inf)
    largest = -np.inf
    step = max(1, _SCORES_AT_A_TIME // max(1, len(k)))
    sink = None if values.sinks is None else float(values.sinks[h])
    for m in range(0, len(q), step):
        m_range = np.arange(m, min(m + step, len(q)))
        leaves = {
            "b": b,
            "h": h,
            "seqlen_q": len(q),
            "seqlen_k": len(k),
            "q_idx": m_range[:, None],
            "kv_idx": np.arange(len(k))[None, :],
        }
        visible = np.ones((len(m_range), len(k)), bool)
        if values.mask is not None:
            visible &= evaluate(values.mask, leaves, values.params)
        score = values.scale * (q[m_range] @ k.T)
        if values.score is not None:
            changed = evaluate(values.score, {**leaves, "score": score}, values.params)
            score = np.broadcast_to(changed, score.shape)
        o[m_range], lse[m_range] = _rows(score, visible, v, sink, values.least)
        largest = max(largest, float(score.max(where=visible, initial=-np.inf)))
    return o, lse, largest


def _rows(
    score: Array, visible: npt.NDArray[np.bool_], v: Array, sink: float | None, least: float
) -> tuple[Array, Array]:
    """Return O and LSE of some query rows of one head.

    Args:
        score: after the scale and the score function.
        visible: which keys each row sees.
        v: values of the keys.
        sink: a logit in the denominator, or None.
        least: a row sees nothing unless some score is above this.
    """
    import numpy as np

    o = np.zeros((len(score), v.shape[1]))
    lse = np.full(len(score), -np.inf if sink is None else sink)
    score = np.where(visible, score, -np.inf)
    # A key whose score is -inf, or stands for it, has no weight: a row of such keys sees nothing.
    # One whose score is NaN counts, so that its row is NaN.
    sees = ~(score <= least).all(axis=1)
    if not sees.any():
        return o, lse
    score = score[sees]
    largest = score.max(axis=1, keepdims=True)
    if sink is not None:
        largest = np.maximum(largest, sink)
    p = np.exp(score - largest)
    total = p.sum(axis=1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - largest)
    lse[sees] = (np.log(total) + largest)[:, 0]
    if np.isfinite(v).all():
        o[sees] = (p / total) @ v
    else:  # a hidden key has no effect, whatever its value: 0 * NaN would be NaN
        for row, seen, weights in zip(np.flatnonzero(sees), visible[sees], p / total, strict=True):
            o[row] = weights[seen] @ v[seen]
    return o, lse


def _heads_first(spec: AttentionSpec, tensor: Array) -> Array:
    """Swap between the spec's layout and (B, H, S, d); the swap is its own inverse."""
    return tensor if spec.layout == "bhsd" or tensor.ndim != 4 else tensor.transpose(0, 2, 1, 3)


def _check_spec(spec: AttentionSpec) -> None:
    if spec.direction != "forward":
        limit = "the reference is of the forward pass"
        raise UnsupportedSpecError("direction", str(spec.direction), limit)


def _check_shapes(spec: AttentionSpec, q: Array, k: Array, v: Array, batch: int) -> None:
    for name, tensor, depth in (("q", q, spec.d), ("k", k, spec.d), ("v", v, spec.dv)):
        if tensor.ndim != 4 or tensor.shape[3] != depth:
            limit = f"must be {', '.join(str(spec.layout))} with a depth of {depth}"
            raise TensorError(name, tensor.shape, limit)
    if k.shape[:3] != v.shape[:3]:
        raise TensorError("v", v.shape, f"must have the batch, heads and rows of k, {k.shape}")
    if k.shape[0] != batch:
        raise TensorError("k", k.shape, f"must have the batch of q, {batch}")
    if q.shape[1] and (not k.shape[1] or q.shape[1] % k.shape[1]):
        raise TensorError("k", k.shape[1], f"key heads must divide the {q.shape[1]} query heads")
