"""Masks that everybody needs, as plain functions on expressions.

    from fmhagen import masks
    spec = AttentionSpec(mask_mod=masks.causal() & masks.documents([0, 700, 1024]))
    near = masks.sink_tokens(4) | masks.sliding_window(1023)
    spec = AttentionSpec(mask_mod=near & masks.causal())

A mask that reads a tensor has a name for it, `name`: two of them need two names.

Positions are those of FlexAttention: key n stands beside query n. `anchor="bottom_right"` puts the
last key beside the last query, as the field `causal` of a spec does by default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from fmhagen.errors import InvalidSpecError
from fmhagen.expr import build
from fmhagen.expr.capture import declared
from fmhagen.expr.closures import is_tensor
from fmhagen.expr.mods import MaskMod
from fmhagen.expr.nodes import Node

Anchor = str


def _diagonal(anchor: Anchor) -> Node:
    q_idx = build.leaf("q_idx")
    if anchor == "top_left":
        return q_idx
    if anchor == "bottom_right":
        return build.add(q_idx, build.sub(build.leaf("seqlen_k"), build.leaf("seqlen_q")))
    raise InvalidSpecError("anchor", anchor, "must be top_left or bottom_right")


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidSpecError(name, value, f"must be an integer of at least {least}")
    return value


def and_masks(*masks: MaskMod | Callable[..., Any]) -> MaskMod:
    """Return what all of some masks show; they may be plain functions."""
    whole = MaskMod(build.TRUE)
    return reduce(lambda a, b: a & b, (_mask(mask) for mask in masks), whole)


def or_masks(*masks: MaskMod | Callable[..., Any]) -> MaskMod:
    """Return what any of some masks shows; they may be plain functions."""
    nothing = MaskMod(build.FALSE)
    return reduce(lambda a, b: a | b, (_mask(mask) for mask in masks), nothing)


def not_mask(mask: MaskMod | Callable[..., Any]) -> MaskMod:
    """Return what a mask hides, `~mask`; it may be a plain function."""
    return ~_mask(mask)


def _mask(value: MaskMod | Callable[..., Any]) -> MaskMod:
    return value if isinstance(value, MaskMod) else MaskMod(value)


def causal(anchor: Anchor = "top_left") -> MaskMod:
    """A query sees the keys up to its own."""
    return MaskMod(build.le(build.leaf("kv_idx"), _diagonal(anchor)))


def sliding_window(left: int, right: int | None = None, anchor: Anchor = "top_left") -> MaskMod:
    """A query sees `left` keys to the left of its own, itself, and `right` to the right.

    Args:
        left: keys to the left; Hugging Face's `sliding_window=W` is left = W - 1.
        right: keys to the right; None means unlimited.
        anchor: which key stands beside a query.
    """
    key, diagonal = build.leaf("kv_idx"), _diagonal(anchor)
    mask = build.le(build.sub(diagonal, build.const(_count("left", left, 0))), key)
    if right is not None:
        last = build.add(diagonal, build.const(_count("right", right, 0)))
        mask = build.and_(mask, build.le(key, last))
    return MaskMod(mask)


def sink_tokens(count: int) -> MaskMod:
    """Every query sees the first `count` keys."""
    return MaskMod(build.lt(build.leaf("kv_idx"), build.const(_count("count", count, 0))))


def chunked(size: int) -> MaskMod:
    """A query sees the keys of its own chunk of `size` positions."""
    chunk = build.const(_count("size", size, 1))
    own, other = build.leaf("q_idx"), build.leaf("kv_idx")
    return MaskMod(build.eq(build.floor_div(own, chunk), build.floor_div(other, chunk)))


def dilated(step: int) -> MaskMod:
    """A query sees every `step`-th key, counted from its own."""
    distance = build.sub(build.leaf("q_idx"), build.leaf("kv_idx"))
    remainder = build.floor_mod(distance, build.const(_count("step", step, 1)))
    return MaskMod(build.eq(remainder, build.const(0)))


def dilated_blocks(size: int, step: int) -> MaskMod:
    """A query sees every `step`-th block of `size` keys, counted from its own."""
    block = build.const(_count("size", size, 1))
    own = build.floor_div(build.leaf("q_idx"), block)
    other = build.floor_div(build.leaf("kv_idx"), block)
    remainder = build.floor_mod(build.sub(own, other), build.const(_count("step", step, 1)))
    return MaskMod(build.eq(remainder, build.const(0)))


def prefix_lm(
    prefix_length: Any, anchor: Anchor = "top_left", *, name: str = "prefix_length"
) -> MaskMod:
    """Every query sees the prefix, and the keys up to its own.

    Args:
        prefix_length: an int, or a tensor (B,) of ints.
        anchor: which key stands beside a query.
        name: of the tensor.
    """
    if is_tensor(prefix_length):
        prefix = key_padding(prefix_length, name=name)
    else:
        prefix = sink_tokens(_count("prefix_length", prefix_length, 0))
    return prefix | causal(anchor)


def key_padding(lengths: Sequence[int] | Any, *, name: str = "key_lengths") -> MaskMod:
    """A query of batch b sees the first lengths[b] keys.

    Args:
        lengths: (B,) ints, a tensor or a sequence.
        name: of the tensor.
    """
    if not is_tensor(lengths):
        import numpy as np

        lengths = np.asarray(lengths, np.int32)
    length = declared(name, lengths)
    return MaskMod(lambda b, h, q_idx, kv_idx: kv_idx < length[b], bound={name: lengths})


def document(document_id: Any, *, name: str = "document_id") -> MaskMod:
    """A query sees the keys of its own document.

    Args:
        document_id: (S,) or (B, S) ints, in any order. For packed documents `documents` is faster:
            it knows where each begins and ends.
        name: of the tensor.
    """
    ids = declared(name, document_id)
    bound = {name: document_id}
    if len(document_id.shape) == 2:
        return MaskMod(lambda b, h, q_idx, kv_idx: ids[b, q_idx] == ids[b, kv_idx], bound=bound)
    return MaskMod(lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx], bound=bound)


def documents(offsets: Any, *, name: str = "document") -> MaskMod:
    """A query sees the keys of its own document; documents lie one behind another.

    Args:
        offsets: (N + 1,) where each begins, and where the last ends, the first 0: a sequence of
            ints, or a tensor, on whose device the bounds of each position are then kept.
        name: the bounds are the tensors NAME_first and NAME_end.
    """
    first, end = _bounds_of_documents(offsets)
    bound = {f"{name}_first": first, f"{name}_end": end}
    firsts, ends = (declared(key, array, non_decreasing=True) for key, array in bound.items())
    return MaskMod(
        lambda b, h, q_idx, kv_idx: (firsts[q_idx] <= kv_idx) & (kv_idx < ends[q_idx]),
        bound=bound,
    )


def _bounds_of_documents(offsets: Any) -> tuple[Any, Any]:
    if is_tensor(offsets) and hasattr(offsets, "repeat_interleave"):  # torch
        edges = offsets.int()
        lengths = edges[1:] - edges[:-1]
        return edges[:-1].repeat_interleave(lengths), edges[1:].repeat_interleave(lengths)
    import numpy as np

    edges = np.asarray(offsets, np.int32)
    lengths = np.diff(edges)
    if edges.ndim != 1 or len(edges) < 1 or edges[0] != 0 or (lengths < 0).any():
        limit = "must be offsets that begin with 0 and never fall"
        raise InvalidSpecError("offsets", str(offsets), limit)
    return np.repeat(edges[:-1], lengths), np.repeat(edges[1:], lengths)


def dense(mask: Any, *, name: str = "mask") -> MaskMod:
    """What a boolean tensor says.

    Args:
        mask: (Sq, Sk), (B, Sq, Sk) or (B, H, Sq, Sk); a size of 1 serves every index.
        name: of the tensor.
    """
    shown = declared(name, mask)
    functions: dict[int, Callable[..., Any]] = {
        2: lambda b, h, q_idx, kv_idx: shown[q_idx, kv_idx],
        3: lambda b, h, q_idx, kv_idx: shown[b, q_idx, kv_idx],
        4: lambda b, h, q_idx, kv_idx: shown[b, h, q_idx, kv_idx],
    }
    if len(mask.shape) not in functions:
        limit = "must be (Sq, Sk), (B, Sq, Sk) or (B, H, Sq, Sk)"
        raise InvalidSpecError("mask", str(tuple(mask.shape)), limit)
    return MaskMod(functions[len(mask.shape)], bound={name: mask})
