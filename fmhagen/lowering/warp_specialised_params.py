"""The parameter block of the warp-specialised kernels: which fields, in which order."""

from __future__ import annotations

from fmhagen.lowering.common import MAX_LOGIT, NUM_PAGES
from fmhagen.plan.language import Language
from fmhagen.plan.small_cache import scale_fields
from fmhagen.schedule import Copy, Schedule, Store
from fmhagen.spec import AttentionSpec

Fields = tuple[tuple[str, str, str], ...]

_MAPS: Fields = (
    ("TensorMap", "q_map", "Q[B,H,Sq,d], box [TILE_M, BOX_COLUMNS]"),
    ("TensorMap", "k_map", "K[B,Hk,Sk,d], box [TILE_N, BOX_COLUMNS]"),
    ("TensorMap", "v_map", "V[B,Hk,Sk,dv], box [TILE_N, BOX_COLUMNS]"),
)
_STAGED: Fields = (("TensorMap", "o_map", "O[B,H,Sq,dv], box [TILE_M, BOX_COLUMNS]"),)
_DIRECT: Fields = (
    ("u16*", "o", "O[B,H,Sq,dv]"),
    ("i64", "o_stride_b", "elements"),
    ("i64", "o_stride_h", "elements"),
    ("i64", "o_stride_m", "elements"),
)
_PACKED_MAPS: Fields = (
    ("TensorMap", "q_map", "Q[H,total_q,d], see q_row; box [TILE_M, BOX_COLUMNS]"),
    ("TensorMap", "k_map", "K[Hk,total_k,d], see k_row; box [TILE_N, BOX_COLUMNS]"),
    ("TensorMap", "v_map", "V[Hk,total_k,dv], likewise; box [TILE_N, BOX_COLUMNS]"),
)
_PACKED_DIRECT: Fields = (
    ("u16*", "o", "O[H,total_q,dv]"),
    ("i64", "o_stride_h", "elements"),
    ("i64", "o_stride_m", "elements"),
)
_LSE: Fields = (("f32*", "lse", "LSE[B,H,Sq], or null when it is not wanted"),)
_PACKED_LSE: Fields = (("f32*", "lse", "LSE[H,total_q], or null when it is not wanted"),)
_SCALE_LOG2: Fields = (("f32", "scale_log2", "softmax scale * log2(e)"),)
_SCALE: Fields = (("f32", "scale", "softmax scale"),)
_OFFSET: Fields = (("i32", "causal_offset", "key m + causal_offset is the last that query m sees"),)
_COUNTS: Fields = (
    ("u32", "seqlen_q", "Sq"),
    ("u32", "seqlen_k", "Sk"),
    ("u32", "num_heads", "H"),
    ("u32", "heads_per_group", "H / Hk"),
    ("u32", "num_m_tiles", "ceil(Sq / TILE_M)"),
)
_PACKED_COUNTS: Fields = (
    ("const i32*", "cu_seqlens_q", "[B + 1], first row of each sequence in Q and O, and total_q"),
    ("const i32*", "cu_seqlens_k", "[B + 1], the same in K and V"),
    ("const i32*", "seqused_q", "[B], rows in use of each sequence, or null: all"),
    ("const i32*", "seqused_k", "[B], likewise"),
    ("u32", "total_q", "rows of Q"),
    ("u32", "total_k", "rows of K"),
    ("u32", "batch", "B"),
    ("u32", "num_heads", "H"),
    ("u32", "heads_per_group", "H / Hk"),
)
_CACHE_MAPS: Fields = (
    ("TensorMap", "k_map", "K cache (d, row, head, page), box [PIECE_ROWS, BOX_COLUMNS]"),
    ("TensorMap", "v_map", "V cache, likewise"),
)
_TABLE: Fields = (
    ("const i32*", "block_table", "[B, max_pages], pages of each sequence"),
    ("i64", "table_stride", "elements from one sequence's to the next"),
)
_LENGTHS: Fields = (
    ("const i32*", "cache_seqlens", "[B], keys of each sequence, or null: capacity"),
    ("u32", "capacity", "most keys that there is room for"),
    ("u32", "batch", "B"),
    ("u32", "num_heads", "H"),
    ("u32", "heads_per_group", "H / Hk"),
)
_PACKED_ROWS: Fields = (
    ("const i32*", "cu_seqlens_q", "[B + 1], first row of each sequence in Q and O, and total_q"),
    ("const i32*", "seqused_q", "[B], rows in use of each sequence, or null: all"),
    ("u32", "total_q", "rows of Q"),
)
_SHARED: Fields = (("u32", "packed_shift", "log2 of the heads that share tiles"),)
_PARTS: Fields = (
    ("f32*", "partial_o", "O of parts [splits,B,H,Sq,dv], normalised"),
    ("f32*", "partial_lse", "their LSE in units of log2 [splits,B,H,Sq]"),
    ("u32", "splits", "parts that the keys of a sequence are cut into, at most 32"),
)
_ROWS: Fields = (("u32", "seqlen_q", "Sq"),)
_DEALT: Fields = (("u32", "num_tiles", "num_m_tiles * H * B"),)
_SECTIONS: Fields = (
    ("u32", "heads_per_section", "heads whose tiles are dealt together; divides H * B"),
)
_SNAKE: Fields = (
    ("u32", "num_sections", "H * B / heads_per_section"),
    ("u32", "rounds_per_section", "ceil(heads_per_section * num_m_tiles / blocks of the grid)"),
    ("u32", "lane_shift", "heads_per_section * num_m_tiles mod blocks of the grid"),
)
_SINKS: Fields = (("const f32*", "sinks", "[H], logits of the sinks"),)


def _cache_rows(spec: AttentionSpec) -> Fields:
    """Return the fields of K and V where lanes copy their rows."""
    ctype = "const u16*" if spec.kv_dtype is None else "const u8*"
    paged = spec.page_size is not None
    shape, outer = ("pages,PAGE_SIZE", "pages") if paged else ("B,S", "batch entries")
    rows = tuple(
        field
        for name, depth in (("k", "d"), ("v", "dv"))
        for field in (
            (ctype, name, f"{name.upper()}[{shape},Hk,{depth}]"),
            ("i64", f"{name}_stride_b", f"elements, between {outer}"),
            ("i64", f"{name}_stride_h", "elements"),
            ("i64", f"{name}_stride_n", "elements"),
        )
    )
    return (*rows, NUM_PAGES) if paged else rows


def param_fields(
    spec: AttentionSpec, schedule: Schedule, language: Language, *, offset_mask: bool
) -> Fields:
    """Return (ctype, name, comment) of each field, in order; see `plan.ParamField`."""
    scale = _SCALE_LOG2 if language.score is None else _SCALE
    own = (_SINKS if spec.sink else ()) + (MAX_LOGIT if spec.max_logit else ()) + language.fields
    shared = _SHARED if schedule.pack_heads else ()
    if spec.kv_cache:
        table = _TABLE if spec.page_size is not None else ()
        if spec.varlen:
            rows = _PACKED_MAPS[:1], _PACKED_DIRECT + _PACKED_LSE, _PACKED_ROWS
        else:
            rows = _MAPS[:1], _DIRECT + _LSE, _ROWS
        q_map, output, counts = rows
        keys = _cache_rows(spec) if schedule.copy == Copy.GATHER else _CACHE_MAPS
        own = scale_fields(spec) + own
        parts = _PARTS if schedule.split_keys else ()
        return q_map + keys + output + scale + table + _LENGTHS + shared + counts + parts + own
    if spec.varlen:
        output = _PACKED_DIRECT + _PACKED_LSE
        return _PACKED_MAPS + output + scale + _PACKED_COUNTS + shared + own
    output = _STAGED if schedule.store == Store.STAGED else _DIRECT
    # NOTE: the plain kernel has the offset, too, though it does not read it.
    plain = language.mask is None and language.score is None
    fields = _MAPS + output + _LSE + scale + (_OFFSET if offset_mask or plain else ()) + _COUNTS
    if language.mask is None:
        return fields + _DEALT + own
    return fields + _SECTIONS + (_SNAKE if schedule.persistent else _DEALT) + own
