"""AppendPlan: a kernel that appends rows to a cache, decided; and its text."""

from __future__ import annotations

from dataclasses import dataclass

from fmhagen.appending.spec import AngleDType, AppendSpec, RowDType
from fmhagen.emission.small import assemble_small
from fmhagen.errors import UnsupportedSpecError
from fmhagen.plan.grid import GridFormula
from fmhagen.plan.params import pack_params
from fmhagen.plan.small import THREADS, SmallPlan, numbers
from fmhagen.source import Source
from fmhagen.targets import TARGETS, Target, find_target

MAX_LANES = 32  # of one row
_WORDS = {"bf16": "bf16", "fp16": "f16"}
_ANGLES = {"fp32": "float_of_bits", "bf16": "float_of_bf16", "fp16": "float_of_f16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendPlan(SmallPlan):
    """One kernel that appends rows; a tile of its grid is a block's rows."""

    SKELETON = "append"
    EMIT = "emit_append"

    spec: AppendSpec

    @property
    def element(self) -> str:
        """C type of an element of a new row."""
        return "u8" if self.spec.dtype == RowDType.BYTE else "u16"

    @property
    def cache_element(self) -> str:
        """C type of an element of the cache."""
        return "u8" if self.quantises else self.element

    @property
    def rotates(self) -> bool:
        """Whether K and Q are rotated."""
        return self.spec.rotary_dim > 0

    @property
    def interleaved(self) -> bool:
        """Whether columns 2i and 2i + 1 are a pair."""
        return self.spec.interleaved

    @property
    def has_plain_columns(self) -> bool:
        """Whether some columns of K and Q are not rotated."""
        return self.spec.rotary_dim < self.spec.head_dim

    @property
    def quantises(self) -> bool:
        """Whether rows are rounded to 8 bits."""
        return self.spec.cache_dtype is not None

    @property
    def computes(self) -> bool:
        """Whether elements become floats somewhere."""
        return self.rotates or self.quantises

    @property
    def widen_call(self) -> str:
        """The function that gives the float of 16 bits."""
        return f"float_of_{_WORDS[self.spec.dtype]}"

    @property
    def round_call(self) -> str:
        """The function that rounds two floats to 16 bits each."""
        return f"pack_{_WORDS[self.spec.dtype]}x2"

    @property
    def quantise_call(self) -> str:
        """The function that rounds two floats to 8 bits each."""
        return f"pack_{self.spec.cache_dtype}x2"

    @property
    def params_again(self) -> str:
        """The parameter block for one row: read again where it would fill the scalar registers."""
        return "reread(params)" if self.target.language == "HIP C++" else "params"

    @property
    def angle_is_word(self) -> bool:
        """Whether a cosine is 32 bits, not half of them."""
        return self.spec.angle_dtype == AngleDType.FP32

    @property
    def angle_call(self) -> str:
        """The function that gives the float of a cosine's bits."""
        return _ANGLES[self.spec.angle_dtype]

    @property
    def angle_element(self) -> str:
        """C type of a cosine."""
        return "u32" if self.angle_is_word else "u16"


def can_append(spec: AppendSpec, target: Target) -> bool:
    """Return whether a target has such a kernel: none rounds where no kernel reads 8 bits."""
    return spec.cache_dtype is None or "kv_dtype" in target.cache_features


def lower_append(spec: AppendSpec, target: Target) -> AppendPlan:
    """Decide everything that the text and the launch of a kernel need.

    Raises:
        UnsupportedSpecError: the target has no caches of 8 bits.
    """
    if not can_append(spec, target):
        limit = f"{target.name} has no kernels over caches of 8 bits"
        name = str(spec.cache_dtype)
        raise UnsupportedSpecError("cache_dtype", name, limit, "use a cache of 16 bits")
    vector, half = spec.vector, spec.rotary_dim // 2
    pairs = half // vector
    k_items = pairs + -(-(spec.head_dim - spec.rotary_dim) // (2 * vector))
    v_items = -(-spec.dv // (2 * vector))
    lanes = min(MAX_LANES, 1 << (max(k_items, v_items) - 1).bit_length())
    rows = THREADS // lanes
    params, size = pack_params(_fields(spec))
    constants = [
        ("THREADS", THREADS, "of a block"),
        ("VECTOR", vector, "elements that a lane moves at once"),
        ("ROW_BYTES", vector * spec.dtype.element_bytes, "of VECTOR elements of a new row"),
        ("ROW_WORDS", _words(vector * spec.dtype.element_bytes), "registers that hold them"),
        ("K_DEPTH", spec.head_dim, "columns of K and Q"),
        ("V_DEPTH", spec.dv, "columns of V"),
        ("K_ITEMS", k_items, "of two vectors in a row of K or Q"),
        ("V_ITEMS", v_items, "of two vectors in a row of V"),
        ("LANES_PER_ROW", lanes, "a power of two"),
        ("ROWS_PER_BLOCK", rows, "THREADS / LANES_PER_ROW"),
    ]
    if spec.rotary_dim:
        angle_bytes = min(16, vector * spec.angle_dtype.element_bytes)
        loads = vector * spec.angle_dtype.element_bytes // angle_bytes
        constants += [
            ("ROTARY_DIM", spec.rotary_dim, "columns that are rotated"),
            ("ROTARY_ITEMS", pairs, "items that are rotated: ROTARY_DIM / 2 / VECTOR"),
            ("ANGLE_BYTES", angle_bytes, "of cosines or sines that are loaded at once"),
            ("ANGLE_WORDS", _words(angle_bytes), "registers that hold them"),
            ("ANGLE_LOADS", loads, "for VECTOR cosines"),
        ]
        if not spec.interleaved:
            constants.append(("HALF", half, "columns between those of a pair: ROTARY_DIM / 2"))
    if spec.cache_dtype is not None:
        constants.append(("CACHE_WORDS", _words(vector), "registers that hold VECTOR bytes"))
    return AppendPlan(
        spec=spec,
        target=target,
        symbol=_symbol(spec, target),
        constants=numbers(constants),
        params=params,
        params_bytes=size,
        grid=GridFormula(tile_m=rows, max_blocks=target.max_blocks_x, per_compute_unit=0),
    )


def _words(count: int) -> int:
    return -(-count // 4)


def _symbol(spec: AppendSpec, target: Target) -> str:
    parts = ["append", str(spec.dtype)]
    if spec.cache_dtype is not None:
        parts.append(f"kv{spec.cache_dtype}")
    if spec.rotary_dim:
        parts.append(f"rotary{spec.rotary_dim}{'i' if spec.interleaved else 'h'}")
        if spec.angle_dtype != AngleDType.FP32:
            parts.append(str(spec.angle_dtype))
    depth = f"d{spec.head_dim}" + ("" if spec.dv == spec.head_dim else f"x{spec.dv}")
    return "_".join(parts) + f"__{depth}v{spec.vector}__{target.symbol_suffix}"


def emit_append(spec: AppendSpec, *, target: str = TARGETS[0].name) -> Source:
    """Print a kernel that appends rows to a cache as one self-contained source file."""
    return source_of(lower_append(spec, find_target(target)))


def source_of(plan: AppendPlan) -> Source:
    """Print a plan."""
    return assemble_small(plan, "_merge", "_append", *(("_quantise",) if plan.quantises else ()))


def _fields(spec: AppendSpec) -> tuple[tuple[str, str, str], ...]:
    row = "u8" if spec.dtype == RowDType.BYTE else "u16"
    cache = row if spec.cache_dtype is None else "u8"
    fields = [
        *_tensor("k", f"const {row}*", "new rows of K[B,N,HK,D]", "bhn"),
        *_tensor("v", f"const {row}*", "new rows of V[B,N,HK,DV]", "bhn"),
        *_tensor("k_cache", f"{cache}*", "K of the cache [page,slot,HK,D]", "bhn"),
        *_tensor("v_cache", f"{cache}*", "V of the cache [page,slot,HK,DV]", "bhn"),
    ]
    if spec.rotary_dim:
        angle = "u32" if spec.angle_dtype == AngleDType.FP32 else "u16"
        fields += _tensor("q", f"const {row}*", "Q[B,M,HQ,D]", "bhm")
        fields += _tensor("rotated_q", f"{row}*", "Q, rotated", "bhm")
        for name in ("cos", "sin"):
            fields.append((f"const {angle}*", name, "[positions, ROTARY_DIM / 2]"))
            fields.append(("i64", f"{name}_stride", "elements between positions"))
        fields.append(("u32", "num_positions", "rows of cos and sin"))
        fields.append(("u32", "advances", "1: row m of Q is at position L + m; 0: at L"))
        fields.append(("u32", "num_q_rows", "B * M * HQ"))
        fields.append(("u32", "num_heads", "HQ"))
        fields.append(("u32", "seqlen_q", "M"))
    if spec.cache_dtype is not None:
        for name in ("k_scale", "v_scale"):
            fields.append(("const f32*", name, "rows are divided by it: [B,HK], or null for 1"))
            fields.append(("i64", f"{name}_stride_b", "elements"))
            fields.append(("i64", f"{name}_stride_h", "elements"))
    return (
        *fields,
        ("const i32*", "block_table", "[B, pages of a sequence], or null: page b is b's"),
        ("i64", "table_stride", "elements between sequences"),
        ("const i32*", "cache_seqlens", "L[B]: keys before this call"),
        ("i32*", "new_seqlens", "L + N"),
        ("u32", "batch", "B"),
        ("u32", "seqlen_new", "N"),
        ("u32", "num_heads_kv", "HK"),
        ("u32", "num_new_rows", "B * N * HK"),
        ("u32", "page_size", "slots of a page"),
        ("u32", "capacity", "slots of a sequence"),
        ("u32", "num_pages", "pages of the cache"),
    )


def _tensor(name: str, ctype: str, comment: str, axes: str) -> list[tuple[str, str, str]]:
    strides = [("i64", f"{name}_stride_{axis}", "elements") for axis in axes]
    return [(ctype, name, comment), *strides]
