"""Caches of a workload: contiguous inputs as calls over a key/value cache take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fmhagen.bench.workloads import Workload
from fmhagen.spec import AttentionSpec, CacheScale, DType


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInputs:
    """One set of inputs.

    Attributes:
        q, k, v: tensors; K and V as pages where the spec has them, in random order.
        lengths: keys of each sequence, (B,): all that there are.
        table: which pages are whose, or None.
        scales: k_scale and v_scale, all 1, where the spec has them.
    """

    q: Any
    k: Any
    v: Any
    lengths: Any
    table: Any
    scales: dict[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, Any]:
        """Return what a kernel of fmhagen is given besides q, k and v."""
        given = {"cache_seqlens": self.lengths, **self.scales}
        return given if self.table is None else {**given, "block_table": self.table}


def caches_of(torch: Any, workload: Workload, sets: Sequence[Any]) -> list[CacheInputs]:
    """Return sets of contiguous inputs as caches."""
    return [_cache_of(torch, workload, *inputs) for inputs in sets]


def _cache_of(torch: Any, workload: Workload, q: Any, k: Any, v: Any) -> CacheInputs:
    lengths = torch.full((workload.batch,), workload.seqlen_k, dtype=torch.int32, device=q.device)
    size = workload.spec.page_size
    if size is None:
        k, v = (stored(torch, workload.spec, x) for x in (k, v))
        scales = _scales(torch, workload.spec, k)
        return CacheInputs(q=q, k=k, v=v, lengths=lengths, table=None, scales=scales)
    pages = workload.batch * -(-workload.seqlen_k // size)
    place = torch.randperm(pages, device=q.device)

    def paged(x: Any) -> Any:
        rows = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, -workload.seqlen_k % size))
        made = torch.empty((pages, size, *x.shape[2:]), dtype=x.dtype, device=x.device)
        made[place] = rows.reshape(made.shape)
        return stored(torch, workload.spec, made)

    table = place.to(torch.int32).reshape(workload.batch, -1)
    k, v = paged(k), paged(v)
    scales = _scales(torch, workload.spec, k)
    return CacheInputs(q=q, k=k, v=v, lengths=lengths, table=table, scales=scales)


def stored(torch: Any, spec: AttentionSpec, x: Any) -> Any:
    """Return a 16-bit tensor in the element type of a cache."""
    if spec.kv_dtype is None:
        return x
    if spec.kv_dtype == DType.INT8:
        return x.round().clamp(-128, 127).to(torch.int8)
    kind = "e4m3fn" if spec.kv_dtype == DType.E4M3 else "e5m2"
    if torch.version.hip:
        kind = kind.removesuffix("fn") + "fnuz"
    return x.to(getattr(torch, f"float8_{kind}"))


def _scales(torch: Any, spec: AttentionSpec, k: Any) -> dict[str, Any]:
    """Return factors of 1 of the shape that the spec asks for."""
    shapes = {
        CacheScale.TENSOR: (1,),
        CacheScale.HEAD: (k.shape[2],),
        CacheScale.TOKEN: k.shape[:3],
    }
    if spec.kv_scale == CacheScale.NONE:
        return {}
    ones = torch.ones(shapes[spec.kv_scale], dtype=torch.float32, device=k.device)
    return {"k_scale": ones, "v_scale": ones}
