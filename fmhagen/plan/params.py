"""What a plan is made of: constants, parameters, tensor maps, shared memory, instructions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamField:
    """One field of the packed parameter block.

    Attributes:
        ctype: C type: TensorMap, a pointer ("u16*"), i64, i32, u32 or f32.
        name: name in C and key of the launch value that fills it. The vocabulary is
            `q_map k_map v_map o_map` (tensor maps); `q k v o lse` (addresses, lse may be null);
            `{q,k,v,o}_stride_{b,h,m}` (elements; `_n` for the rows of k and v);
            `batch num_heads heads_per_group seqlen_q seqlen_k num_m_tiles num_tiles
            heads_per_section num_sections rounds_per_section lane_shift` (counts, see
            `runtime/launch_values.py`); `causal_offset` (off of the causal mask); `scale_log2`, and
            `scale` itself. Of packed sequences: `cu_seqlens_q cu_seqlens_k seqused_q seqused_k`
            (addresses, the last two may be null), `total_q total_k` (rows of the tensors, at
            least 1), `seqlen_q seqlen_k` (the most rows of a sequence), `num_tiles` (at most so
            many). `sinks` (address).
        offset_bytes: place in the block.
        size_bytes: bytes taken.
        comment: shape or unit.
    """

    ctype: str
    name: str
    offset_bytes: int
    size_bytes: int
    comment: str


_ALIGNMENT_BYTES = {"TensorMap": 64}
_SIZE_BYTES = {"TensorMap": 128, "i64": 8, "i32": 4, "u32": 4, "f32": 4}


def pack_params(fields: tuple[tuple[str, str, str], ...]) -> tuple[tuple[ParamField, ...], int]:
    """Lay out (ctype, name, comment) triples by the C rules of both ABIs.

    Returns:
        The fields with their offsets, and the size of the block in bytes.
    """
    packed: list[ParamField] = []
    offset = 0
    largest = 1
    for ctype, name, comment in fields:
        size = 8 if ctype.endswith("*") else _SIZE_BYTES[ctype]
        align = _ALIGNMENT_BYTES.get(ctype, size)
        largest = max(largest, align)
        offset = -(-offset // align) * align
        packed.append(
            ParamField(
                ctype=ctype, name=name, offset_bytes=offset, size_bytes=size, comment=comment
            )
        )
        offset += size
    return tuple(packed), -(-offset // largest) * largest


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMapPlan:
    """How a tensor map is encoded: of a (d, row, head, batch) tensor, or of a cache.

    Attributes:
        field: the parameter field that holds it, such as "k_map".
        tensor: the tensor described: "q", "k", "v" or "o".
        box: elements of one copy along (d, row, head, batch); of a cache along (column, row, box of
            columns, head, page).
        swizzle_bytes: 128, 64, 32, or 0 for none.
        promotion_bytes: how much of a line the second-level cache fetches with a row: 256, or 0 for
            no more than is asked for.
        packs_heads: a box has as many rows, of the heads of a group, query by query: along (d,
            head, row, batch) the launcher makes it (columns, heads, rows / heads, ..).
    """

    field: str
    tensor: str
    box: tuple[int, ...]
    swizzle_bytes: int
    promotion_bytes: int = 256
    packs_heads: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRegion:
    """One row of the shared-memory map.

    Attributes:
        name: constant whose value is the offset.
        offset_bytes: from the block's shared-memory base.
        size_bytes: bytes of the whole region.
        comment: contents; for a barrier who arrives, how often, and who waits.
    """

    name: str
    offset_bytes: int
    size_bytes: int
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One `constexpr` of the emitted file; one that joins stands on the line of the one before."""

    ctype: str
    name: str
    value: int | float
    comment: str
    joins: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixShape:
    """One warpgroup matrix instruction that the kernel issues.

    Attributes:
        n: columns of the accumulator.
        dtype: "bf16" or "f16".
        form: "ss" (A and B in shared memory), "rs" (A in registers), "rs_t" (B transposed).
    """

    n: int
    dtype: str
    form: str
