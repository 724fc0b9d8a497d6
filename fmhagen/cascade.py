"""Cascade: decoding of sequences that share a prefix, whose keys are read once for all of them.

    O, LSE = merge(attention of all query rows over the prefix,
                   attention of each sequence's rows over the rest of its keys)

The first is one sequence with all the rows of the batch, the second the batch as it is. The merge
is exact: what differs from one call over all keys is the rounding of the two partial O.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fmhagen.api import compile_kernel
from fmhagen.errors import UnsupportedSpecError
from fmhagen.merging import merge_states
from fmhagen.paging import CascadeTables
from fmhagen.spec import AttentionSpec, Layout


class CascadeKernel:
    """Attention over a paged cache in two parts: a shared prefix, and the rest.

    Attributes:
        spec: what is computed in all.
        prefix: the kernel over the prefix, which every query row sees whole.
        rest: the kernel over the rest, with the mask.
    """

    def __init__(self, spec: AttentionSpec, **options: Any) -> None:
        """Compile both kernels.

        Args:
            spec: what to compute, over a paged cache.
            options: as `compile_kernel` takes them: device, target, emulator and so on.

        Raises:
            UnsupportedSpecError: the spec does not fall into two parts, or the target does not
                support it.
        """
        _check(spec)
        self.spec = spec
        # Both take (B, rows, heads, depth): the rows of a batch are then rows of one sequence.
        self.rest = compile_kernel(dataclasses.replace(spec, layout=Layout.BSHD), **options)
        # NOTE: a sink counts once, with the rest.
        unmasked = dataclasses.replace(spec, layout=Layout.BSHD, causal=False, sink=False)
        self.prefix = compile_kernel(unmasked, **options)

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        tables: CascadeTables,
        *,
        scale: float | None = None,
        sinks: Any = None,
        return_lse: bool = False,
    ) -> Any:
        """Compute O = softmax(scale * Q K^T + mask) V on the current stream of q's device.

        Args:
            q: (B, Sq, H, d) in the spec's layout.
            k: pages of keys, as for a kernel of the spec.
            v: pages of values.
            tables: of the batch, as `PagedKVCache.cascade` gives them for Sq queries, in the
                framework of q.
            scale: softmax scale of this call; None means the spec's.
            sinks: with spec.sink, one logit a query head, (H,).
            return_lse: also give LSE, (B, H, Sq) in fp32, natural logarithm.

        Returns:
            O, or (O, LSE).

        Raises:
            TensorError: a tensor does not fit; names it, its value and the limit.
        """
        heads_first = self.spec.layout == "bhsd"
        rows_first = q.swapaxes(1, 2) if heads_first else q
        rest = tables.rest
        extras: dict[str, Any] = {} if sinks is None else {"sinks": sinks}
        o, lse = self.rest(
            rows_first,
            k,
            v,
            block_table=rest.block_table,
            cache_seqlens=rest.cache_seqlens,
            scale=scale,
            return_lse=True,
            **extras,
        )
        if tables.prefix_length:
            batch, rows, heads, depth = rows_first.shape
            prefix_o, prefix_lse = self.prefix(
                rows_first.reshape(1, batch * rows, heads, depth),
                k,
                v,
                block_table=tables.prefix.block_table,
                cache_seqlens=tables.prefix.cache_seqlens,
                scale=scale,
                return_lse=True,
            )
            prefix_o = prefix_o.reshape(o.shape)
            prefix_lse = prefix_lse.reshape(heads, batch, rows).swapaxes(0, 1)
            o, lse = merge_states(
                (prefix_o, o), (prefix_lse, lse), out=o, out_lse=lse, target=self.rest.target.name
            )
        o = o.swapaxes(1, 2) if heads_first else o
        return (o, lse) if return_lse else o


def _check(spec: AttentionSpec) -> None:
    """Refuse what makes a prefix differ from query row to query row."""
    hint = "use one kernel over all keys"
    if spec.page_size is None:
        limit = "a shared prefix lies in shared pages"
        raise UnsupportedSpecError("page_size", None, limit, "give the spec a page_size")
    for field, plain in (
        ("window_left", None),
        ("window_right", None),
        ("alibi", False),
        ("mask_mod", None),
        ("score_mod", None),
    ):
        value = getattr(spec, field)
        if value != plain:
            limit = "keys of a prefix must mean the same to every query row of the batch"
            raise UnsupportedSpecError(field, value, limit, hint)
    if spec.varlen:
        limit = "all sequences have as many query rows here"
        raise UnsupportedSpecError("varlen", True, limit, hint)
    if spec.max_logit:
        limit = "a cascade gives O and LSE alone"
        raise UnsupportedSpecError("max_logit", True, limit, hint)
    if spec.causal and spec.anchor == "top_left":
        limit = "query rows must stand behind the prefix"
        raise UnsupportedSpecError("anchor", str(spec.anchor), limit, "use bottom_right")
