"""Checks of a call over a key/value cache: shapes, strides, lengths and block tables.

Lengths and table entries lie on the device and are not read here; the kernel clamps lengths to the
room that there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fmhagen.errors import TensorError
from fmhagen.runtime.alignment import misalignment
from fmhagen.runtime.checks import MAX_ROWS, Packing, Problem, axes_of
from fmhagen.runtime.tensors import TensorView, view
from fmhagen.spec import AttentionSpec, CacheScale

FLOATS_8 = ("e4m3", "e5m2")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAxes:
    """Which axis of a cache is the page, the key within it and the head; the depth is the last."""

    page: int
    row: int
    head: int


def cache_axes(spec: AttentionSpec) -> CacheAxes:
    """Return the axes of the spec's cache layout."""
    if spec.cache_layout == "hnd":
        return CacheAxes(page=0, head=1, row=2)
    return CacheAxes(page=0, row=1, head=2)


def check_cache(
    spec: AttentionSpec,
    q: TensorView,
    k: TensorView,
    v: TensorView,
    table: TensorView | None,
    packing: Packing | None = None,
    float8_kind: str = "",
) -> Problem:
    """Return the sizes of a call; its seqlen_k is the most keys that a sequence can have.

    Args:
        spec: with kv_cache.
        q, k, v: the tensors.
        table: the block table of a paged cache.
        packing: how many sequences the queries pack; for spec.varlen.
        float8_kind: of the target, see `Target`: the other kind of 8-bit floats is refused.

    Raises:
        TensorError: names the first tensor at fault, its value, the limit and what to do.
    """
    axes, own = axes_of(spec), cache_axes(spec)
    for tensor in (q, k, v):
        rank = axes.rank if tensor.name == "q" else 4
        if len(tensor.shape) != rank:
            count = {3: "three", 4: "four"}[rank]
            limit = f"must have {count} dimensions ({_letters(spec, tensor)})"
            raise TensorError(tensor.name, tensor.shape, limit)
        dtype = str(spec.dtype if tensor.name == "q" else spec.cache_dtype)
        dtype += float8_kind if dtype in FLOATS_8 else ""
        if tensor.dtype != dtype:
            limit = f"must have the spec's element type, {dtype}"
            hint = "convert it, or compile a spec of its type; nothing is reinterpreted"
            raise TensorError(tensor.name, tensor.dtype, limit, hint)
        if tensor.place != q.place:
            limit = f"must lie on the device of q, {q.place}"
            raise TensorError(tensor.name, tensor.place, limit, "move it")
    batch, heads, rows = axes.sizes(q)
    batch = batch if packing is None else packing.batch
    pages, page_rows, heads_kv = k.shape[own.page], k.shape[own.row], k.shape[own.head]
    if v.shape[:3] != k.shape[:3]:
        raise TensorError("v", v.shape, f"must have the pages, keys and heads of k, {k.shape[:3]}")
    for tensor, depth, field in (
        (q, spec.d, "head_dim"),
        (k, spec.d, "head_dim"),
        (v, spec.dv, "head_dim_v"),
    ):
        if tensor.shape[-1] != depth:
            raise TensorError(tensor.name, tensor.shape, f"the last size must be {field}={depth}")
    if heads and (not heads_kv or heads % heads_kv):
        limit = f"key heads must divide the {heads} query heads"
        raise TensorError("k", heads_kv, limit, f"is the cache's layout {spec.cache_layout}?")
    if spec.page_size is not None and page_rows != spec.page_size:
        limit = f"must have page_size={spec.page_size} keys along axis {own.row}"
        raise TensorError("k", k.shape, limit, f"is the cache's layout {spec.cache_layout}?")
    if spec.page_size is None and pages != batch:
        limit = f"must have the sequences of q, {batch}, along axis {own.page}"
        raise TensorError("k", k.shape, limit, "a paged cache needs page_size in the spec")
    for tensor in (q, k, v):
        _check_layout(tensor)
    capacity = page_rows if table is None else table.shape[1] * page_rows
    if capacity > MAX_ROWS:
        raise TensorError("k", capacity, f"a sequence can have at most {MAX_ROWS} keys")
    if not pages:
        # NOTE: a tensor map has one page where there is none, and entries could name it.
        capacity = 0
    sizes = Problem(batch=batch, heads=heads, heads_kv=heads_kv, seqlen_q=rows, seqlen_k=capacity)
    if packing is not None:
        if rows and batch < 1:
            limit = f"has one entry, which is no sequence, but q has {rows} rows"
            raise TensorError("cu_seqlens_q", (1,), limit)
        most = rows if packing.max_q is None else min(rows, packing.max_q)
        sizes = replace(sizes, seqlen_q=most, total_q=rows)
    return sizes


def check_scales(
    spec: AttentionSpec, given: Mapping[str, Any], k: TensorView, batch: int
) -> dict[str, TensorView]:
    """Return the factors of K and V, their strides in the order (page or batch, head, key).

    A size of 1 has stride 0, so that one factor may serve many.

    Raises:
        TensorError: one is missing or not wanted, or is no such tensor on the device of k.
    """
    names = ("k_scale", "v_scale")
    if spec.kv_scale == CacheScale.NONE:
        for name in names:
            if given.get(name) is not None:
                limit = "this kernel takes no such argument"
                raise TensorError(name, "a tensor", limit, "give the spec a kv_scale")
        return {}
    axes = cache_axes(spec)
    sizes = {"page": k.shape[axes.page], "head": k.shape[axes.head], "row": k.shape[axes.row]}
    shapes: dict[CacheScale, tuple[str, tuple[tuple[int, ...], ...]]] = {
        CacheScale.TENSOR: ("() or (1,)", ((), (1,))),
        CacheScale.HEAD: ("(Hk,) or (B, Hk)", ((sizes["head"],), (batch, sizes["head"]))),
        CacheScale.TOKEN: ("that of the cache without its depth", (k.shape[:3],)),
    }
    words, right = shapes[spec.kv_scale]
    found = {}
    for name in names:
        if given.get(name) is None:
            raise TensorError(name, None, f"must be given: fp32 of shape {words}")
        tensor = view(name, given[name])
        if tensor.place != k.place:
            raise TensorError(name, tensor.place, f"must lie on the device of k, {k.place}")
        if tensor.dtype != "fp32":
            raise TensorError(name, tensor.dtype, "must have the element type fp32")
        if tensor.shape not in right:
            hint = f"kv_scale={str(spec.kv_scale)!r} of the spec asks for it"
            raise TensorError(name, tensor.shape, f"must have the shape {words}", hint)
        found[name] = _arranged(spec, tensor, axes)
    return found


def scale_values(scales: Mapping[str, TensorView]) -> dict[str, int]:
    """Return the strides of factors as the kernel reads them, by parameter field."""
    return {
        f"{name}_stride_{letter}": stride
        for name, scale in scales.items()
        for letter, stride in zip("bhn", scale.strides, strict=False)
    }


def _arranged(spec: AttentionSpec, tensor: TensorView, axes: CacheAxes) -> TensorView:
    """Return factors with the sizes and strides of (page or batch, head, key)."""
    pairs = [(n, s if n > 1 else 0) for n, s in zip(tensor.shape, tensor.strides, strict=True)]
    if spec.kv_scale == CacheScale.TOKEN:
        pairs = [pairs[axes.page], pairs[axes.head], pairs[axes.row]]
    elif spec.kv_scale == CacheScale.TENSOR:
        pairs = [(1, 0), (1, 0)]
    else:
        pairs = [(1, 0)] * (2 - len(pairs)) + pairs
    return replace(tensor, shape=tuple(n for n, _ in pairs), strides=tuple(s for _, s in pairs))


def _check_layout(tensor: TensorView) -> None:
    if 0 in tensor.shape:
        return
    pairs = tuple(zip(tensor.shape, tensor.strides, strict=True))
    if any(size > 1 and stride < 0 for size, stride in pairs):
        raise TensorError(tensor.name, tensor.strides, "strides must not be negative")
    size, stride = pairs[-1]
    if size > 1 and stride != 1:
        raise TensorError(tensor.name, tensor.strides, "the last dimension must have stride 1")
    reason = misalignment(tensor)
    if reason is not None and tensor.name != "q":
        # NOTE: the copy that other inputs get would copy the whole cache in every call.
        hint = "allocate the cache at a multiple of 16 bytes, with such strides"
        raise TensorError(tensor.name, tensor.strides, reason, hint)


def _letters(spec: AttentionSpec, tensor: TensorView) -> str:
    if tensor.name == "q":
        return ", ".join(str(spec.layout).replace("b", "" if spec.varlen else "b"))
    outer = "pages" if spec.page_size is not None else "B"
    return f"{outer}, Hk, n, d" if spec.cache_layout == "hnd" else f"{outer}, n, Hk, d"
