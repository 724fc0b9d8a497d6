"""PyTorch's flex_attention: the same parameters, and functions written for it, unchanged.

A block mask is not needed: where tiles are skipped follows from the mask function itself. One that
is given, of PyTorch or a bare function, says which function that is; lists of blocks that say more
than their function are a part of the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fmhagen.dispatch import attention
from fmhagen.errors import TensorError, UnsupportedArgumentError
from fmhagen.expr.mods import MaskMod
from fmhagen.frontends.graph_import import import_in_graphs
from fmhagen.frontends.refusal import refuse_others


def flex_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict[str, Any] | None = None,
    *,
    return_aux: Any = None,
    **others: Any,
) -> Any:
    """Compute attention as PyTorch's function of this name does.

    Args:
        query: (B, H, Sq, d).
        key: (B, Hk, Sk, d).
        value: (B, Hk, Sk, dv).
        score_mod: function of (score, b, h, q_idx, kv_idx) that gives the new score.
        block_mask: a BlockMask of PyTorch for these lengths, or a mask_mod: a function of
            (b, h, q_idx, kv_idx) that gives whether a key is visible.
        scale: None means 1 / sqrt(d).
        enable_gqa: allow fewer heads of keys than of queries.
        return_lse: also give LSE (B, H, Sq), natural logarithm.
        kernel_options: must be None or empty: these are options of another kernel.
        return_aux: an AuxRequest of PyTorch: its lse is another way to ask for LSE.
        others: further parameters of PyTorch, each refused unless it asks for nothing.

    Raises:
        TensorError: a tensor does not fit, or the block mask was made for other lengths.
        TraceError: a function does what no kernel can; names its line.
        UnsupportedArgumentError: another argument that fmhagen does not support.
    """
    neutral: dict[str, Any] = {"kernel_options": (None, {})}
    refuse_others("flex_attention", {"kernel_options": kernel_options, **others}, neutral)
    if getattr(return_aux, "max_scores", False):
        limit = "the kernels keep no largest score of a row"
        hint = "ask for lse alone; fmhagen.attention gives the largest of a head"
        raise UnsupportedArgumentError("return_aux", str(return_aux), limit, hint)
    if len(query.shape) != 4:
        raise TensorError("query", tuple(query.shape), "must have four dimensions (b, h, s, d)")
    if not enable_gqa and query.shape[1] != key.shape[1]:
        limit = f"must have the {query.shape[1]} heads of query"
        raise TensorError("key", tuple(key.shape), limit, "use enable_gqa=True for grouped heads")
    wants_lse = return_lse or getattr(return_aux, "lse", False)
    import_in_graphs()
    found = attention(
        *(query, key, value),
        mask_mod=_mask_mod(block_mask, query, key),
        score_mod=score_mod,
        scale=scale,
        layout="bhsd",
        return_lse=wants_lse,
    )
    if return_aux is None:
        return found
    from torch.nn.attention.flex_attention import AuxOutput

    o, lse = found if wants_lse else (found, None)
    return o, AuxOutput(lse=lse)


def _mask_mod(block_mask: Any, query: Any, key: Any) -> Any:
    """Return the function of a block mask, or None where it hides nothing."""
    if block_mask is None or isinstance(block_mask, MaskMod):
        return block_mask
    function = getattr(block_mask, "mask_mod", None)
    if function is None:
        return block_mask  # a bare function
    lengths = getattr(block_mask, "seq_lengths", None)
    wanted = int(query.shape[2]), int(key.shape[2])
    if lengths is not None and tuple(map(int, lengths)) != wanted:
        limit = f"was made for (Sq, Sk) = {tuple(map(int, lengths))}, but the call has {wanted}"
        raise TensorError("block_mask", type(block_mask).__name__, limit, "make one for the call")
    if not hasattr(block_mask, "kv_num_blocks"):
        return function
    from fmhagen.frontends.block_lists import whole_mask

    return whole_mask(block_mask)
