"""Checks: what is refused of the tensors of a call, naming the tensor, the value and the limit."""

from __future__ import annotations

from dataclasses import dataclass

from fmhagen.errors import TensorError
from fmhagen.runtime.alignment import misalignment
from fmhagen.runtime.tensors import TensorView
from fmhagen.spec import AttentionSpec

MAX_ROWS = 2**31 - 1  # rows and tiles are counted in 32 bits, with room for a sign


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The sizes of one call.

    Attributes:
        batch: B.
        heads: query heads H.
        heads_kv: key and value heads Hk.
        seqlen_q: query rows Sq.
        seqlen_k: key rows Sk.
    """

    batch: int
    heads: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int

    @property
    def is_empty(self) -> bool:
        """Whether O has no element, so that nothing is to be computed."""
        return 0 in (self.batch, self.heads, self.seqlen_q)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Which axis of a four-dimensional tensor is the batch, the head and the row."""

    batch: int
    head: int
    row: int

    def arrange(self, batch: int, head: int, row: int, depth: int) -> tuple[int, int, int, int]:
        """Return four numbers in the order of the axes."""
        placed = {self.batch: batch, self.head: head, self.row: row}
        return placed[0], placed[1], placed[2], depth

    def strides(self, tensor: TensorView) -> tuple[int, int, int]:
        """Return a tensor's (batch, head, row) strides in elements; 0 where the size is below 2."""
        return tuple(  # type: ignore[return-value]
            tensor.strides[axis] if tensor.shape[axis] > 1 else 0
            for axis in (self.batch, self.head, self.row)
        )


def axes_of(spec: AttentionSpec) -> Axes:
    """Return the axes of the spec's layout."""
    order = str(spec.layout)
    return Axes(batch=order.index("b"), head=order.index("h"), row=order.index("s"))


def check_inputs(spec: AttentionSpec, q: TensorView, k: TensorView, v: TensorView) -> Problem:
    """Return the sizes of a call.

    Raises:
        TensorError: names the first tensor at fault, its value, the limit and what to do.
    """
    axes = axes_of(spec)
    for tensor in (q, k, v):
        _check_rank(spec, tensor)
        _check_dtype(spec, tensor)
        if tensor.place != q.place:
            raise TensorError(
                tensor.name, tensor.place, f"must lie on the device of q, {q.place}", "move it"
            )
    problem = Problem(
        batch=q.shape[axes.batch],
        heads=q.shape[axes.head],
        heads_kv=k.shape[axes.head],
        seqlen_q=q.shape[axes.row],
        seqlen_k=k.shape[axes.row],
    )
    _check_sizes(spec, axes, problem, q, k, v)
    for tensor in (q, k, v):
        _check_strides(tensor)
    return problem


def check_out(
    spec: AttentionSpec, problem: Problem, out: TensorView, q: TensorView, others: tuple[int, ...]
) -> None:
    """Refuse an `out` that the kernel cannot write in place.

    Args:
        spec: what is computed.
        problem: the sizes of the call.
        out: the tensor to check.
        q: the query, whose device it must share.
        others: addresses that it must not have: those of q, k and v.

    Raises:
        TensorError: names the value, the limit and what to do.
    """
    _check_rank(spec, out)
    _check_dtype(spec, out)
    if out.place != q.place:
        raise TensorError("out", out.place, f"must lie on the device of q, {q.place}")
    shape = axes_of(spec).arrange(problem.batch, problem.heads, problem.seqlen_q, spec.dv)
    if out.shape != shape:
        raise TensorError("out", out.shape, f"must have the shape {shape}")
    _check_strides(out)
    if problem.is_empty:
        return
    if not out.writable:
        raise TensorError("out", "read-only", "must be writable")
    if any(n > 1 and s == 0 for n, s in zip(out.shape, out.strides, strict=True)):
        raise TensorError("out", out.strides, "must not be expanded: its rows would overlap")
    reason = misalignment(out)
    if reason is not None:
        raise TensorError("out", out.strides, reason, "leave out=None, or pass an aligned tensor")
    if out.address in others:
        raise TensorError("out", hex(out.address), "must not be q, k or v itself")


def _check_rank(spec: AttentionSpec, tensor: TensorView) -> None:
    if len(tensor.shape) != 4:
        letters = ", ".join(str(spec.layout))
        limit = f"must have four dimensions ({letters})"
        raise TensorError(tensor.name, tensor.shape, limit, "add a batch dimension of 1")


def _check_dtype(spec: AttentionSpec, tensor: TensorView) -> None:
    if tensor.dtype != spec.dtype:
        limit = f"must have the spec's element type, {spec.dtype}"
        hint = "convert it, or compile a spec of its type; nothing is converted silently"
        raise TensorError(tensor.name, tensor.dtype, limit, hint)


def _check_sizes(
    spec: AttentionSpec, axes: Axes, problem: Problem, q: TensorView, k: TensorView, v: TensorView
) -> None:
    for tensor in (k, v):
        if tensor.shape[axes.batch] != problem.batch:
            limit = f"must have the batch of q, {problem.batch}, along axis {axes.batch}"
            raise TensorError(tensor.name, tensor.shape, limit)
    if v.shape[axes.head] != problem.heads_kv:
        limit = f"must have the heads of k, {problem.heads_kv}, along axis {axes.head}"
        raise TensorError("v", v.shape, limit, f"is the layout {spec.layout}?")
    if v.shape[axes.row] != problem.seqlen_k:
        limit = f"must have the rows of k, {problem.seqlen_k}, along axis {axes.row}"
        raise TensorError("v", v.shape, limit, f"is the layout {spec.layout}?")
    for tensor, depth, field in ((q, spec.d, "head_dim"), (k, spec.d, "head_dim")):
        if tensor.shape[3] != depth:
            raise TensorError(tensor.name, tensor.shape, f"the last size must be {field}={depth}")
    if v.shape[3] != spec.dv:
        raise TensorError("v", v.shape, f"the last size must be head_dim_v={spec.dv}")
    if problem.heads and (not problem.heads_kv or problem.heads % problem.heads_kv):
        raise TensorError(
            "k",
            problem.heads_kv,
            f"key heads must divide the {problem.heads} query heads",
            f"is the layout {spec.layout}?",
        )
    for tensor in (q, k):
        if tensor.shape[axes.row] > MAX_ROWS:
            limit = f"at most {MAX_ROWS} rows along axis {axes.row}"
            raise TensorError(tensor.name, tensor.shape, limit)


def _check_strides(tensor: TensorView) -> None:
    if 0 in tensor.shape:
        return
    pairs = tuple(zip(tensor.shape, tensor.strides, strict=True))
    if any(size > 1 and stride < 0 for size, stride in pairs):
        limit = "strides must not be negative"
        raise TensorError(tensor.name, tensor.strides, limit, "pass a contiguous copy")
    size, stride = pairs[-1]
    if size > 1 and stride != 1:
        limit = "the last dimension must have stride 1"
        raise TensorError(tensor.name, tensor.strides, limit, "pass a contiguous copy")
