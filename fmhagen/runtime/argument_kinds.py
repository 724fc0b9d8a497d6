"""Which tensors with keywords of their own there are besides q, k and v, and their shapes."""

from __future__ import annotations

from dataclasses import dataclass

from fmhagen.spec import AttentionSpec, CacheScale


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One tensor with a keyword of its own that a kernel reads besides q, k and v.

    Attributes:
        name: its keyword, and the parameter field of its address.
        dtype: the element type that the kernel reads.
        converts: element types that are converted to it.
        sizes: its shape in words, such as ("H",).
        required: whether a call must give it; else its address may be 0.
        has_rows: whether its first axis may have any stride, which the kernel then reads.
        is_judged_later: whether its shape and strides are left to who knows more of the call.
        is_updated: whether the kernel writes it, so that no copy can stand in its place.
    """

    name: str
    dtype: str
    converts: tuple[str, ...]
    sizes: tuple[str, ...]
    required: bool
    has_rows: bool = False
    is_updated: bool = False
    is_judged_later: bool = False

    @property
    def words(self) -> str:
        """The shape, as Python writes it."""
        return ", ".join(self.sizes) + ("," if len(self.sizes) == 1 else "")


def _lengths(name: str, sizes: str, *, required: bool) -> Argument:
    return Argument(
        name=name, dtype="int32", converts=("int64",), sizes=(sizes,), required=required
    )


SINKS = Argument(name="sinks", dtype="fp32", converts=("bf16", "fp16"), sizes=("H",), required=True)
MAX_LOGIT = "max_logit"
"""The argument that a kernel writes."""
MAX_LOGIT_TENSOR = Argument(
    name=MAX_LOGIT, dtype="fp32", converts=(), sizes=("H",), required=False, is_updated=True
)
SCALES = tuple(
    Argument(name=name, dtype="fp32", converts=(), sizes=(), required=False, is_judged_later=True)
    for name in ("k_scale", "v_scale")
)
"""Factors of an 8-bit cache."""
PACKED = (
    _lengths("cu_seqlens_q", "B + 1", required=True),
    _lengths("cu_seqlens_k", "B + 1", required=True),
    _lengths("seqused_q", "B", required=False),
    _lengths("seqused_k", "B", required=False),
)
MOST = {"max_seqlen_q": 2**31 - 1, "max_seqlen_k": 2**31 - 1, "num_splits": 1024}
"""The largest value of each number that a call may give."""
_CACHED = (
    _lengths("cu_seqlens_q", "B + 1", required=True),
    _lengths("seqused_q", "B", required=False),
)


def of_cache(spec: AttentionSpec) -> tuple[Argument, ...]:
    """Return what a kernel reads of a cache, and of queries that are packed over it."""
    is_paged = spec.page_size is not None
    table = Argument(
        name="block_table",
        dtype="int32",
        converts=("int64",),
        sizes=("B", "max_pages"),
        required=True,
        has_rows=True,
    )
    return (
        *(_CACHED if spec.varlen else ()),
        _lengths("cache_seqlens", "B", required=is_paged),
        *((table,) if is_paged else ()),
        *(SCALES if spec.kv_scale != CacheScale.NONE else ()),
    )
