"""Paste functions that were written for FlexAttention, and call them by the names you know.

Run with `python examples/09_flex_attention.py`. With PyTorch the same lines run on its tensors;
here they are NumPy arrays, so that nothing needs a GPU.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import fmhagen
from fmhagen.frontends.flash import flash_attn_func
from fmhagen.frontends.flex import flex_attention
from fmhagen.frontends.sdpa import scaled_dot_product_attention
from fmhagen.oracle.comparison import compare, tolerance_of

document_id = np.repeat(np.arange(4, dtype=np.int32), (30, 50, 5, 35))  # of each position


# ---- pasted ----


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Hide later keys."""
    return q_idx >= kv_idx


def document_causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Hide other documents, too."""
    return causal(b, h, q_idx, kv_idx) & (document_id[q_idx] == document_id[kv_idx])


def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Prefer near keys, by head."""
    return score + (kv_idx - q_idx) * 2.0 ** (-2 * (h + 1))


# ---- end of what was pasted ----


def main() -> None:
    """Compare the pasted functions with float64, then call other familiar names."""
    generator = np.random.default_rng(0)

    def tensor(heads: int) -> np.ndarray:
        values = generator.standard_normal((2, heads, 120, 64), np.float32)  # b, h, m, d
        return values.astype(ml_dtypes.bfloat16)

    q, k, v = tensor(4), tensor(2), tensor(2)
    o, lse = flex_attention(
        q, k, v, score_mod=alibi, block_mask=document_causal, enable_gqa=True, return_lse=True
    )
    spec = fmhagen.AttentionSpec(
        head_dim=64, layout="bhsd", mask_mod=document_causal, score_mod=alibi
    )
    result = compare(o, lse, *fmhagen.reference(spec, q, k, v), layout="bhsd")
    print(f"flex_attention: {result}".replace("\n", "\n    "))
    assert result.within(tolerance_of("bf16"))

    # PyTorch's is_causal is anchored top-left; masks are broadcast and read in place.
    visible = np.tri(120, dtype=bool)
    one = scaled_dot_product_attention(q, k, v, visible, enable_gqa=True)
    other = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    difference = np.abs(one.astype(np.float32) - other.astype(np.float32)).max()
    print(f"scaled_dot_product_attention: mask and is_causal differ by {difference:.2g}")
    assert difference < 0.02

    # FlashAttention's tensors are (b, m, h, d), and its window counts keys on each side.
    rows_first = tuple(x.transpose(0, 2, 1, 3) for x in (q, k, v))
    windowed = flash_attn_func(*rows_first, causal=True, window_size=(16, 0))
    print(f"flash_attn_func: {windowed.shape}")
    try:
        flash_attn_func(*rows_first, dropout_p=0.1)
    except fmhagen.FmhagenError as error:
        print(f"refused: {error}")


if __name__ == "__main__":
    main()
