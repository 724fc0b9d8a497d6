"""Outputs: O and LSE from the framework of Q, on its device, by its allocator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fmhagen.errors import TensorError
from fmhagen.runtime.alignment import aligned_numpy
from fmhagen.runtime.checks import Axes, Problem
from fmhagen.runtime.tensors import (
    Framework,
    TensorView,
    contiguous_strides,
    import_cupy,
)
from fmhagen.runtime.torch_memory import Allocate, torch_allocator


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputShapes:
    """Shapes and strides of what a call gives.

    Attributes:
        o: shape of O.
        o_strides: its strides in elements; O has q's order of axes in memory.
        lse: shape of LSE, (B, H, Sq), or (H, total) of packed sequences; dense.
    """

    o: tuple[int, ...]
    o_strides: tuple[int, ...]
    lse: tuple[int, ...]


def output_shapes(axes: Axes, problem: Problem, q: TensorView, dv: int) -> OutputShapes:
    """Return the shapes of O and LSE; O's axes lie in memory in the order of q's."""
    b, h, m = problem.batch, problem.heads, problem.rows_q
    shape = axes.arrange(b, h, m, dv)
    _, q_head, q_row = axes.strides(q)
    rows_first = q_head < q_row if q_head and q_row else axes.row < axes.head
    if rows_first:  # b, s, h, d in memory
        stride_b, stride_m, stride_h, _ = contiguous_strides((b, m, h, dv))
    else:
        stride_b, stride_h, stride_m, _ = contiguous_strides((b, h, m, dv))
    return OutputShapes(
        o=shape,
        o_strides=axes.arrange(stride_b, stride_h, stride_m, 1),
        lse=(h, m) if problem.is_packed else (b, h, m),
    )


def new_max_logit(q: TensorView, heads: int) -> Any:
    """Return the largest scores of no keys: -inf for each query head, fp32, beside q.

    Raises:
        TensorError: q's framework is unknown.
    """
    if q.framework == Framework.TORCH:
        import torch

        return torch.full((heads,), -torch.inf, dtype=torch.float32, device=q.tensor.device)
    if q.framework == Framework.CUPY:
        cupy = import_cupy()
        with cupy.cuda.Device(q.tensor.device.id):
            return cupy.full((heads,), -cupy.inf, cupy.float32)
    if q.framework == Framework.NUMPY:
        import numpy as np

        return np.full((heads,), -np.inf, np.float32)
    limit = "fmhagen cannot allocate it in this framework"
    raise TensorError("return_max_logit", True, limit, "give a spec with max_logit=True its tensor")


def allocators(q: TensorView, shapes: OutputShapes, *, has_out: bool) -> tuple[Allocate, Allocate]:
    """Return two functions that make a new O and a new LSE beside q.

    Raises:
        TensorError: q's framework is unknown and the caller gave no `out`.
    """
    if q.framework == Framework.TORCH:
        return _torch_allocators(q.tensor, shapes)
    if q.framework == Framework.CUPY:
        return _cupy_allocators(q.tensor, shapes)
    if q.framework == Framework.NUMPY:
        return _numpy_allocators(q.tensor.dtype, shapes)
    if not has_out:
        owner = q.tensor[0] if isinstance(q.tensor, tuple) else q.tensor
        raise TensorError(
            "q",
            type(owner).__name__,
            "fmhagen cannot allocate O in this framework",
            "pass out=, or NumPy, PyTorch or CuPy tensors",
        )
    return _no_allocator, _no_allocator


def _torch_allocators(q: Any, shapes: OutputShapes) -> tuple[Allocate, Allocate]:
    import torch

    return (
        torch_allocator(shapes.o, shapes.o_strides, q.dtype, q.device),
        torch_allocator(shapes.lse, contiguous_strides(shapes.lse), torch.float32, q.device),
    )


def _numpy_allocators(dtype: Any, shapes: OutputShapes) -> tuple[Allocate, Allocate]:
    import numpy as np

    order = tuple(sorted(range(len(shapes.o)), key=lambda axis: -shapes.o_strides[axis]))
    stored = tuple(shapes.o[axis] for axis in order)
    back = tuple(order.index(axis) for axis in range(len(shapes.o)))
    return (
        lambda: aligned_numpy(stored, dtype).transpose(back),
        lambda: aligned_numpy(shapes.lse, np.float32),
    )


def _cupy_allocators(q: Any, shapes: OutputShapes) -> tuple[Allocate, Allocate]:
    cupy = import_cupy()
    order = tuple(sorted(range(len(shapes.o)), key=lambda axis: -shapes.o_strides[axis]))
    stored = tuple(shapes.o[axis] for axis in order)
    back = tuple(order.index(axis) for axis in range(len(shapes.o)))

    def empty(shape: tuple[int, ...], dtype: Any) -> Any:
        with cupy.cuda.Device(q.device.id):
            return cupy.empty(shape, dtype)

    return (
        lambda: empty(stored, q.dtype).transpose(back),
        lambda: empty(shapes.lse, cupy.float32),
    )


def new_tensor(like: TensorView, shape: tuple[int, ...], dtype: str) -> Any:
    """Return a new dense tensor of a framework's element type, beside another.

    Raises:
        TensorError: the framework is unknown, so nobody can allocate.
    """
    if like.framework == Framework.TORCH:
        import torch

        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.tensor.device)
    if like.framework == Framework.CUPY:
        cupy = import_cupy()
        with cupy.cuda.Device(like.device):
            return cupy.empty(shape, dtype)
    if like.framework == Framework.NUMPY:
        import ml_dtypes
        import numpy as np

        return aligned_numpy(shape, ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype))
    owner = like.tensor[0] if isinstance(like.tensor, tuple) else like.tensor
    limit = "fmhagen cannot allocate in this framework"
    raise TensorError(like.name, type(owner).__name__, limit, "pass NumPy, PyTorch or CuPy tensors")


def _no_allocator() -> Any:
    raise TensorError(
        "return_lse", True, "fmhagen cannot allocate LSE in this framework", "pass PyTorch tensors"
    )


def workspace_allocator(q: TensorView, nbytes: int) -> Allocate:
    """Return the function that makes a workspace beside q, by the allocator of its framework.

    Raises:
        TensorError: q's framework is unknown.
    """
    count = nbytes // 4
    if q.framework == Framework.TORCH:
        import torch

        return torch_allocator((count,), (1,), torch.float32, q.tensor.device)
    if q.framework == Framework.NUMPY:
        return lambda: aligned_numpy((count,), "float32")
    if q.framework == Framework.CUPY:
        cupy, index = import_cupy(), q.device

        def new_workspace() -> Any:
            with cupy.cuda.Device(index):
                return cupy.empty(count, "float32")

        return new_workspace
    limit = "fmhagen cannot allocate a workspace in this framework"
    raise TensorError("q", type(q.tensor).__name__, limit, "pass NumPy, PyTorch or CuPy tensors")
