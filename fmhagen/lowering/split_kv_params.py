"""The parameter block of the kernels over a key/value cache: which fields, in which order."""

from __future__ import annotations

from fmhagen.lowering.common import MAX_LOGIT, NUM_PAGES
from fmhagen.plan.small_cache import scale_fields
from fmhagen.schedule import Copy, Schedule
from fmhagen.spec import AttentionSpec, CacheScale

_MAPS = (
    ("TensorMap", "k_map", "K cache, boxes of BOX_ROWS x 64"),
    ("TensorMap", "v_map", "V cache, boxes of BOX_ROWS x 64"),
)


def _pointers(spec: AttentionSpec) -> tuple[tuple[str, str, str], ...]:
    paged = spec.page_size is not None
    ctype = "const u16*" if spec.kv_dtype is None else "const u8*"
    outer = "pages" if paged else "batch entries"
    shape = "pages,PAGE_SIZE" if paged else "B,S"
    return tuple(
        field
        for name in ("k", "v")
        for field in (
            (ctype, name, f"{name.upper()}[{shape},Hk,d{'' if name == 'k' else 'v'}]"),
            ("i64", f"{name}_stride_b", f"elements, between {outer}"),
            ("i64", f"{name}_stride_h", "elements"),
            ("i64", f"{name}_stride_n", "elements"),
        )
    )


_TABLE = (
    ("const i32*", "block_table", "pages of each sequence [B,max_pages]"),
    ("i64", "table_stride", "elements from one sequence's to the next"),
)
_REST = (
    ("const u16*", "q", "Q[B,Sq,H,d]"),
    ("i64", "q_stride_b", "elements"),
    ("i64", "q_stride_m", "elements"),
    ("i64", "q_stride_h", "elements"),
    ("u16*", "o", "O[B,Sq,H,dv]"),
    ("i64", "o_stride_b", "elements"),
    ("i64", "o_stride_m", "elements"),
    ("i64", "o_stride_h", "elements"),
    ("f32*", "lse", "LSE[B,H,Sq], or null when it is not wanted"),
    ("f32*", "partial_o", "O of parts [slot,Hk,G * Sq,dv], normalised"),
    ("f32*", "partial_lse", "their LSE in units of log2 [slot,Hk,G * Sq]"),
    (
        "const i32*",
        "cache_seqlens",
        "keys that each sequence has [B], or null: all have `capacity`",
    ),
    ("f32", "scale_log2", "softmax scale * log2(e)"),
    ("u32", "batch", "B"),
    ("u32", "num_heads", "H"),
    ("u32", "heads_per_group", "G = H / Hk"),
    ("u32", "seqlen_q", "Sq"),
    ("u32", "row_tiles", "ceil(G * Sq / TILE_M)"),
    ("u32", "capacity", "most keys that a sequence can have"),
    ("u32", "num_groups", "groups of blocks that share the steps of all sequences"),
    ("u32", "items", "sequences or boundaries of shares that the second kernel looks at"),
    ("u32", "row_warps", "warps that add up one row: a divisor of COMBINE_WARPS"),
)


_CUT = (
    ("u32", "splits", "equal parts of a sequence, where sequences are cut so"),
    ("u32", "always_even", "1: sequences are always cut into `splits` equal parts"),
    ("u32", "items_are_sequences", "1: the second kernel looks at sequences, else at shares"),
)
_INVARIANT_CUT = (("u32", "splits", "most parts that a sequence can have"),)


def param_fields(spec: AttentionSpec, schedule: Schedule) -> tuple[tuple[str, str, str], ...]:
    """Return (ctype, name, comment) of each field, in order; see `plan.ParamField`."""
    paged = spec.page_size is not None
    # The copy engine gives zeros for a page that there is not; what lanes read is asked for.
    asks = paged and (schedule.copy != Copy.BULK or spec.kv_scale == CacheScale.TOKEN)
    pages = _TABLE + ((NUM_PAGES,) if asks else ()) if paged else ()
    keys = _MAPS if schedule.copy == Copy.BULK else _pointers(spec)
    cut = _INVARIANT_CUT if spec.batch_invariant else _CUT
    sinks = (("const f32*", "sinks", "logits without a value [H]"),) if spec.sink else ()
    own = sinks + (MAX_LOGIT if spec.max_logit else ())
    return (*keys, *pages, *_REST, *cut, *scale_fields(spec), *own)
