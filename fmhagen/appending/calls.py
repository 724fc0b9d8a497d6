"""Calls: append_kv on tensors of any framework, one launch each, nothing read back to the host."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from fmhagen.appending.checks import AppendTensors, check_append
from fmhagen.appending.launch import Ready, prepare, spec_of, touched_by
from fmhagen.runtime.launcher import quick_stream
from fmhagen.runtime.outputs import new_tensor
from fmhagen.runtime.small_kernels import backend_of
from fmhagen.runtime.tensors import Framework, TensorView, view

MAX_READY = 256  # layouts kept; then all are dropped and found again
_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16"}


class AppendResult(NamedTuple):
    """What a call gives besides the rows in the cache.

    Attributes:
        q: the queries, rotated where they are; None if none were given.
        cache_seqlens: (B,) int32, keys of each sequence now.
    """

    q: Any
    cache_seqlens: Any


def append_kv(
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    *,
    cache_seqlens: Any,
    block_table: Any = None,
    q: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    rotary_interleaved: bool = True,
    advances: bool = True,
    k_scale: Any = None,
    v_scale: Any = None,
    target: str | None = None,
) -> AppendResult:
    """Write new keys and values behind those of a cache, in place and in one launch.

    Lengths and tables are read on the device alone, so a captured graph serves any. A row beyond
    the room of its sequence, or whose entry in the table is no page, is dropped.

    Args:
        k_cache: (B, S, Hk, d), or (pages, page_size, Hk, d) with a block table; any strides.
        v_cache: the same of depth dv.
        k: (B, n, Hk, d): new keys, of the cache's element type, or of 16 bits for a cache of 8.
        v: (B, n, Hk, dv): their values.
        cache_seqlens: (B,) int32: keys that each sequence has before this call.
        block_table: (B, max_pages) int32; None means that page b is sequence b's.
        q: (B, Sq, H, d): queries to rotate into a new tensor.
        rotary_cos: (positions, rotary_dim / 2) of fp32, bf16 or fp16: rotates the first rotary_dim
            columns of k and q, in fp32 with one rounding. Positions past the last row are taken as
            that row.
        rotary_sin: the same.
        rotary_interleaved: columns 2i and 2i + 1 are a pair, else i and rotary_dim / 2 + i.
        advances: query m stands at position cache_seqlens + m, as under a causal mask or a window;
            else all at cache_seqlens.
        k_scale: (Hk,) or (B, Hk) fp32: what keys are divided by before they are rounded to 8 bits.
        v_scale: the same of values.
        target: the chip to emulate for tensors in host memory; None means the first.

    Returns:
        The queries, rotated, and the new lengths.

    Raises:
        TensorError: a tensor does not fit the others; names it, its value and the limit.
        CaptureError: the first call of a kind, while a graph is being captured.
    """
    rotates = rotary_cos is not None
    tensors = k_cache, v_cache, k, v, q if rotates else None, rotary_cos, rotary_sin
    index = cache_seqlens, block_table, k_scale, v_scale
    found = _call(tensors, index, (rotary_interleaved, advances, target))
    return found if rotates else AppendResult(q, found.cache_seqlens)


def _call(
    tensors: tuple[Any, ...], index: tuple[Any, ...], flags: tuple[bool, bool, str | None]
) -> AppendResult:
    """Launch by what is known of the layout, or find that first."""
    try:
        ready = _kept()[*(_layout(t) for t in (*tensors, *index)), *flags]
    except (AttributeError, KeyError, TypeError):
        return _first(tensors, index, flags)
    moved = [t.data_ptr() for t in tensors if t is not None]
    if functools.reduce(int.__or__, moved) % ready.alignment:
        return _first(tensors, index, flags)
    q, lengths = tensors[4], index[0].new_empty(index[0].shape)
    rotated = None if q is None else q.new_empty(q.shape)
    addresses = (
        *moved,
        *(t.data_ptr() for t in index if t is not None),
        lengths.data_ptr(),
        *(() if rotated is None else (rotated.data_ptr(),)),
    )
    assert ready.stream is not None
    ready.run(addresses, ready.stream(ready.device), None)
    return AppendResult(rotated, lengths)


_NAMES = ("k_cache", "v_cache", "k", "v", "q", "cos", "sin")
_INDEX = ("cache_seqlens", "block_table", "k_scale", "v_scale")


def _first(
    tensors: tuple[Any, ...], index: tuple[Any, ...], flags: tuple[bool, bool, str | None]
) -> AppendResult:
    """Check everything, find all that depends on the layout, launch."""
    interleaved, advances, target = flags
    checked = check_append(dict(zip((*_NAMES, *_INDEX), (*tensors, *index), strict=True)))
    cache = checked.given["k_cache"]
    lengths = new_tensor(cache, (checked.batch,), "int32")
    outputs = [view("new_seqlens", lengths)]
    rotated = None
    if "q" in checked.given:
        q = checked.given["q"]
        rotated = new_tensor(q, q.shape, _TORCH_NAMES[q.dtype])
        outputs.append(view("rotated_q", rotated))
    if checked.batch:
        _launch(checked, tuple(outputs), interleaved, advances, target, (tensors, index, flags))
    return AppendResult(rotated, lengths)


def _launch(
    checked: AppendTensors,
    outputs: tuple[TensorView, ...],
    interleaved: bool,
    advances: bool,
    target: str | None,
    call: tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]],
) -> None:
    cache = checked.given["k_cache"]
    spec = spec_of(checked, interleaved=interleaved)
    stream = quick_stream(cache)
    ready = prepare(checked, spec, outputs, advances=advances, target=target, stream=stream)
    named = {**checked.given, **{tensor.name: tensor for tensor in outputs}}
    addresses = tuple(named[name].address for name in ready.called)
    current = backend_of(cache.memory).stream(cache)
    ready.run(addresses, current, touched_by(checked, outputs))
    given = [t for t in (*call[0], *call[1]) if t is not None]
    if stream is None or checked.is_converted or any(_is_not_quick(t) for t in given):
        return
    if len(_kept()) >= MAX_READY:
        _kept().clear()
    _kept()[(*(_layout(t) for t in (*call[0], *call[1])), *call[2])] = ready


def _is_not_quick(tensor: Any) -> bool:
    return view("", tensor).framework != Framework.TORCH or bool(tensor.requires_grad)


@functools.cache
def _kept() -> dict[tuple[Any, ...], Ready]:
    """Return the layouts that a process knows."""
    return {}


def _layout(tensor: Any) -> tuple[Any, ...] | None:
    """Return what a launch on a torch tensor depends on besides its address."""
    if tensor is None:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device(), tensor.requires_grad
