"""Calls: what a kernel does with tensors, slowly the first time and quickly ever after.

All that depends on shapes, strides, dtype and device is found once and kept as a `Prepared`; a
later call of the same layout reads addresses, allocates O and starts a launch, which is kept by the
addresses in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fmhagen.errors import TensorError
from fmhagen.runtime.argument_kinds import MAX_LOGIT
from fmhagen.runtime.arguments import Arguments, Extras, Given
from fmhagen.runtime.base import Memories
from fmhagen.runtime.checks import Packing, Problem, check_inputs, check_out
from fmhagen.runtime.launch_values import scale_log2_of
from fmhagen.runtime.launcher import Launcher
from fmhagen.runtime.offsets import check_offsets
from fmhagen.runtime.outputs import allocators, output_shapes
from fmhagen.runtime.prepared import Prepared
from fmhagen.runtime.tensors import ALIGNMENT_BYTES, Framework, Memory, TensorView, view
from fmhagen.runtime.torch_memory import Allocate
from fmhagen.spec import AttentionSpec

MAX_PREPARED = 256  # layouts kept; then all are dropped and found again
Views = tuple[TensorView, TensorView, TensorView]


class Calls:
    """The calls of one kernel: finds the launcher for a tensor's memory, keeps the layouts."""

    def __init__(self, spec: AttentionSpec, pick: Callable[[TensorView], Launcher]) -> None:
        """Start with no layout; `pick` gives the launcher for q's memory."""
        self._spec = spec
        self._pick = pick
        self._arguments = self._arguments_of(spec)
        self._reads = self._arguments.is_needed_always
        self._prepared: dict[tuple[Any, ...], Prepared] = {}
        # The last layouts without other arguments, without and with an `out`, if guarded.
        self._last: Prepared | None = None
        self._last_into: Prepared | None = None

    def _arguments_of(self, spec: AttentionSpec) -> Arguments:
        return Arguments(spec)

    def _problem(self, views: Views, given: Given) -> Problem:
        """Return the sizes of a call.

        Raises:
            TensorError: the tensors do not fit one another.
        """
        return check_inputs(self._spec, *views, packing=packing_of(self._spec, given))

    def _fit(self, launcher: Launcher, views: Views) -> Views:
        """Return the inputs as the kernel can read them."""
        return launcher.fit(views[0]), launcher.fit(views[1]), launcher.fit(views[2])

    def _values(self, problem: Problem, given: Given, views: Views) -> Given:
        """Return the arguments with what else the kernel is told."""
        return given

    def _prepare(
        self,
        launcher: Launcher,
        problem: Problem,
        inputs: Views,
        o: TensorView,
        allocate: tuple[Allocate, Allocate],
        stream: int,
        given: Given,
    ) -> Prepared:
        """Find all that depends on the layout of a call."""
        more = self._arguments.fields
        return launcher.prepare(problem, inputs, o, allocate, stream, given, more)

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        scale: float | None = None,
        out: Any = None,
        return_lse: bool = False,
        extras: Extras | None = None,
    ) -> Any:
        """Compute O, and LSE if asked for; see `fmhagen.api.Kernel`."""
        # The quick path: torch tensors of a known layout. NOTE: every line here is paid for by
        # every call, so there are no records, no NumPy and no checks that the key has made.
        more: tuple[int | float, ...] = ()
        prepared = self._last if out is None else self._last_into
        if (
            extras
            or prepared is None
            or not (prepared.guard(q, k, v) if out is None else prepared.guard(q, k, v, out))
        ):
            gradients = False
            try:
                # fmt: off
                key: tuple[Any, ...] = (
                    q.shape, q.stride(), q.dtype, q.get_device(),
                    k.shape, k.stride(), k.dtype, k.get_device(),
                    v.shape, v.stride(), v.dtype, v.get_device(),
                )
                # fmt: on
                if extras or self._reads:
                    named, more, gradients = self._arguments.read(extras or {})
                    key = (*key, named)
                if out is not None:
                    key = (*key, out.shape, out.stride(), out.dtype, out.get_device())
                prepared = self._prepared[key]
            except (AttributeError, KeyError, RuntimeError, TypeError):
                return self._first(q, k, v, scale, out, return_lse, extras)
            if (
                q.requires_grad or k.requires_grad or v.requires_grad or gradients
            ) and prepared.wants_gradients():
                return self._first(q, k, v, scale, out, return_lse, extras)
            if prepared.is_guarded:
                if out is None:
                    self._last = prepared
                else:
                    self._last_into = prepared
        try:
            q_address, k_address, v_address = q.data_ptr(), k.data_ptr(), v.data_ptr()
        except RuntimeError:  # of a tensor without memory: the checks say so
            return self._first(q, k, v, scale, out, return_lse, extras)
        if (q_address | k_address | v_address) % ALIGNMENT_BYTES:
            return self._first(q, k, v, scale, out, return_lse, extras)
        if out is None:
            o = prepared.new_o()
            o_address = o.data_ptr()
        else:
            o = out
            o_address = o.data_ptr()
            if o_address % ALIGNMENT_BYTES or o_address in (q_address, k_address, v_address):
                return self._first(q, k, v, scale, out, return_lse, extras)
        if return_lse:
            lse = prepared.new_lse()
            lse_address = lse.data_ptr()
        else:
            lse, lse_address = None, 0
        stream = prepared.stream(prepared.device)  # type: ignore[misc]
        place: tuple[Any, ...] = (
            q_address, k_address, v_address, o_address, lse_address, scale, stream,
        )  # fmt: skip
        if more:
            place = (*place, *more)
        launch = prepared.launches.get(place)
        if launch is None:
            addresses = (q_address, k_address, v_address, o_address, lse_address, *more)
            launch = prepared.launch_of(place, addresses, scale, stream)
        code = launch()
        if code:
            prepared.settle(launch, code)
        return (o, lse) if return_lse else o

    def _first(
        self,
        q: Any,
        k: Any,
        v: Any,
        scale: float | None,
        out: Any,
        return_lse: bool,
        extras: Extras | None,
    ) -> Any:
        """Check everything, prepare the layout, keep it if the quick path can use it, launch."""
        views = view("q", q), view("k", k), view("v", v)
        given = self._arguments.check(extras or {}, views[0])
        launcher = self._pick(views[0])
        spec = launcher.plan.spec
        problem = self._problem(views, given)
        table = given.tensors.get("block_table")
        self._arguments.check_sizes(
            given,
            {
                "H": problem.heads,
                "B": problem.batch,
                "B + 1": problem.batch + 1,
                "Sq": problem.seqlen_q,
                "Sk": problem.seqlen_k,
                "max_pages": 0 if table is None else table.shape[1],
            },
        )
        given = self._values(problem, given, views)
        if given.block_map is not None:
            plan = launcher.plan
            tile = (plan.map_rows, plan.map_keys)
            given.block_map.check(problem, *tile, self._arguments.mask)
        is_complete = True
        if problem.is_packed and _reads_offsets(given, views[0]):
            is_complete = check_offsets(problem, given)
        elif problem.is_packed:
            is_complete = False
        scale_log2 = scale_log2_of(spec.scale_value if scale is None else scale)
        shapes = output_shapes(launcher.axes, problem, views[0], spec.dv)
        allocate = allocators(views[0], shapes, has_out=out is not None)
        if out is not None:
            inputs_at = tuple(tensor.address for tensor in views)
            check_out(spec, problem, view("out", out), views[0], inputs_at)
        if problem.is_empty:
            o = allocate[0]() if out is None else out
            return (o, allocate[1]()) if return_lse else o
        inputs = self._fit(launcher, views)
        stream = launcher.backend.stream(views[0])
        launcher.load(views[0].device, stream)
        o = allocate[0]() if out is None else out
        o_view = view("out", o)
        outputs: tuple[TensorView, ...] = (o_view,)
        lse = allocate[1]() if return_lse else None
        if lse is not None:
            outputs = o_view, view("lse", lse)
        prepared = self._prepare(launcher, problem, inputs, o_view, allocate, stream, given)
        self._keep(prepared, inputs, out, given, extras)
        addresses = (
            *(tensor.address for tensor in (*inputs, *outputs)),
            *(() if return_lse else (0,)),
            *given.addresses,
        )
        memories = Memories(
            inputs=(*inputs, *(t for n, t in given.tensors.items() if n != MAX_LOGIT)),
            outputs=outputs,
            updated=tuple(t for n, t in given.tensors.items() if n == MAX_LOGIT),
            is_complete=is_complete,
        )
        prepared.run(addresses, scale_log2, stream, memories)
        return o if lse is None else (o, lse)

    def _keep(
        self,
        prepared: Prepared,
        inputs: tuple[TensorView, TensorView, TensorView],
        out: Any,
        given: Given,
        extras: Extras | None,
    ) -> None:
        """Keep a layout for the quick path, under what it will read of the tensors of a call."""
        if prepared.stream is None or any(t.framework != Framework.TORCH for t in inputs):
            return
        if out is not None and not hasattr(out, "stride"):
            return
        tensors = [t.tensor for t in inputs]
        key = tuple(x for t in tensors for x in (t.shape, t.stride(), t.dtype, t.get_device()))
        if given.is_converted:
            return
        if extras or self._reads:
            try:
                key = (*key, self._arguments.read(extras or {})[0])
            except (AttributeError, TypeError):
                return
        if out is not None:
            key = (*key, out.shape, out.stride(), out.dtype, out.get_device())
        if not extras and not self._reads:
            prepared.guard_by(tensors if out is None else [*tensors, out])
        if len(self._prepared) >= MAX_PREPARED:
            self._prepared.clear()
        self._prepared[key] = prepared


def packing_of(spec: AttentionSpec, given: Given) -> Packing | None:
    """Return how many sequences a call packs, by the shape of its offsets."""
    if not spec.varlen:
        return None
    offsets = given.tensors["cu_seqlens_q"]
    if offsets.shape[0] < 1:
        raise TensorError("cu_seqlens_q", offsets.shape, "must have at least one entry, 0")
    return Packing(
        batch=offsets.shape[0] - 1,
        max_q=given.numbers.get("max_seqlen_q"),
        max_k=given.numbers.get("max_seqlen_k"),
    )


def _reads_offsets(given: Given, q: TensorView) -> bool:
    """Return whether offsets are read: where asked for, and by default where that is free."""
    return q.memory == Memory.HOST if given.validate is None else given.validate
