"""The parameter block of the warp-specialised kernels: which fields, in which order."""

from __future__ import annotations

from fmhagen.schedule import Schedule, Store
from fmhagen.spec import AttentionSpec

_MAP_PARAMS = (
    ("TensorMap", "q_map", "Q[B,H,Sq,d], box [TILE_M, BOX_COLUMNS]"),
    ("TensorMap", "k_map", "K[B,Hk,Sk,d], box [TILE_N, BOX_COLUMNS]"),
    ("TensorMap", "v_map", "V[B,Hk,Sk,dv], box [TILE_N, BOX_COLUMNS]"),
)
_STAGED_PARAMS = (("TensorMap", "o_map", "O[B,H,Sq,dv], box [TILE_M, BOX_COLUMNS]"),)
_DIRECT_PARAMS = (
    ("u16*", "o", "O[B,H,Sq,dv]"),
    ("i64", "o_stride_b", "elements"),
    ("i64", "o_stride_h", "elements"),
    ("i64", "o_stride_m", "elements"),
)
_COUNT_PARAMS = (
    ("f32*", "lse", "LSE[B,H,Sq], or null when it is not wanted"),
    ("f32", "scale_log2", "softmax scale * log2(e)"),
    ("i32", "causal_offset", "key m + causal_offset is the last that query m sees"),
    ("u32", "seqlen_q", "Sq"),
    ("u32", "seqlen_k", "Sk"),
    ("u32", "num_heads", "H"),
    ("u32", "heads_per_group", "H / Hk"),
    ("u32", "num_m_tiles", "ceil(Sq / TILE_M)"),
)
_DEALT_PARAMS = (("u32", "num_tiles", "num_m_tiles * H * B"),)
_SECTION_PARAMS = (
    ("u32", "heads_per_section", "heads whose tiles are dealt together; divides H * B"),
)
_SNAKE_PARAMS = (
    ("u32", "num_sections", "H * B / heads_per_section"),
    ("u32", "rounds_per_section", "ceil(heads_per_section * num_m_tiles / blocks of the grid)"),
    ("u32", "lane_shift", "heads_per_section * num_m_tiles mod blocks of the grid"),
)


def param_fields(spec: AttentionSpec, schedule: Schedule) -> tuple[tuple[str, str, str], ...]:
    """Return (ctype, name, comment) of each field, in order; see `plan.ParamField`."""
    output = _STAGED_PARAMS if schedule.store == Store.STAGED else _DIRECT_PARAMS
    fields = _MAP_PARAMS + output + _COUNT_PARAMS
    if not spec.causal:
        return fields + _DEALT_PARAMS
    return fields + _SECTION_PARAMS + (_SNAKE_PARAMS if schedule.persistent else _DEALT_PARAMS)
