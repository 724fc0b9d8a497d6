"""Calls: merge_states on tensors of any framework, with the kernel for their number and kind."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from fmhagen.errors import InvalidSpecError, TensorError
from fmhagen.merging.plan import MergePlan, lower_merge, source_of
from fmhagen.merging.spec import MAX_PARTS, MergeDType, MergeSpec
from fmhagen.runtime.alignment import aligned_copy, misalignment
from fmhagen.runtime.checks import MAX_ROWS, Axes, Problem
from fmhagen.runtime.devices import TARGET_OF_MEMORY
from fmhagen.runtime.launch_values import LOG2_E, Value
from fmhagen.runtime.outputs import allocators, output_shapes
from fmhagen.runtime.overlaps import memories_of, share_elements
from fmhagen.runtime.small_kernels import backend_of, load_small
from fmhagen.runtime.tensors import TensorView, view
from fmhagen.spec import Layout
from fmhagen.targets import TARGETS, find_target

BASES = {"e": LOG2_E, "2": 1.0}
_LSE = "fp32"


def merge_states(
    os: Sequence[Any] | Any,
    lses: Sequence[Any] | Any,
    *,
    lse_base: str = "e",
    layout: str = Layout.BSHD,
    out: Any = None,
    out_lse: Any = None,
    target: str | None = None,
) -> tuple[Any, Any]:
    """Merge attention over several sets of keys into attention over all of them.

    A part whose LSE is -inf counts as nothing, whatever its O holds; a part that is alone in having
    weight comes through unchanged, to the bit.

    Args:
        os: the parts of O: tensors of one shape, or one tensor whose first axis is the parts; each
            (B, S, H, dv) in the layout bshd, or (total, H, dv) of packed sequences; bf16, fp16
            or fp32.
        lses: their LSE in fp32: tensors, or one tensor, each (B, H, S), or (H, total).
        lse_base: the base of the logarithm of LSE, given and returned: "e" (what fmhagen gives)
            or "2".
        layout: order of the axes of O, bshd or bhsd.
        out: where O is written; may be one of the parts. None makes a new tensor.
        out_lse: where LSE is written; may be one of the parts. None makes a new tensor.
        target: the chip to emulate for tensors in host memory; None means the first.

    Returns:
        (O, LSE).

    Raises:
        TensorError: a tensor does not fit the others; names it, its value and the limit.
        InvalidSpecError: the base or the layout has no meaning.
    """
    if str(lse_base) not in BASES:
        raise InvalidSpecError("lse_base", lse_base, "must be 'e' or '2'")
    parts = [view(f"os[{i}]", part) for i, part in enumerate(_parts("os", os))]
    states = [view(f"lses[{i}]", part) for i, part in enumerate(_parts("lses", lses))]
    if len(parts) != len(states) or not parts:
        raise TensorError("lses", len(states), f"must be as many as os, {len(parts)}, at least 1")
    axes = _axes(parts[0], layout)
    problem = _check(axes, parts, states)
    shapes = output_shapes(axes, problem, parts[0], parts[0].shape[-1])
    new_o, new_lse = allocators(parts[0], shapes, has_out=out is not None and out_lse is not None)
    o = new_o() if out is None else out
    lse = new_lse() if out_lse is None else out_lse
    o_view, lse_view = view("out", o), view("out_lse", lse)
    _check_output(o_view, parts)
    _check_output(lse_view, states)
    if problem.is_empty or parts[0].shape[-1] == 0:
        return o, lse
    parts = [_readable(part) for part in parts]
    memory = parts[0].memory
    chip = target or TARGET_OF_MEMORY.get(memory, TARGETS[0].name)
    factor = BASES[str(lse_base)]
    # More parts than a kernel takes are merged in turns, the result so far as one of them.
    while parts:
        count = min(len(parts), MAX_PARTS)
        _launch(chip, axes, problem, factor, parts[:count], states[:count], o_view, lse_view)
        rest, rest_states = parts[count:], states[count:]
        parts = [o_view, *rest] if rest else []
        states = [lse_view, *rest_states] if rest else []
    return o, lse


def _parts(name: str, tensors: Any) -> list[Any]:
    if hasattr(tensors, "shape"):
        if len(tensors.shape) < 3:
            raise TensorError(name, tuple(tensors.shape), "needs a first axis of parts")
        return [tensors[i] for i in range(tensors.shape[0])]
    return list(tensors)


def _axes(part: TensorView, layout: str) -> Axes:
    if str(layout) not in tuple(Layout):
        raise InvalidSpecError("layout", layout, f"must be one of {', '.join(Layout)}")
    if len(part.shape) not in (3, 4):
        limit = "must have four dimensions, or three of packed sequences"
        raise TensorError(part.name, part.shape, limit)
    order = str(layout) if len(part.shape) == 4 else str(layout).replace("b", "")
    batch = order.index("b") if "b" in order else None
    return Axes(batch=batch, head=order.index("h"), row=order.index("s"))


def _check(axes: Axes, parts: list[TensorView], states: list[TensorView]) -> Problem:
    """Return the sizes of a call whose parts fit one another."""
    first = parts[0]
    batch, heads, rows = axes.sizes(first)
    shape = (heads, rows) if axes.batch is None else (batch, heads, rows)
    kinds = ", ".join(MergeDType)
    if first.dtype not in tuple(MergeDType):
        raise TensorError(first.name, first.dtype, f"must have an element type of {kinds}")
    for tensor, wanted, dtype in (
        *((part, first.shape, first.dtype) for part in parts),
        *((state, shape, _LSE) for state in states),
    ):
        if tensor.shape != wanted:
            raise TensorError(tensor.name, tensor.shape, f"must have the shape {wanted}")
        if tensor.dtype != dtype:
            raise TensorError(tensor.name, tensor.dtype, f"must have the element type {dtype}")
        if tensor.place != first.place:
            limit = f"must lie on the device of {first.name}, {first.place}"
            raise TensorError(tensor.name, tensor.place, limit, "move it")
        if any(n > 1 and s < 0 for n, s in zip(tensor.shape, tensor.strides, strict=True)):
            raise TensorError(tensor.name, tensor.strides, "strides must not be negative")
    for part in parts:
        if part.shape[-1] > 1 and part.strides[-1] != 1:
            raise TensorError(part.name, part.strides, "the last dimension must have stride 1")
    if batch * heads * rows > MAX_ROWS:
        raise TensorError(first.name, first.shape, f"has more than {MAX_ROWS} rows", "split B")
    total = rows if axes.batch is None else None
    return Problem(
        batch=batch, heads=heads, heads_kv=heads, seqlen_q=rows, seqlen_k=1, total_q=total
    )


def _check_output(output: TensorView, inputs: list[TensorView]) -> None:
    """Refuse an output that overlaps with a part and is not that part."""
    first = inputs[0]
    if (output.shape, output.dtype, output.place) != (first.shape, first.dtype, first.place):
        found = f"{output.dtype}{list(output.shape)} on {output.place}"
        limit = f"must be {first.dtype}{list(first.shape)} on {first.place}"
        raise TensorError(output.name, found, limit)
    if not output.writable:
        raise TensorError(output.name, "read-only", "must be writable")
    if any(n > 1 and s <= 0 for n, s in zip(output.shape, output.strides, strict=True)):
        raise TensorError(output.name, output.strides, "its elements must not overlap")
    if output.name == "out" and misalignment(output) is not None:
        raise TensorError("out", output.strides, misalignment(output) or "", "leave out=None")
    for tensor in inputs:
        same = (tensor.address, tensor.strides) == (output.address, output.strides)
        if not same and share_elements(tensor, output):
            limit = f"overlaps with {tensor.name} without being it"
            raise TensorError(output.name, output.strides, limit, f"leave {output.name}=None")


def _readable(part: TensorView) -> TensorView:
    reason = misalignment(part)
    return part if reason is None else aligned_copy(part, reason)


@functools.cache
def _plan(dtype: str, depth: int, parts: int, target: str) -> MergePlan:
    spec = MergeSpec(dtype=MergeDType(dtype), head_dim_v=depth, parts=parts)
    return lower_merge(spec, find_target(target))


def _launch(
    target: str,
    axes: Axes,
    problem: Problem,
    factor: float,
    parts: list[TensorView],
    states: list[TensorView],
    o: TensorView,
    lse: TensorView,
) -> None:
    plan = _plan(parts[0].dtype, parts[0].shape[-1], len(parts), find_target(target).name)
    rows = problem.batch * problem.heads * problem.seqlen_q
    values: dict[str, Value] = {
        "num_rows": rows,
        "num_heads": problem.heads,
        "seqlen_q": problem.seqlen_q,
        "lse_to_log2": factor,
        "log2_to_lse": 1 / factor,
    }
    lse_axes = Axes(batch=None, head=0, row=1) if axes.batch is None else _LSE_AXES
    for i, (part, state) in enumerate(zip(parts, states, strict=True)):
        values |= _tensor(f"o_{i}", part, axes) | _tensor(f"lse_{i}", state, lse_axes)
    values |= _tensor("o", o, axes) | _tensor("lse", lse, lse_axes)
    stream = backend_of(o.memory).stream(parts[0])
    how = "call merge_states once outside it"
    loaded = load_small(plan, source_of, o.memory, o.device, stream, warm_up=how)
    memories = memories_of((*parts, *states), (o, lse))
    blocks = plan.grid.blocks(math.ceil(rows / plan.grid.tile_m), 0)
    launch = loaded.bind([values[f.name] for f in plan.params], blocks, stream, memories)
    code = launch()
    if code:
        loaded.settle(launch, code)


_LSE_AXES = Axes(batch=0, head=1, row=2)


def _tensor(name: str, tensor: TensorView, axes: Axes) -> dict[str, Value]:
    values: dict[str, Value] = {name: tensor.address}
    for axis, stride in zip("bhm", axes.strides(tensor), strict=True):
        values[f"{name}_stride_{axis}"] = stride
    return values
