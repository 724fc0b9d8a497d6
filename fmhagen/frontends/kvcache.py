"""FlashAttention's function over a key/value cache: append, rotate, attend.

New keys and values are written, and rows are rotated, by one kernel before those of attention;
nothing is read back to the host, so that a captured graph serves any lengths and tables.
"""

from __future__ import annotations

import functools
from typing import Any

from fmhagen.appending import append_kv
from fmhagen.errors import TensorError, UnsupportedArgumentError
from fmhagen.frontends.alibi import ALIBI_BOTH_SIDES, slopes_of
from fmhagen.frontends.cache_rows import (
    PackedRows,
    lengths_of,
    table_and_lengths,
    table_of_batch,
)
from fmhagen.frontends.refusal import refuse_others
from fmhagen.paging import CsrTables, PageTables
from fmhagen.runtime.devices import TARGET_OF_MEMORY
from fmhagen.runtime.tensors import dtype_name, view
from fmhagen.select.rules.rows import class_of_heads, class_of_packed_rows, class_of_rows
from fmhagen.spec import AttentionSpec, CacheScale, DType
from fmhagen.targets import TARGETS, find_target

_NEUTRAL: dict[str, Any] = {
    "qv": None,
    "q_descale": None,
    "cache_leftpad": None,
    "cu_seqlens_k_new": None,
    "rotary_seqlens": None,
    "attention_chunk": 0,
    "scheduler_metadata": None,
    "pack_gqa": None,
    "sm_margin": 0,
}


def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    page_table: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    learnable_sink: Any = None,
    cu_seqlens_q: Any = None,
    max_seqlen_q: int | None = None,
    seqused_q: Any = None,
    **others: Any,
) -> Any:
    """Append new keys and values to a cache in place, then attend to it.

    Args:
        q: (B, Sq, H, d), or packed (total, H, d) with cu_seqlens_q.
        k_cache: (B, S, Hk, d), or (pages, page_size, Hk, d) with a block table.
        v_cache: the same of depth dv.
        k: (B, n, Hk, d): keys to append, at cache_seqlens. Rows without room are dropped; 16-bit
            rows are divided by k_descale and rounded where the cache has 8 bits.
        v: (B, n, Hk, dv): their values.
        rotary_cos: (positions, rotary_dim / 2): rotates the first rotary_dim columns of k and q.
        rotary_sin: the same.
        cache_seqlens: keys that each sequence has before this call: (B,) int32, or one number.
        cache_batch_idx: (B,): which entry of the cache is whose; None means in order.
        cache_leftpad: must be None.
        block_table: (B, max_pages) int32; or `fmhagen.paging` tables: PageTables, or the CsrTables
            of FlashInfer, turned into a block table on their device. They give the lengths, too,
            where nothing is appended.
        softmax_scale: None means 1 / sqrt(d).
        causal: hide keys right of the diagonal, which ends bottom-right.
        window_size: keys left and right of the diagonal; -1 means unlimited.
        softcap: cap of the scaled scores; 0 means none.
        rotary_interleaved: rotate columns 2i and 2i + 1, else i and rotary_dim / 2 + i.
        alibi_slopes: (H,) or (B, H): subtracts slope * |distance from the diagonal|.
        num_splits: parts that each sequence is cut into; 0 lets the kernel choose.
        return_softmax_lse: also give LSE (B, H, Sq).
        page_table: another name of block_table.
        k_descale: (B, Hk): what an 8-bit k_cache is multiplied by.
        v_descale: the same of v_cache.
        learnable_sink: (H,): a logit in the denominator.
        cu_seqlens_q: (B + 1,): where packed queries begin; nothing is appended or rotated then.
        max_seqlen_q: the most query rows of a sequence, with cu_seqlens_q.
        seqused_q: (B,): query rows of each packed sequence that count, its first ones; rows of O
            behind them hold anything.
        others: further parameters of FlashAttention, each refused unless it asks for nothing.

    Returns:
        O (B, Sq, H, dv), or (O, LSE); packed like q, with LSE (H, total).

    Raises:
        UnsupportedArgumentError: an argument that fmhagen does not support.
        TensorError: a tensor does not fit.
    """
    refuse_others("flash_attn_with_kvcache", {"cache_leftpad": cache_leftpad, **others}, _NEUTRAL)
    table = block_table if page_table is None else page_table
    if isinstance(table, CsrTables | PageTables):
        table, counted = table_and_lengths(table)
        cache_seqlens = counted if cache_seqlens is None and k is None else cache_seqlens
    left, right = (None if side == -1 else side for side in window_size)
    packed = None
    batch, rows = q.shape[0], q.shape[1]
    if cu_seqlens_q is not None:
        rows = 0 if max_seqlen_q is None or q.shape[0] == 0 else int(max_seqlen_q)
    elif seqused_q is not None:
        limit = "counts rows of packed sequences, and nothing is packed"
        raise UnsupportedArgumentError("seqused_q", "a tensor", limit, "give cu_seqlens_q, too")
    many = num_splits in (0, 1) and (
        q.dtype == k_cache.dtype or "kv_dtype_many" in _features(k_cache, str(k_cache.dtype))
    )
    heads, heads_kv = q.shape[-2], k_cache.shape[2]
    group = 1 if alibi_slopes is not None or not heads_kv else max(1, heads // heads_kv)
    sequences = batch if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    hint = class_of_rows(rows, group, sequences * heads) if many else None
    few = class_of_heads(rows, group, sequences * heads) if many else None
    many = hint is not None
    if cu_seqlens_q is not None:
        if k is not None or rotary_cos is not None:
            limit = "queries are packed, and rows are appended or rotated"
            raise UnsupportedArgumentError("cu_seqlens_q", "a tensor", limit)
        if max_seqlen_q is None:
            raise TensorError("max_seqlen_q", None, "must be given with cu_seqlens_q")
        many = many and "varlen" in _features(q)
        hint = class_of_packed_rows(rows)
        if not many:
            packed = PackedRows(cu_seqlens_q, q, rows, seqused_q)
            q = packed.spread(q)
        batch = cu_seqlens_q.shape[0] - 1
    lengths = lengths_of(cache_seqlens, q, batch)
    if (k is None) != (v is None):
        raise TensorError("v" if v is None else "k", None, "k and v must be given together")
    if lengths is None and (k is not None or rotary_cos is not None):
        raise TensorError("cache_seqlens", None, "must be given where keys are appended or rotated")
    if cache_batch_idx is not None:
        if table is not None:
            limit = "a block table already says whose pages are whose"
            raise UnsupportedArgumentError("cache_batch_idx", "a tensor", limit)
        table = table_of_batch(cache_batch_idx)
        lengths = lengths_of(k_cache.shape[1], q, batch) if lengths is None else lengths
    if k is not None or rotary_cos is not None:
        is_rounded = k is not None and k.dtype != k_cache.dtype
        q, lengths = append_kv(
            *(k_cache, v_cache, k, v),
            cache_seqlens=lengths,
            block_table=table,
            q=q,
            rotary_cos=rotary_cos,
            rotary_sin=rotary_sin,
            rotary_interleaved=rotary_interleaved,
            advances=causal or left is not None or right is not None,
            k_scale=k_descale if is_rounded else None,
            v_scale=v_descale if is_rounded else None,
        )
    # Of one query no key lies right of the diagonal, unless a window says so.
    one_sided = causal or (rows == 1 and right is None)
    slopes = "none" if alibi_slopes is None else "one_sided" if one_sided else "both_sides"
    kernel = _kernel(
        str(q.dtype),
        str(k_cache.dtype),
        (q.shape[-1], v_cache.shape[-1]),
        None if table is None else k_cache.shape[1],
        (causal or slopes == "one_sided", left, None if causal else right, softcap or None),
        (slopes, learnable_sink is not None, k_descale is not None),
        (hint if many else None, group, few if many else None),
        many and cu_seqlens_q is not None,
    )
    given = {
        "cache_seqlens": lengths,
        "block_table": table,
        "num_splits": None if many else num_splits or None,
        "k_scale": k_descale,
        "v_scale": v_descale,
        "alibi_slopes": alibi_slopes if slopes == "one_sided" else None,
        "params": slopes_of(alibi_slopes, q) if slopes == "both_sides" else None,
        "sinks": learnable_sink,
    }
    if many and cu_seqlens_q is not None:
        given |= {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": rows, "seqused_q": seqused_q}
    extras = {name: item for name, item in given.items() if item is not None}
    found = kernel(
        *(q, k_cache, v_cache), scale=softmax_scale, return_lse=return_softmax_lse, **extras
    )
    if packed is None:
        return found
    if not return_softmax_lse:
        return packed.gather(found)
    return packed.gather(found[0]), packed.gather(found[1].swapaxes(1, 2)).T


def _features(tensor: Any, small: str = "") -> frozenset[str]:
    """Return what the chip that a tensor lies on can do over a cache; a host stands for one."""
    chip = TARGET_OF_MEMORY.get(view("q", tensor).memory) or _target_of(small)
    return find_target(chip or TARGETS[0].name).cache_features


def _target_of(small: str) -> str | None:
    """Return the one chip that has a kind of 8-bit floats, or None where that decides nothing."""
    kind = "fnuz" if small.endswith("fnuz") else None
    return next((chip.name for chip in TARGETS if chip.float8_kind == kind), None)


@functools.lru_cache(maxsize=256)
def _kernel(
    dtype: str,
    cache_dtype: str,
    depth: tuple[int, int],
    page_size: int | None,
    mask: tuple[bool, int | None, int | None, float | None],
    flags: tuple[str, bool, bool],
    hints: tuple[int | None, int, int | None],
    is_packed: bool,
    target: str | None = None,
) -> Any:
    """Return the kernel of a kind of cache, and of queries: hints of them, packed or not.

    A process has one.
    """
    from fmhagen.api import compile_kernel
    from fmhagen.expr.mods import ScoreMod

    causal, left, right, soft_cap = mask
    slopes, sink, scaled = flags
    query_hint, group_hint, heads_hint = hints
    own, small = (dtype_name(name.removeprefix("torch.")) for name in (dtype, cache_dtype))
    spec = AttentionSpec(
        dtype=DType(own),
        head_dim=depth[0],
        head_dim_v=depth[1],
        causal=causal,
        window_left=left,
        window_right=right,
        soft_cap=soft_cap,
        alibi=slopes == "one_sided",
        score_mod=ScoreMod(ALIBI_BOTH_SIDES) if slopes == "both_sides" else None,
        sink=sink,
        kv_cache=True,
        varlen=is_packed,
        page_size=page_size,
        kv_dtype=None if small == own else DType(small.removesuffix("fnuz")),
        kv_scale=CacheScale.HEAD if scaled else CacheScale.NONE,
    )
    return compile_kernel(
        spec,
        target=target or _target_of(small),
        query_hint=query_hint,
        group_hint=group_hint,
        heads_hint=heads_hint,
    )
