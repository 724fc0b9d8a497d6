"""Calls: what a kernel does with tensors, slowly the first time and quickly ever after.

All that depends on shapes, strides, dtype and device is found once and kept as a `Prepared`; a
later call of the same layout reads addresses, allocates O, packs the block and launches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fmhagen.runtime.checks import check_inputs, check_out
from fmhagen.runtime.launch_values import scale_log2_of
from fmhagen.runtime.launcher import Launcher
from fmhagen.runtime.outputs import allocators, output_shapes
from fmhagen.runtime.prepared import Prepared
from fmhagen.runtime.tensors import ALIGNMENT_BYTES, Framework, Memory, TensorView, view

MAX_PREPARED = 256  # layouts kept; then all are dropped and found again


class Calls:
    """The calls of one kernel: finds the launcher for a tensor's memory, keeps the layouts."""

    def __init__(self, pick: Callable[[TensorView], Launcher]) -> None:
        """Start with no layout; `pick` gives the launcher for q's memory."""
        self._pick = pick
        self._prepared: dict[tuple[Any, ...], Prepared] = {}

    def __call__(
        self, q: Any, k: Any, v: Any, scale: float | None, out: Any, return_lse: bool
    ) -> Any:
        """Compute O, and LSE if asked for; see `fmhagen.api.Kernel`."""
        # The quick path: torch tensors of a known layout. NOTE: every line here is paid for by
        # every call, so there are no records, no NumPy and no checks that the key has made.
        try:
            # fmt: off
            key: tuple[Any, ...] = (
                q.shape, q.stride(), q.dtype, q.get_device(),
                k.shape, k.stride(), k.dtype, k.get_device(),
                v.shape, v.stride(), v.dtype, v.get_device(),
            )
            # fmt: on
            if out is not None:
                key = (*key, out.shape, out.stride(), out.dtype, out.get_device())
            prepared = self._prepared[key]
        except (AttributeError, KeyError, TypeError):
            return self._first(q, k, v, scale, out, return_lse)
        q_address, k_address, v_address = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if (q_address | k_address | v_address) % ALIGNMENT_BYTES or (
            q.requires_grad or k.requires_grad or v.requires_grad
        ):
            return self._first(q, k, v, scale, out, return_lse)
        if out is None:
            o = prepared.new_o()
            o_address = o.data_ptr()
        else:
            o = out
            o_address = o.data_ptr()
            if o_address % ALIGNMENT_BYTES or o_address in (q_address, k_address, v_address):
                return self._first(q, k, v, scale, out, return_lse)
        lse = prepared.new_lse() if return_lse else None
        prepared.run(
            (q_address, k_address, v_address, o_address, 0 if lse is None else lse.data_ptr()),
            prepared.scale_log2 if scale is None else scale_log2_of(scale),
            prepared.stream(prepared.device),  # type: ignore[misc]
            (),
        )
        return o if lse is None else (o, lse)

    def _first(
        self, q: Any, k: Any, v: Any, scale: float | None, out: Any, return_lse: bool
    ) -> Any:
        """Check everything, prepare the layout, keep it if the quick path can use it, launch."""
        views = view("q", q), view("k", k), view("v", v)
        launcher = self._pick(views[0])
        spec = launcher.plan.spec
        problem = check_inputs(spec, *views)
        scale_log2 = scale_log2_of(spec.scale_value if scale is None else scale)
        shapes = output_shapes(launcher.axes, problem, views[0], spec.dv)
        allocate = allocators(views[0], shapes, has_out=out is not None)
        if out is not None:
            addresses = tuple(tensor.address for tensor in views)
            check_out(spec, problem, view("out", out), views[0], addresses)
        if problem.is_empty:
            o = allocate[0]() if out is None else out
            return (o, allocate[1]()) if return_lse else o
        inputs = launcher.fit(views[0]), launcher.fit(views[1]), launcher.fit(views[2])
        stream = launcher.backend.stream(views[0])
        launcher.load(views[0].device, stream)
        o = allocate[0]() if out is None else out
        lse = allocate[1]() if return_lse else None
        o_view = view("out", o)
        prepared = launcher.prepare(problem, inputs, o_view, allocate, stream)
        self._keep(prepared, inputs, out)
        tensors = (*inputs, o_view) if lse is None else (*inputs, o_view, view("lse", lse))
        q_address, k_address, v_address, o_address = (tensor.address for tensor in tensors[:4])
        lse_address = 0 if lse is None else tensors[-1].address
        addresses = (q_address, k_address, v_address, o_address, lse_address)
        prepared.run(addresses, scale_log2, stream, tensors)
        return o if lse is None else (o, lse)

    def _keep(
        self,
        prepared: Prepared,
        inputs: tuple[TensorView, TensorView, TensorView],
        out: Any,
    ) -> None:
        if any(t.framework != Framework.TORCH or t.memory == Memory.HOST for t in inputs):
            return
        if out is not None and not hasattr(out, "stride"):
            return
        tensors = [t.tensor for t in inputs] + ([] if out is None else [out])
        key = tuple(x for t in tensors for x in (t.shape, t.stride(), t.dtype, t.get_device()))
        if len(self._prepared) >= MAX_PREPARED:
            self._prepared.clear()
        self._prepared[key] = prepared
