"""FlashAttention's functions: the same parameters with the same meaning.

Two results differ on purpose: LSE of a row that sees no key is -inf, so that it merges as nothing,
and the third result of `return_attn_probs=True`, the dropout mask, is always None.
"""

from __future__ import annotations

from typing import Any

from fmhagen.dispatch import attention
from fmhagen.errors import UnsupportedArgumentError
from fmhagen.frontends.alibi import ALIBI_BOTH_SIDES, slopes_of
from fmhagen.frontends.graph_import import import_in_graphs
from fmhagen.frontends.refusal import refuse_others

_NEUTRAL: dict[str, Any] = {
    "qv": None,
    "q_descale": None,
    "k_descale": None,
    "v_descale": None,
    "attention_chunk": 0,
    "num_splits": (1, 0),
    "pack_gqa": None,
    "sm_margin": 0,
    "block_table": None,
}


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    learnable_sink: Any = None,
    attention_chunk: int = 0,
    **others: Any,
) -> Any:
    """Compute attention as FlashAttention's function of this name does.

    Args:
        q: (B, Sq, H, d).
        k: (B, Sk, Hk, d).
        v: (B, Sk, Hk, dv).
        dropout_p: must be 0.
        softmax_scale: None means 1 / sqrt(d).
        causal: hide keys right of the diagonal, which ends bottom-right.
        window_size: keys left and right of the diagonal; -1 means unlimited.
        softcap: cap of the scaled scores; 0 means none.
        alibi_slopes: (H,) or (B, H): subtracts slope * |distance from the diagonal|.
        deterministic: has no effect; the forward pass always is.
        return_attn_probs: also give LSE (B, H, Sq) and None.
        learnable_sink: (H,): a logit in the denominator.
        attention_chunk: a query sees the keys of its own chunk of so many positions, the last key
            beside the last query; 0 means all.
        others: further parameters of FlashAttention, each refused unless it asks for nothing.

    Returns:
        O, or (O, LSE, None).

    Raises:
        UnsupportedArgumentError: dropout, or another argument that fmhagen does not support.
        TensorError: a tensor does not fit.
    """
    refuse_others("flash_attn_func", {"dropout_p": dropout_p, **others}, _neutral())
    import_in_graphs()
    found = attention(
        *(q, k, v),
        scale=softmax_scale,
        sinks=learnable_sink,
        return_lse=return_attn_probs,
        **_options(q, causal, window_size, softcap, alibi_slopes, attention_chunk),
    )
    return (*found, None) if return_attn_probs else found


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
    *,
    seqused_q: Any = None,
    seqused_k: Any = None,
    learnable_sink: Any = None,
    attention_chunk: int = 0,
    k_descale: Any = None,
    v_descale: Any = None,
    **others: Any,
) -> Any:
    """Compute attention of packed sequences as FlashAttention's function of this name does.

    Args:
        q: (total_q, H, d).
        k: (total_k, Hk, d).
        v: (total_k, Hk, dv).
        cu_seqlens_q: (B + 1,): where sequences begin, and the end.
        cu_seqlens_k: the same for keys.
        max_seqlen_q: the most query rows of a sequence.
        max_seqlen_k: the most keys of a sequence.
        dropout_p: must be 0.
        softmax_scale: None means 1 / sqrt(d).
        causal: hide keys right of the diagonal, which ends bottom-right.
        window_size: keys left and right of the diagonal; -1 means unlimited.
        softcap: cap of the scaled scores; 0 means none.
        alibi_slopes: (H,) or (B, H): subtracts slope * |distance from the diagonal|.
        deterministic: has no effect; the forward pass always is.
        return_attn_probs: also give LSE (H, total_q) and None.
        block_table: (B, max_pages): k and v are pages (pages, page_size, Hk, d); the keys of each
            sequence are then counted by seqused_k, or by cu_seqlens_k.
        seqused_q: (B,): query rows of each sequence that count; rows of O behind them hold
            anything.
        seqused_k: (B,): keys of each sequence that count.
        learnable_sink: (H,): a logit in the denominator.
        attention_chunk: a query sees the keys of its own chunk of so many positions, the last key
            beside the last query; 0 means all; not with block_table.
        k_descale: (B, Hk): what pages of 8 bits are multiplied by; with block_table alone.
        v_descale: the same of v.
        others: further parameters of FlashAttention, each refused unless it asks for nothing.

    Returns:
        O, or (O, LSE, None).

    Raises:
        UnsupportedArgumentError: dropout, or another argument that is not supported.
        TensorError: a tensor does not fit.
    """
    others = {"dropout_p": dropout_p, **others}
    if block_table is None:
        others |= {"k_descale": k_descale, "v_descale": v_descale}
    else:
        others["attention_chunk"] = attention_chunk
    refuse_others("flash_attn_varlen_func", others, _neutral())
    if block_table is not None:
        from fmhagen.frontends.kvcache import flash_attn_with_kvcache

        counted = cu_seqlens_k[1:] - cu_seqlens_k[:-1] if seqused_k is None else seqused_k
        found = flash_attn_with_kvcache(
            *(q, k, v),
            cache_seqlens=counted,
            block_table=block_table,
            cu_seqlens_q=cu_seqlens_q,
            max_seqlen_q=max_seqlen_q,
            seqused_q=seqused_q,
            softmax_scale=softmax_scale,
            causal=causal,
            window_size=window_size,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            learnable_sink=learnable_sink,
            k_descale=k_descale,
            v_descale=v_descale,
            return_softmax_lse=return_attn_probs,
        )
        return (*found, None) if return_attn_probs else found
    import_in_graphs()
    found = attention(
        *(q, k, v),
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        scale=softmax_scale,
        sinks=learnable_sink,
        return_lse=return_attn_probs,
        **_options(q, causal, window_size, softcap, alibi_slopes, attention_chunk),
    )
    return (*found, None) if return_attn_probs else found


def _neutral() -> dict[str, Any]:
    return {"dropout_p": 0.0, **_NEUTRAL}


def _options(
    q: Any,
    causal: bool,
    window_size: tuple[int | None, int | None],
    softcap: float,
    alibi_slopes: Any,
    attention_chunk: int,
) -> dict[str, Any]:
    left, right = window_size
    options: dict[str, Any] = {
        "causal": causal,
        "window": (left, None if causal else right),  # a causal mask ends at the diagonal
        "soft_cap": softcap or None,
    }
    if attention_chunk:
        if attention_chunk < 0:
            limit = "must be a number of positions, or 0 for all"
            raise UnsupportedArgumentError("attention_chunk", attention_chunk, limit)
        own = f"(q_idx + (seqlen_k - seqlen_q)) // {int(attention_chunk)}"
        options["mask_mod"] = f"{own} == kv_idx // {int(attention_chunk)}"
    if alibi_slopes is not None and causal:
        options["alibi_slopes"] = alibi_slopes  # no key right of the diagonal is visible
    elif alibi_slopes is not None:
        options["score_mod"] = ALIBI_BOTH_SIDES
        options["params"] = slopes_of(alibi_slopes, q)
    return options
