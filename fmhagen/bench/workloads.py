"""Workloads: what is timed, and the suites of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fmhagen.errors import InvalidSpecError
from fmhagen.records import closest
from fmhagen.spec import AttentionSpec, DType

TOKENS = 16384
HIDDEN = 2048
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
MASKS = ("full", "causal")
MACHINE_BALANCE = 150  # operations in the time that a byte takes from memory, about
COLD_BYTES = 160e6  # of keys and values: no cache of a chip holds them
MOST_SETS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One attention call with all its sizes.

    Attributes:
        spec: what is computed.
        batch: sequences.
        heads: query heads.
        heads_kv: key and value heads.
        seqlen_q: query rows of a sequence.
        seqlen_k: keys of a sequence.
    """

    spec: AttentionSpec
    batch: int
    heads: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int

    def __post_init__(self) -> None:
        """Refuse sizes that no call has.

        Raises:
            InvalidSpecError: names the size.
        """
        for name in ("batch", "heads", "heads_kv", "seqlen_q", "seqlen_k"):
            if getattr(self, name) < 1:
                raise InvalidSpecError(name, getattr(self, name), "must be at least 1")
        if self.heads % self.heads_kv:
            limit = f"must divide heads={self.heads}"
            raise InvalidSpecError("heads_kv", self.heads_kv, limit)

    @property
    def pairs(self) -> float:
        """Visible (query, key) pairs of one head; a causal square counts as its half."""
        q, k = self.seqlen_q, self.seqlen_k
        if not self.spec.causal:
            return float(q * k)
        if self.spec.anchor == "top_left":
            return q * q / 2 if q <= k else q * k - k * k / 2
        return q * k - q * q / 2 if q <= k else k * k / 2

    @property
    def flops(self) -> float:
        """Operations of the forward pass over the visible pairs."""
        return 2.0 * self.batch * self.heads * self.pairs * (self.spec.d + self.spec.dv)

    @property
    def cache_bytes(self) -> float:
        """Bytes of keys and values that a call over a cache reads."""
        spec = self.spec
        element = 2 if spec.kv_dtype is None else 1
        rows = self.batch * self.seqlen_k * self.heads_kv
        return float(rows * (spec.d + spec.dv) * element)

    @property
    def work(self) -> float:
        """Operations, or those that fit in the time in which memory is read."""
        if not self.spec.kv_cache:
            return self.flops
        return max(self.flops, self.cache_bytes * MACHINE_BALANCE)

    @property
    def is_bound_by_memory(self) -> bool:
        """Whether a call waits for its cache rather than for operations."""
        return self.spec.kv_cache and self.work > self.flops

    @property
    def input_sets(self) -> int:
        """Sets of tensors that calls rotate over, so that no cache holds what they read."""
        if not self.spec.kv_cache:
            return 3
        return max(3, min(MOST_SETS, int(COLD_BYTES // self.cache_bytes)))

    @property
    def mask(self) -> str:
        """Return "causal" or "full"."""
        return "causal" if self.spec.causal else "full"

    @property
    def name(self) -> str:
        """Return a short name, such as "bf16 d128 causal b4 h16 s4096"."""
        spec = self.spec
        depth = f"d{spec.d}" if spec.dv == spec.d else f"d{spec.d}/{spec.dv}"
        heads = (
            f"h{self.heads}" if self.heads == self.heads_kv else f"h{self.heads}/{self.heads_kv}"
        )
        length = f"s{self.seqlen_q}"
        if self.seqlen_q != self.seqlen_k:
            length += f"/{self.seqlen_k}"
        if spec.kv_cache:
            length += " cache" if spec.page_size is None else f" page{spec.page_size}"
            length += "" if spec.kv_dtype is None else f" {spec.kv_dtype}"
            length += "" if spec.kv_scale == "none" else f" scale {spec.kv_scale}"
        return f"{spec.dtype} {depth} {self.mask} b{self.batch} {heads} {length}"

    def to_dict(self) -> dict[str, Any]:
        """Return the workload as JSON-ready data."""
        return {
            "name": self.name,
            "spec": self.spec.to_dict(defaults=True),
            "batch": self.batch,
            "heads": self.heads,
            "heads_kv": self.heads_kv,
            "seqlen_q": self.seqlen_q,
            "seqlen_k": self.seqlen_k,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Workload:
        """Build a workload from `to_dict`'s data."""
        sizes = {n: data[n] for n in ("batch", "heads", "heads_kv", "seqlen_q", "seqlen_k")}
        return cls(spec=AttentionSpec.from_dict(data["spec"]), **sizes)


def square(
    spec: AttentionSpec, seqlen: int, *, tokens: int = TOKENS, hidden: int = HIDDEN
) -> Workload:
    """Return self-attention over `tokens` tokens in all, with heads that fill the hidden size."""
    heads = max(1, hidden // spec.d)
    return Workload(
        spec=spec,
        batch=max(1, tokens // seqlen),
        heads=heads,
        heads_kv=heads,
        seqlen_q=seqlen,
        seqlen_k=seqlen,
    )


def grid(
    head_dims: tuple[int, ...],
    masks: tuple[str, ...],
    lengths: tuple[int, ...],
    *,
    dtype: str = "bf16",
    tokens: int = TOKENS,
    hidden: int = HIDDEN,
) -> tuple[Workload, ...]:
    """Return the product of head dims, masks and lengths.

    Raises:
        InvalidSpecError: a mask is neither "full" nor "causal".
    """
    for mask in masks:
        if mask not in MASKS:
            raise InvalidSpecError("mask", mask, "must be full or causal", closest(mask, MASKS))
    return tuple(
        square(
            AttentionSpec.from_dict({"dtype": dtype, "head_dim": d, "causal": mask == "causal"}),
            seqlen,
            tokens=tokens,
            hidden=hidden,
        )
        for d in head_dims
        for mask in masks
        for seqlen in lengths
    )


def grouped() -> tuple[Workload, ...]:
    """Return grouped heads 32/8 and 64/8, head_dim 128, causal, 1k to 32k, batch 1 to 8."""
    spec = AttentionSpec(causal=True)
    return tuple(
        Workload(spec=spec, batch=batch, heads=heads, heads_kv=8, seqlen_q=length, seqlen_k=length)
        for heads in (32, 64)
        for length, batch in ((1024, 8), (4096, 1), (4096, 4), (8192, 1), (16384, 1), (32768, 1))
    )


def latent() -> tuple[Workload, ...]:
    """Return head dims (192, 128), 16 heads, at 4k and 16k, full and causal."""
    return tuple(
        Workload(
            spec=AttentionSpec(head_dim=192, head_dim_v=128, causal=causal),
            batch=TOKENS // length,
            heads=16,
            heads_kv=16,
            seqlen_q=length,
            seqlen_k=length,
        )
        for causal in (False, True)
        for length in (4096, 16384)
    )


def host() -> tuple[Workload, ...]:
    """Return the small call that host time is measured with."""
    return (square(AttentionSpec(causal=True), 256, tokens=256, hidden=512),)


DECODE_SHAPES = ((1, 1024), (1, 8192), (1, 128 * 1024), (8, 32768), (64, 8192), (256, 2048))
"""(batch, keys of a sequence) from one short sequence to many, and as many keys as memory holds."""


def cached(
    spec: AttentionSpec, shapes: Iterable[tuple[int, int]], seqlen_q: int = 1
) -> tuple[Workload, ...]:
    """Return new queries over caches of (batch, keys of a sequence), heads 32/8."""
    return tuple(
        Workload(spec=spec, batch=batch, heads=32, heads_kv=8, seqlen_q=seqlen_q, seqlen_k=length)
        for batch, length in shapes
    )


def decode() -> tuple[Workload, ...]:
    """Return one new query over caches of 16 and 8 bits, contiguous and in pages of 16 and 64.

    Heads 32/8, 128/8 and 8/1.
    """
    return tuple(
        Workload(
            spec=AttentionSpec(kv_cache=True, page_size=page_size, kv_dtype=kv_dtype),
            batch=batch,
            heads=heads,
            heads_kv=heads_kv,
            seqlen_q=1,
            seqlen_k=length,
        )
        for kv_dtype in (None, DType.E4M3)
        for page_size in (None, 16, 64)
        for heads, heads_kv in ((32, 8), (128, 8), (8, 1))
        for batch, length in DECODE_SHAPES
    )


def prefill() -> tuple[Workload, ...]:
    """Return chunks of prompts over caches, heads 32/8, causal, contiguous and in pages."""
    return tuple(
        Workload(
            spec=AttentionSpec(kv_cache=True, page_size=page_size, causal=True),
            batch=batch,
            heads=32,
            heads_kv=8,
            seqlen_q=rows,
            seqlen_k=keys,
        )
        for page_size in (None, 1, 16, 64)
        for batch, rows, keys in (
            (1, 2048, 2048),
            (1, 2048, 32768),
            (1, 8192, 32768),
            (8, 512, 8192),
            (32, 64, 4096),
            (32, 128, 4096),
        )
    )


SUITES = ("forward", "quick", "gqa", "latent", "decode", "prefill", "host")


def suite(name: str) -> tuple[Workload, ...]:
    """Return the workloads of a suite.

    Raises:
        InvalidSpecError: there is no such suite.
    """
    if name == "forward":
        return grid((64, 128, 256), MASKS, LENGTHS)
    if name == "quick":
        return grid((64, 128), MASKS, (1024, 16384))
    if name == "gqa":
        return grouped()
    if name == "latent":
        return latent()
    if name == "decode":
        return decode()
    if name == "prefill":
        return prefill()
    if name == "host":
        return host()
    limit = "must be one of " + ", ".join(SUITES)
    raise InvalidSpecError("suite", name, limit, closest(name, SUITES))
