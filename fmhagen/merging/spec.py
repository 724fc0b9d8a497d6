"""MergeSpec: what one kernel merges."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fmhagen.errors import InvalidSpecError
from fmhagen.records import Record

MAX_PARTS = 16
VECTOR_BYTES = 16  # of O that a lane reads at once


class MergeDType(StrEnum):
    """Element type of O and its parts."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return 4 if self == MergeDType.FP32 else 2


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MergeSpec(Record):
    """What one kernel merges: parts of O with their LSE.

    Attributes:
        dtype: element type of the parts and of O; LSE is fp32, and so is all arithmetic.
        head_dim_v: depth of O.
        parts: how many are merged.

    Raises:
        InvalidSpecError: a value means nothing, or is too large.
    """

    dtype: MergeDType = MergeDType.BF16
    head_dim_v: int = 128
    parts: int = 2

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        Record.__post_init__(self)
        if not 1 <= self.parts <= MAX_PARTS:
            raise InvalidSpecError("parts", self.parts, f"must be from 1 to {MAX_PARTS}")
        elements = VECTOR_BYTES // self.dtype.element_bytes
        if self.head_dim_v < 1 or self.head_dim_v % elements:
            limit = f"must be a multiple of {elements}: {VECTOR_BYTES} bytes are read at once"
            raise InvalidSpecError("head_dim_v", self.head_dim_v, limit)
