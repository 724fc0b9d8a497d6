"""PyTorch's scaled_dot_product_attention: the same parameters with the same meaning.

`is_causal` is anchored top-left, as there. A row that sees no key is 0 and never NaN.
"""

from __future__ import annotations

import math
from typing import Any

from fmhagen.dispatch import attention
from fmhagen.errors import TensorError, UnsupportedArgumentError
from fmhagen.frontends.graph_import import import_in_graphs
from fmhagen.frontends.refusal import refuse_others
from fmhagen.runtime.tensors import view

_MASK = "attn_mask: bool[4]; attn_mask[b, h, q_idx, kv_idx]"
_BIAS = "attn_mask: {}[4]; score + attn_mask[b, h, q_idx, kv_idx]"
_BIAS_TYPES = {"fp32": "f32", "fp64": "f32", "fp16": "f16", "bf16": "bf16"}


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Compute attention as PyTorch's function of this name does.

    Args:
        query: (..., H, Sq, d), with any number of batch axes in front, also none, or (Sq, d).
        key: (..., Hk, Sk, d), with the same batch axes.
        value: (..., Hk, Sk, dv).
        attn_mask: bool, true where a key is visible, or a float that is added to the scores;
            broadcast to (..., H, Sq, Sk), and read in place; copied only where it has several
            batch axes, and repeats along some of them alone.
        dropout_p: must be 0.
        is_causal: hide keys right of the diagonal, which begins top-left; not with attn_mask.
        scale: None means 1 / sqrt(d).
        enable_gqa: allow fewer heads of keys than of queries.

    Raises:
        UnsupportedArgumentError: dropout.
        TensorError: a tensor does not fit.
    """
    refuse_others("scaled_dot_product_attention", {"dropout_p": dropout_p}, {"dropout_p": 0.0})
    if is_causal and attn_mask is not None:
        limit = "must be False where attn_mask is given"
        raise UnsupportedArgumentError("is_causal", True, limit, "put the diagonal into the mask")
    shape = tuple(query.shape)
    batch = shape[:-3]
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        own = tuple(tensor.shape)
        if len(own) < 2 or len(own) != len(shape) or own[:-3] != batch:
            limit = "must be (..., H, S, d)" if name == "query" else "must have the axes of query"
            hint = f"query is {shape}: give all three the same batch axes"
            raise TensorError(name, own, limit, hint)
    if attn_mask is not None:
        attn_mask = _with_four_axes(attn_mask, query, key)
    query, key, value = _folded(query), _folded(key), _folded(value)
    if not enable_gqa and query.shape[1] != key.shape[1]:
        limit = f"must have the {query.shape[1]} heads of query"
        raise TensorError("key", tuple(key.shape), limit, "use enable_gqa=True for grouped heads")
    options: dict[str, Any] = {"causal": is_causal, "anchor": "top_left"}
    if attn_mask is not None:
        options = mask_options(attn_mask)
    import_in_graphs()
    o = attention(query, key, value, scale=scale, layout="bhsd", **options)
    return o if len(batch) == 1 else o.reshape((*shape[:-1], o.shape[-1]))


def _folded(tensor: Any) -> Any:
    """Return a tensor with its batch axes as one, (B, H, S, d): a view where strides allow."""
    shape = tuple(tensor.shape)
    if len(shape) < 4:
        return tensor[(None,) * (4 - len(shape))]
    return tensor if len(shape) == 4 else tensor.reshape((math.prod(shape[:-3]), *shape[-3:]))


def _with_four_axes(attn_mask: Any, query: Any, key: Any) -> Any:
    """Return a mask with four axes, those of a batch as one.

    Raises:
        TensorError: it cannot be broadcast to the scores.
    """
    scores = (*query.shape[:-1], key.shape[-2])
    missing = len(scores) - len(attn_mask.shape)
    sizes = (1,) * missing + tuple(attn_mask.shape)
    if missing < 0 or any(n not in (1, wanted) for n, wanted in zip(sizes, scores, strict=True)):
        limit = f"must broadcast to the scores, (..., H, Sq, Sk) = {tuple(scores)}"
        raise TensorError("attn_mask", tuple(attn_mask.shape), limit)
    mask = attn_mask[(None,) * missing]
    batch = scores[:-3]
    if any(n != 1 for n in sizes[:-3]):
        for axis, (own, wanted) in enumerate(zip(sizes, batch, strict=False)):
            if own != wanted:  # an axis that repeats cannot be one with an axis that does not
                mask = mask[(slice(None),) * axis + ([0] * wanted,)]
    return _folded(mask)


def mask_options(attn_mask: Any) -> dict[str, Any]:
    """Return the options that add or apply a dense mask, broadcast to four dimensions."""
    if not 2 <= len(attn_mask.shape) <= 4:
        limit = "must have from two to four dimensions"
        raise TensorError("attn_mask", tuple(attn_mask.shape), limit)
    dtype = view("attn_mask", attn_mask).dtype
    mask = attn_mask[(None,) * (4 - len(attn_mask.shape))]
    if dtype == "bool":
        return {"mask_mod": _MASK, "params": {"attn_mask": mask}}
    if dtype not in _BIAS_TYPES:
        raise TensorError("attn_mask", dtype, "must be bool or a float")
    return {"score_mod": _BIAS.format(_BIAS_TYPES[dtype]), "params": {"attn_mask": mask}}
