"""PyTorch's scaled_dot_product_attention: the same parameters with the same meaning.

`is_causal` is anchored top-left, as there. A row that sees no key is 0 and never NaN.
"""

from __future__ import annotations

from typing import Any

from fmhagen.dispatch import attention
from fmhagen.errors import TensorError, UnsupportedArgumentError
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
        query: (B, H, Sq, d), or (B, Sq, d).
        key: (B, Hk, Sk, d), or (B, Sk, d).
        value: (B, Hk, Sk, dv), or (B, Sk, dv).
        attn_mask: bool, true where a key is visible, or a float that is added to the scores;
            broadcast to (B, H, Sq, Sk), and read in place.
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
    rank = len(query.shape)
    if rank == 3:
        query, key, value = query[:, None], key[:, None], value[:, None]
        if attn_mask is not None and len(attn_mask.shape) == 3:
            attn_mask = attn_mask[:, None]
    elif rank != 4:
        raise TensorError("query", tuple(query.shape), "must have three or four dimensions")
    if attn_mask is not None:
        attn_mask = _with_four_axes(attn_mask, query, key)
    if not enable_gqa and query.shape[1] != key.shape[1]:
        limit = f"must have the {query.shape[1]} heads of query"
        raise TensorError("key", tuple(key.shape), limit, "use enable_gqa=True for grouped heads")
    options: dict[str, Any] = {"causal": is_causal, "anchor": "top_left"}
    if attn_mask is not None:
        options = mask_options(attn_mask)
    o = attention(query, key, value, scale=scale, layout="bhsd", **options)
    return o[:, 0] if rank == 3 else o


def _with_four_axes(attn_mask: Any, query: Any, key: Any) -> Any:
    """Return a mask with four axes.

    Raises:
        TensorError: it cannot be broadcast to the scores.
    """
    scores = (*query.shape[:3], key.shape[2])
    sizes = (1,) * (4 - len(attn_mask.shape)) + tuple(attn_mask.shape)
    if len(sizes) > 4 or any(n not in (1, wanted) for n, wanted in zip(sizes, scores, strict=True)):
        limit = f"must broadcast to the scores, (B, H, Sq, Sk) = {tuple(scores)}"
        raise TensorError("attn_mask", tuple(attn_mask.shape), limit)
    return attn_mask[(None,) * (4 - len(attn_mask.shape))]


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
