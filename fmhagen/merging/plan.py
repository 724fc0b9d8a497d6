"""MergePlan: a kernel that merges parts, decided; and its text."""

from __future__ import annotations

from dataclasses import dataclass

from fmhagen.emission.small import assemble_small
from fmhagen.merging.spec import VECTOR_BYTES, MergeDType, MergeSpec
from fmhagen.plan.grid import GridFormula
from fmhagen.plan.params import pack_params
from fmhagen.plan.small import THREADS, SmallPlan, numbers
from fmhagen.source import Source
from fmhagen.targets import TARGETS, Target, find_target

MAX_LANES = 32  # of one row: shuffles reach as far on every target
_ELEMENTS = {"bf16": "u16", "fp16": "u16", "fp32": "f32"}
_WORDS = {"bf16": "bf16", "fp16": "f16", "fp32": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan(SmallPlan):
    """One kernel that merges parts; a tile of its grid is a block's rows."""

    SKELETON = "merge_states"
    EMIT = "emit_merge"

    spec: MergeSpec

    @property
    def parts(self) -> tuple[int, ...]:
        """The numbers of the parts."""
        return tuple(range(self.spec.parts))

    @property
    def is_fp32(self) -> bool:
        """Whether an element is a register, not half of one."""
        return self.spec.dtype == MergeDType.FP32

    @property
    def element(self) -> str:
        """C type of an element."""
        return _ELEMENTS[self.spec.dtype]

    @property
    def widen_call(self) -> str:
        """The function that gives the float of 16 bits."""
        return f"float_of_{_WORDS[self.spec.dtype]}"

    @property
    def round_call(self) -> str:
        """The function that rounds two floats to 16 bits each."""
        return f"pack_{_WORDS[self.spec.dtype]}x2"


def lower_merge(spec: MergeSpec, target: Target) -> MergePlan:
    """Decide everything that the text and the launch of a kernel need."""
    elements = VECTOR_BYTES // spec.dtype.element_bytes
    vectors = spec.head_dim_v // elements
    lanes = min(MAX_LANES, 1 << (vectors - 1).bit_length())
    rows = THREADS // lanes
    params, size = pack_params(_fields(spec))
    symbol = f"merge_states_{spec.dtype}__p{spec.parts}d{spec.head_dim_v}__{target.symbol_suffix}"
    return MergePlan(
        spec=spec,
        target=target,
        symbol=symbol,
        constants=numbers(
            (
                ("PARTS", spec.parts, "sets of keys"),
                ("THREADS", THREADS, "of a block"),
                ("ELEMENTS", elements, "of O that a lane reads at once: 16 bytes"),
                ("VECTORS", vectors, "of ELEMENTS in a row"),
                ("LANES_PER_ROW", lanes, "a power of two"),
                ("ROWS_PER_BLOCK", rows, "THREADS / LANES_PER_ROW"),
            )
        ),
        params=params,
        params_bytes=size,
        grid=GridFormula(tile_m=rows, max_blocks=target.max_blocks_x, per_compute_unit=0),
    )


def emit_merge(spec: MergeSpec, *, target: str = TARGETS[0].name) -> Source:
    """Print a kernel that merges parts as one self-contained source file."""
    plan = lower_merge(spec, find_target(target))
    return source_of(plan)


def source_of(plan: MergePlan) -> Source:
    """Print a plan."""
    return assemble_small(plan, "_merge")


def _fields(spec: MergeSpec) -> tuple[tuple[str, str, str], ...]:
    element = _ELEMENTS[spec.dtype]
    fields = [*_tensor("o", f"{element}*", "O[B,H,M,dv]")]
    fields += _tensor("lse", "f32*", "LSE[B,H,M], or null when it is not wanted")
    for part in range(spec.parts):
        fields += _tensor(f"o_{part}", f"const {element}*", "a part of O")
        fields += _tensor(f"lse_{part}", "const f32*", "its LSE")
    return (
        *fields,
        ("u32", "num_rows", "B * H * M"),
        ("u32", "num_heads", "H"),
        ("u32", "seqlen_q", "M"),
        ("f32", "lse_to_log2", "log2(base of LSE)"),
        ("f32", "log2_to_lse", "1 / lse_to_log2"),
    )


def _tensor(name: str, ctype: str, comment: str) -> list[tuple[str, str, str]]:
    strides = [("i64", f"{name}_stride_{axis}", "elements") for axis in "bhm"]
    return [(ctype, name, comment), *strides]
