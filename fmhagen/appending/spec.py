"""AppendSpec: what one kernel appends to a key/value cache, and what it rotates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fmhagen.errors import InvalidSpecError
from fmhagen.records import Record

VECTOR_BYTES = 16  # most that a lane moves at once


class RowDType(StrEnum):
    """Element type of new rows and of queries; a byte is any 8-bit type that is only copied."""

    BF16 = "bf16"
    FP16 = "fp16"
    BYTE = "byte"

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return 1 if self == RowDType.BYTE else 2


class SmallDType(StrEnum):
    """Element type of a cache that 16-bit rows are rounded to."""

    E4M3 = "e4m3"
    E5M2 = "e5m2"
    INT8 = "int8"


class AngleDType(StrEnum):
    """Element type of the cosines and sines."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return 4 if self == AngleDType.FP32 else 2


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AppendSpec(Record):
    """What one kernel appends: new rows of K and V, rotated with the rows of Q or as they are.

    Attributes:
        dtype: element type of the new rows, and of Q where it is rotated.
        cache_dtype: element type of the cache where it is not that of the rows.
        head_dim: depth of K and Q.
        head_dim_v: depth of V; None means that of K.
        rotary_dim: first columns of K and Q that are rotated; 0 means none.
        interleaved: columns 2i and 2i + 1 are a pair, else i and rotary_dim / 2 + i.
        angle_dtype: element type of the cosines and sines.
        vector: elements that a lane moves at once; all addresses and strides are multiples.

    Raises:
        InvalidSpecError: a value means nothing.
    """

    dtype: RowDType = RowDType.BF16
    cache_dtype: SmallDType | None = None
    head_dim: int = 128
    head_dim_v: int | None = None
    rotary_dim: int = 0
    interleaved: bool = False
    angle_dtype: AngleDType = AngleDType.FP32
    vector: int = 8

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        Record.__post_init__(self)
        for name, depth in (("head_dim", self.head_dim), ("head_dim_v", self.dv)):
            if depth < 1 or depth % self.vector:
                limit = f"must be a multiple of vector={self.vector}"
                raise InvalidSpecError(name, depth, limit)
        if not 0 <= self.rotary_dim <= self.head_dim or self.rotary_dim % 2:
            limit = f"must be an even number from 0 to head_dim={self.head_dim}"
            raise InvalidSpecError("rotary_dim", self.rotary_dim, limit)
        if self.rotary_dim // 2 % self.vector:
            limit = f"its half must be a multiple of vector={self.vector}"
            raise InvalidSpecError("rotary_dim", self.rotary_dim, limit)
        most = VECTOR_BYTES // self.dtype.element_bytes
        if self.vector not in (1, 2, 4, 8, 16) or self.vector > most:
            limit = f"must be a power of two up to {most}: {VECTOR_BYTES} bytes"
            raise InvalidSpecError("vector", self.vector, limit)
        if self.dtype == RowDType.BYTE and (self.rotary_dim or self.cache_dtype):
            field = "rotary_dim" if self.rotary_dim else "cache_dtype"
            limit = "bytes are copied as they are"
            hint = "give rows of 16 bits: they are rotated, then rounded"
            raise InvalidSpecError(field, getattr(self, field), limit, hint)

    @property
    def dv(self) -> int:
        """Depth of V."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v


def widest_vector(sizes: tuple[int, ...], element_bytes: int, most: int) -> int:
    """Return how many elements a lane moves at once.

    Args:
        sizes: of what must be multiples of it.
        element_bytes: of a new row.
        most: what alignment allows.
    """
    vector = 1
    while 2 * vector <= min(most, VECTOR_BYTES // element_bytes) and not any(
        size % (2 * vector) for size in sizes
    ):
        vector *= 2
    return vector
