"""Checks of a call that appends: shapes, strides, element types; nothing on the device is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fmhagen.appending.spec import AngleDType, RowDType, SmallDType
from fmhagen.errors import TensorError
from fmhagen.runtime.argument_values import fit_tensor
from fmhagen.runtime.checks import MAX_ROWS
from fmhagen.runtime.tensors import TensorView, converted, is_tensor, view

INDEX_TYPES = ("int32", "int64")
ROW_TYPES = (str(RowDType.BF16), str(RowDType.FP16))


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendTensors:
    """The tensors of a call, checked, and what its kernel must know of them.

    Attributes:
        given: by the names of the parameter block: k, v, k_cache, v_cache, cache_seqlens, and
            where they are, q, cos, sin, k_scale, v_scale, block_table.
        dtype: element type of the rows, or `RowDType.BYTE`.
        cache_dtype: that of the cache where rows are rounded to it.
        angle_dtype: that of cos and sin.
        batch, rows, heads_kv: of the new rows; 0 rows where nothing is appended.
        pages, page_size, capacity: of the cache, and of one sequence.
        is_converted: a tensor stands here for one that the caller gave.
    """

    given: dict[str, TensorView]
    dtype: RowDType
    cache_dtype: SmallDType | None
    angle_dtype: AngleDType
    batch: int
    rows: int
    heads_kv: int
    pages: int
    page_size: int
    capacity: int
    is_converted: bool


def check_append(given: dict[str, Any]) -> AppendTensors:
    """Return the tensors of a call that fit one another.

    Args:
        given: the tensors of `append_kv` by the names of `AppendTensors`; None where not given.

    Raises:
        TensorError: names the first tensor at fault, its value, the limit and what to do.
    """
    views = {name: view(name, t) for name, t in given.items() if t is not None and is_tensor(t)}
    for name, tensor in given.items():
        if tensor is not None and name not in views:
            raise TensorError(name, type(tensor).__name__, "must be a tensor")
    k_cache, v_cache = views["k_cache"], views["v_cache"]
    place = k_cache.place
    for tensor in views.values():
        if tensor.place != place:
            limit = f"must lie on the device of k_cache, {place}"
            raise TensorError(tensor.name, tensor.place, limit, "move it")
    for name in ("k_cache", "v_cache", "k", "v", "q"):
        if name in views:
            _check_rows(views[name], is_written=name.endswith("cache"))
    if v_cache.shape[:3] != k_cache.shape[:3] or v_cache.dtype != k_cache.dtype:
        limit = f"must have pages, slots, heads and type of k_cache: {k_cache.shape[:3]}"
        raise TensorError("v_cache", f"{v_cache.dtype}{list(v_cache.shape)}", limit)
    if ("k" in views) != ("v" in views):
        raise TensorError("k" if "v" in views else "v", None, "k and v must be given together")
    heads_kv = k_cache.shape[2]
    first = views.get("k", views.get("q"))
    if first is None:
        raise TensorError("k", None, "there must be rows to append, or queries to rotate")
    batch, rows = first.shape[0], first.shape[1] if "k" in views else 0
    for name, depth in (("k", k_cache.shape[3]), ("v", v_cache.shape[3])):
        wanted = (batch, rows, heads_kv, depth)
        if name in views and views[name].shape != wanted:
            raise TensorError(name, views[name].shape, f"must have the shape {wanted}")
        if name in views and views[name].dtype != first.dtype:
            raise TensorError(
                name, views[name].dtype, f"must have the element type of {first.dtype}"
            )
    if "q" in views and (views["q"].shape[0], views["q"].shape[3]) != (batch, k_cache.shape[3]):
        limit = f"must be of {batch} sequences and depth {k_cache.shape[3]}"
        raise TensorError("q", views["q"].shape, limit)
    dtype, cache_dtype = _element_types(views, first, k_cache)
    angles = _check_angles(views, first)
    if "cache_seqlens" not in views:
        raise TensorError("cache_seqlens", None, "must be given: int32 of shape (B,)")
    lengths = fit_tensor(
        "cache_seqlens", given["cache_seqlens"], first, "int32", ("int64",), dense=True
    )
    if lengths.shape != (batch,):
        raise TensorError("cache_seqlens", lengths.shape, f"must have the shape (B,) = ({batch},)")
    table = _check_table(views, batch)
    if table is None and rows and k_cache.shape[0] != batch:
        limit = f"must be of {batch} sequences"
        raise TensorError("k_cache", k_cache.shape, limit, "give pages a block_table")
    _check_scales(views, batch, heads_kv, cache_dtype)
    is_converted = lengths.tensor is not given["cache_seqlens"] or (
        table is not None and table.tensor is not given["block_table"]
    )
    views["cache_seqlens"] = lengths
    if table is not None:
        views["block_table"] = table
    page_size = k_cache.shape[1]
    capacity = page_size * (1 if table is None else table.shape[1])
    queries = views["q"].shape[1] * views["q"].shape[2] * batch if "q" in views else 0
    if max(capacity, queries + 2 * batch * rows * heads_kv) > MAX_ROWS:
        limit = f"gives more than {MAX_ROWS} rows or slots of a sequence"
        raise TensorError(first.name, first.shape, limit, "split the batch")
    return AppendTensors(
        given=views,
        dtype=dtype,
        cache_dtype=cache_dtype,
        angle_dtype=angles,
        batch=batch,
        rows=rows,
        heads_kv=heads_kv,
        pages=k_cache.shape[0],
        page_size=page_size,
        capacity=capacity,
        is_converted=is_converted,
    )


def _check_rows(tensor: TensorView, *, is_written: bool) -> None:
    if len(tensor.shape) != 4:
        raise TensorError(tensor.name, tensor.shape, "must have four dimensions")
    if is_written and not tensor.writable:
        raise TensorError(tensor.name, "read-only", "must be writable")
    if 0 in tensor.shape:
        return
    pairs = tuple(zip(tensor.shape, tensor.strides, strict=True))
    if any(size > 1 and stride < 0 for size, stride in pairs):
        raise TensorError(tensor.name, tensor.strides, "strides must not be negative")
    if pairs[-1][0] > 1 and pairs[-1][1] != 1:
        raise TensorError(tensor.name, tensor.strides, "the last dimension must have stride 1")
    if is_written and any(size > 1 and stride == 0 for size, stride in pairs):
        raise TensorError(tensor.name, tensor.strides, "its elements must not overlap")


def _element_types(
    views: dict[str, TensorView], first: TensorView, cache: TensorView
) -> tuple[RowDType, SmallDType | None]:
    """Return what the kernel makes of the rows and of the cache."""
    rotates = "cos" in views
    if rotates and "q" in views and views["q"].dtype != first.dtype:
        raise TensorError("q", views["q"].dtype, f"must have the element type of k, {first.dtype}")
    if "k" not in views:  # the cache is not touched
        if first.dtype not in ROW_TYPES:
            limit = f"must have an element type of {', '.join(ROW_TYPES)}"
            raise TensorError("q", first.dtype, limit)
        return RowDType(first.dtype), None
    if first.dtype == cache.dtype:
        if first.dtype in ROW_TYPES:
            return RowDType(first.dtype), None
        if first.element_bytes == 1 and not rotates:
            return RowDType.BYTE, None
        if first.element_bytes == 1:
            limit = "rows of 8 bits are copied as they are, and cannot be rotated"
            hint = "give rows of 16 bits: they are rotated, then rounded to the cache's type"
            raise TensorError("k", first.dtype, limit, hint)
    elif first.dtype in ROW_TYPES and cache.dtype.removesuffix("fnuz") in tuple(SmallDType):
        return RowDType(first.dtype), SmallDType(cache.dtype.removesuffix("fnuz"))
    limit = f"rows of the cache's type, {cache.dtype}, or of 16 bits for a cache of 8"
    raise TensorError("k", first.dtype, f"must be {limit}", "convert them")


def _check_angles(views: dict[str, TensorView], first: TensorView) -> AngleDType:
    """Return the element type of cos and sin, whose sizes fit the depth."""
    if ("cos" in views) != ("sin" in views):
        raise TensorError("rotary_sin", None, "cos and sin must be given together")
    if "cos" not in views:
        return AngleDType.FP32
    cos, sin = views["cos"], views["sin"]
    kinds = tuple(AngleDType)
    if cos.dtype not in kinds or len(cos.shape) != 2 or not cos.shape[0] or not cos.shape[1]:
        limit = f"must be (positions, rotary_dim / 2) of {', '.join(kinds)}"
        raise TensorError("rotary_cos", f"{cos.dtype}{list(cos.shape)}", limit)
    if sin.shape != cos.shape or sin.dtype != cos.dtype:
        limit = "must have shape and element type of rotary_cos"
        raise TensorError("rotary_sin", f"{sin.dtype}{list(sin.shape)}", limit)
    if 2 * cos.shape[1] > first.shape[3]:
        limit = f"rotates more columns than the head_dim of {first.shape[3]}"
        raise TensorError("rotary_cos", cos.shape, limit)
    for tensor in (cos, sin):
        if tensor.shape[1] > 1 and tensor.strides[1] != 1:
            raise TensorError(tensor.name, tensor.strides, "the last dimension must have stride 1")
        if tensor.shape[0] > 1 and tensor.strides[0] < 0:
            raise TensorError(tensor.name, tensor.strides, "strides must not be negative")
    return AngleDType(cos.dtype)


def _check_table(views: dict[str, TensorView], batch: int) -> TensorView | None:
    table = views.get("block_table")
    if table is None:
        return None
    if table.dtype not in INDEX_TYPES or len(table.shape) != 2 or table.shape[0] != batch:
        limit = f"must be int32 of shape (B, max_pages) = ({batch}, max_pages)"
        raise TensorError("block_table", f"{table.dtype}{list(table.shape)}", limit)
    is_dense = table.shape[1] < 2 or table.strides[1] == 1
    if table.dtype == "int32" and is_dense and (batch < 2 or table.strides[0] >= 0):
        return table
    return converted(table, "int32")


def _check_scales(
    views: dict[str, TensorView], batch: int, heads_kv: int, cache_dtype: SmallDType | None
) -> None:
    for name in ("k_scale", "v_scale"):
        tensor = views.get(name)
        if tensor is None:
            continue
        if cache_dtype is None:
            limit = "rows are not rounded to 8 bits, so nothing is divided by it"
            raise TensorError(name, "a tensor", limit, f"leave {name}=None")
        shapes = ((heads_kv,), (batch, heads_kv))
        if tensor.dtype != "fp32" or tensor.shape not in shapes:
            limit = f"must be fp32 of shape (Hk,) or (B, Hk) = {shapes[1]}"
            raise TensorError(name, f"{tensor.dtype}{list(tensor.shape)}", limit)
        if len(tensor.shape) == 1:
            views[name] = replace(tensor, shape=(1, *tensor.shape), strides=(0, *tensor.strides))
