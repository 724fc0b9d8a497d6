"""Checks: what is refused of the tensors of a call, naming the tensor, the value and the limit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fmhagen.errors import TensorError
from fmhagen.runtime.alignment import misalignment
from fmhagen.runtime.tensors import TensorView
from fmhagen.schedule import shared_heads
from fmhagen.spec import AttentionSpec

MAX_ROWS = 2**31 - 1  # rows and tiles are counted in 32 bits, with room for a sign


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The sizes of one call.

    Attributes:
        batch: B.
        heads: query heads H.
        heads_kv: key and value heads Hk.
        seqlen_q: query rows Sq; of packed sequences the most that one may have.
        seqlen_k: key rows Sk; of packed sequences the most that one may have.
        total_q: query rows of all packed sequences together; None where they are not packed.
        total_k: the same for key rows.
    """

    batch: int
    heads: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int
    total_q: int | None = None
    total_k: int | None = None

    @property
    def is_packed(self) -> bool:
        """Whether sequences of different lengths lie one behind another."""
        return self.total_q is not None

    @property
    def rows_q(self) -> int:
        """Rows of the tensor Q along its axis of rows."""
        return self.seqlen_q if self.total_q is None else self.total_q

    @property
    def rows_k(self) -> int:
        """Rows of the tensors K and V along their axis of rows."""
        return self.seqlen_k if self.total_k is None else self.total_k

    @property
    def packed_heads(self) -> int:
        """Query heads that share tiles where a schedule packs them: a power of two."""
        return shared_heads(self.heads // self.heads_kv)

    @property
    def is_empty(self) -> bool:
        """Whether O has no element, so that nothing is to be computed."""
        return 0 in (self.batch, self.heads, self.rows_q)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Which axis of a tensor is the batch, the head and the row; the depth is the last.

    `batch` is None for packed sequences, whose tensors have three axes.
    """

    batch: int | None
    head: int
    row: int

    @property
    def rank(self) -> int:
        """Axes of a tensor."""
        return 3 if self.batch is None else 4

    def arrange(self, batch: int, head: int, row: int, depth: int) -> tuple[int, ...]:
        """Return the numbers in the order of the axes; packed tensors leave out the batch's."""
        placed = {self.batch: batch, self.head: head, self.row: row}
        return (*(placed[axis] for axis in range(self.rank - 1)), depth)

    def sizes(self, tensor: TensorView) -> tuple[int, int, int]:
        """Return a tensor's (batch, head, row) sizes; a packed tensor is a batch of one."""
        batch = 1 if self.batch is None else tensor.shape[self.batch]
        return batch, tensor.shape[self.head], tensor.shape[self.row]

    def strides(self, tensor: TensorView) -> tuple[int, int, int]:
        """Return a tensor's (batch, head, row) strides in elements; 0 where the size is below 2."""
        return tuple(  # type: ignore[return-value]
            tensor.strides[axis] if axis is not None and tensor.shape[axis] > 1 else 0
            for axis in (self.batch, self.head, self.row)
        )


def axes_of(spec: AttentionSpec) -> Axes:
    """Return the axes of the spec's layout, which for packed sequences has no batch."""
    order = str(spec.layout)
    if spec.varlen:
        order = order.replace("b", "")
        return Axes(batch=None, head=order.index("h"), row=order.index("s"))
    return Axes(batch=order.index("b"), head=order.index("h"), row=order.index("s"))


def key_axes_of(spec: AttentionSpec) -> Axes:
    """Return the axes of K and V: those of Q, or of a cache, where a page stands for the batch."""
    if not spec.kv_cache:
        return axes_of(spec)
    if spec.cache_layout == "hnd":
        return Axes(batch=0, head=1, row=2)
    return Axes(batch=0, head=2, row=1)


def check_inputs(
    spec: AttentionSpec,
    q: TensorView,
    k: TensorView,
    v: TensorView,
    packing: Packing | None = None,
) -> Problem:
    """Return the sizes of a call.

    Args:
        spec: what is computed.
        q, k, v: the tensors.
        packing: how many sequences are packed, and how long they may be; for spec.varlen.

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
        batch=axes.sizes(q)[0],
        heads=q.shape[axes.head],
        heads_kv=k.shape[axes.head],
        seqlen_q=q.shape[axes.row],
        seqlen_k=k.shape[axes.row],
    )
    _check_sizes(spec, axes, problem, q, k, v)
    for tensor in (q, k, v):
        _check_strides(tensor)
    return problem if packing is None else _packed(problem, packing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """What the offsets of packed sequences say without being read.

    Attributes:
        batch: sequences.
        max_q: the most query rows that one has; None means no more than all of them.
        max_k: the same for key rows.
    """

    batch: int
    max_q: int | None
    max_k: int | None


def _packed(rows: Problem, packing: Packing) -> Problem:
    total_q, total_k = rows.seqlen_q, rows.seqlen_k
    for name, total in (("q", total_q), ("k", total_k)):
        if total and packing.batch < 1:
            limit = f"has one entry, which is no sequence, but {name} has {total} rows"
            raise TensorError(f"cu_seqlens_{name}", (packing.batch + 1,), limit)
    most_q = total_q if packing.max_q is None else min(total_q, packing.max_q)
    most_k = total_k if packing.max_k is None else min(total_k, packing.max_k)
    return replace(
        rows,
        batch=packing.batch,
        seqlen_q=most_q,
        seqlen_k=most_k,
        total_q=total_q,
        total_k=total_k,
    )


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
    shape = axes_of(spec).arrange(problem.batch, problem.heads, problem.rows_q, spec.dv)
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
    if spec.varlen and len(tensor.shape) != 3:
        letters = ", ".join(str(spec.layout).replace("b", ""))
        limit = f"must have three dimensions ({letters}): the spec packs sequences (varlen)"
        raise TensorError(tensor.name, tensor.shape, limit)
    if not spec.varlen and len(tensor.shape) != 4:
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
        if axes.sizes(tensor)[0] != problem.batch:
            limit = f"must have the batch of q, {problem.batch}, along axis {axes.batch}"
            raise TensorError(tensor.name, tensor.shape, limit)
    if v.shape[axes.head] != problem.heads_kv:
        limit = f"must have the heads of k, {problem.heads_kv}, along axis {axes.head}"
        raise TensorError("v", v.shape, limit, f"is the layout {spec.layout}?")
    if v.shape[axes.row] != problem.seqlen_k:
        limit = f"must have the rows of k, {problem.seqlen_k}, along axis {axes.row}"
        raise TensorError("v", v.shape, limit, f"is the layout {spec.layout}?")
    for tensor, depth, field in ((q, spec.d, "head_dim"), (k, spec.d, "head_dim")):
        if tensor.shape[-1] != depth:
            raise TensorError(tensor.name, tensor.shape, f"the last size must be {field}={depth}")
    if v.shape[-1] != spec.dv:
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
