"""Caches of a workload: contiguous inputs as calls over a key/value cache take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fmhagen.bench.workloads import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInputs:
    """One set of inputs.

    Attributes:
        q, k, v: tensors; K and V as pages where the spec has them, in random order.
        lengths: keys of each sequence, (B,): all that there are.
        table: which pages are whose, or None.
    """

    q: Any
    k: Any
    v: Any
    lengths: Any
    table: Any

    @property
    def arguments(self) -> dict[str, Any]:
        """Return what a kernel of fmhagen is given besides q, k and v."""
        given = {"cache_seqlens": self.lengths}
        return given if self.table is None else {**given, "block_table": self.table}


def caches_of(torch: Any, workload: Workload, sets: Sequence[Any]) -> list[CacheInputs]:
    """Return sets of contiguous inputs as caches."""
    return [_cache_of(torch, workload, *inputs) for inputs in sets]


def _cache_of(torch: Any, workload: Workload, q: Any, k: Any, v: Any) -> CacheInputs:
    lengths = torch.full((workload.batch,), workload.seqlen_k, dtype=torch.int32, device=q.device)
    size = workload.spec.page_size
    if size is None:
        return CacheInputs(q=q, k=k, v=v, lengths=lengths, table=None)
    pages = workload.batch * -(-workload.seqlen_k // size)
    place = torch.randperm(pages, device=q.device)

    def paged(x: Any) -> Any:
        rows = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, -workload.seqlen_k % size))
        made = torch.empty((pages, size, *x.shape[2:]), dtype=x.dtype, device=x.device)
        made[place] = rows.reshape(made.shape)
        return made

    table = place.to(torch.int32).reshape(workload.batch, -1)
    return CacheInputs(q=q, k=paged(k), v=paged(v), lengths=lengths, table=table)
