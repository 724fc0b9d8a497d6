"""The parameter block of the kernels in which every wave loads and computes."""

from __future__ import annotations

from fmhagen.lowering.common import MAX_LOGIT, NUM_PAGES
from fmhagen.plan.language import Language
from fmhagen.plan.small_cache import scale_fields
from fmhagen.spec import AttentionSpec

Fields = tuple[tuple[str, str, str], ...]


def wave_params(spec: AttentionSpec, language: Language) -> Fields:
    """Return the parameter block of a main loop in which every wave loads and computes."""
    rows = (("b", "batch"), ("h", "head"), ("m", "row"))
    outer = "page" if spec.page_size is not None else "batch"
    strides = tuple(
        (
            "i64",
            f"{tensor}_stride_{'n' if axis == 'm' and tensor in 'kv' else axis}",
            f"elements to the next {outer if axis == 'b' and tensor in 'kv' else word}"
            f" of {tensor.upper()}",
        )
        for tensor in ("q", "k", "v", "o")
        for axis, word in (
            rows[1:] if spec.varlen and not (spec.kv_cache and tensor in "kv") else rows
        )
    )
    own: Fields = ()
    if spec.sink:
        own += (("f32*", "sinks", "a logit for each head, without a value"),)
    if spec.max_logit:
        own += MAX_LOGIT
    scale = ("f32", "scale_log2", "softmax scale * log2(e)")
    if language.score is not None:
        scale = ("f32", "scale", "softmax scale")
    heads = (("u32", "num_heads", "H"), ("u32", "heads_per_group", "H / Hk"))
    if spec.kv_cache:
        return _cache_params(spec, language, own + strides + (scale,), heads)
    if spec.varlen:
        return (
            ("u16*", "q", "Q[total_q,H,d]"),
            ("u16*", "k", "K[total_k,Hk,d]"),
            ("u16*", "v", "V[total_k,Hk,dv]"),
            ("u16*", "o", "O[total_q,H,dv]"),
            ("f32*", "lse", "LSE[H,total_q], or null when it is not wanted"),
            ("i32*", "cu_seqlens_q", "first row of each sequence in Q, and total_q"),
            ("i32*", "cu_seqlens_k", "the same in K"),
            ("i32*", "seqused_q", "rows in use of each sequence, or null: all"),
            ("i32*", "seqused_k", "the same of K"),
            *own,
            *strides,
            scale,
            ("u32", "total_q", "rows of Q"),
            ("u32", "total_k", "rows of K"),
            ("u32", "batch", "B, sequences"),
            *heads,
            ("u32", "num_tiles", "H times the most tiles that the lengths could give"),
            *language.fields,
        )
    return (
        ("u16*", "q", "Q[B,H,Sq,d]"),
        ("u16*", "k", "K[B,Hk,Sk,d]"),
        ("u16*", "v", "V[B,Hk,Sk,dv]"),
        ("u16*", "o", "O[B,H,Sq,dv]"),
        ("f32*", "lse", "LSE[B,H,Sq], or null when it is not wanted"),
        *own,
        *strides,
        scale,
        ("u32", "seqlen_q", "Sq"),
        ("u32", "seqlen_k", "Sk"),
        ("u32", "batch", "B"),
        *heads,
        ("u32", "num_m_tiles", "ceil(Sq / TILE_M)"),
        ("u32", "num_tiles", "num_m_tiles * H * B"),
        *language.fields,
    )


def _cache_params(
    spec: AttentionSpec,
    language: Language,
    own: Fields,
    heads: Fields,
) -> Fields:
    """Return the parameter block of a kernel over a cache; `own` are those of every kernel."""
    element = "u16" if spec.kv_dtype is None else "u8"
    rows, lse = ("total_q", "H,total_q") if spec.varlen else ("B,Sq", "B,H,Sq")
    keys = "B,S" if spec.page_size is None else "pages,PAGE_SIZE"
    offsets = (
        ("i32*", "cu_seqlens_q", "first row of each sequence in Q, and total_q"),
        ("i32*", "seqused_q", "rows in use of each sequence, or null: all"),
    )
    table = (
        ("i32*", "block_table", "[B, max_pages], pages of each sequence"),
        ("i64", "table_stride", "elements from one sequence's to the next"),
        NUM_PAGES,
    )
    return (
        ("u16*", "q", f"Q[{rows},H,d]"),
        (f"{element}*", "k", f"K[{keys},Hk,d]"),
        (f"{element}*", "v", f"V[{keys},Hk,dv]"),
        ("u16*", "o", f"O[{rows},H,dv]"),
        ("f32*", "lse", f"LSE[{lse}], or null when it is not wanted"),
        *(table if spec.page_size is not None else ()),
        ("i32*", "cache_seqlens", "[B], keys of each sequence, or null: capacity"),
        *(offsets if spec.varlen else ()),
        *own,
        *scale_fields(spec),
        ("u32", "capacity", "most keys that there is room for"),
        ("u32", "total_q", "rows of Q") if spec.varlen else ("u32", "seqlen_q", "Sq"),
        ("u32", "batch", "B, sequences"),
        *heads,
        ("u32", "num_tiles", "H times the most tiles that the lengths could give"),
        *language.fields,
    )
