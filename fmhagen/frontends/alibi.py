"""ALiBi as FlashAttention defines it: -slope * |distance|, also right of the diagonal."""

from __future__ import annotations

from typing import Any

from fmhagen.errors import TensorError

ALIBI_BOTH_SIDES = (
    "slopes: f32[2, finite]; distance = kv_idx - q_idx - (seqlen_k - seqlen_q);"
    " score - slopes[b, h] * f32(abs(distance))"
)
"""The score function; with a causal mask the built-in one does the same for less."""


def slopes_of(alibi_slopes: Any, q: Any) -> dict[str, Any]:
    """Return what that function reads, from slopes (H,) or (B, H) of the heads of q (.., H, d).

    Raises:
        TensorError: they are of other heads.
    """
    shape = tuple(alibi_slopes.shape)
    if len(shape) not in (1, 2) or shape[-1] != q.shape[-2]:
        limit = f"must have the shape (H,) or (B, H), {q.shape[-2]} heads"
        raise TensorError("alibi_slopes", shape, limit)
    slopes = alibi_slopes[None] if len(alibi_slopes.shape) == 1 else alibi_slopes
    return {"slopes": slopes}
