"""Calls over a key/value cache: two launches, the second of which adds up what the first cut.

Nothing is read of lengths or tables: grid and workspace follow from shapes, so that a captured
graph serves any lengths. As in `calls`, a layout is prepared once and a launch is kept
by its addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fmhagen.errors import TensorError
from fmhagen.runtime.argument_kinds import MAX_LOGIT
from fmhagen.runtime.arguments import Arguments, Extras
from fmhagen.runtime.base import Memories
from fmhagen.runtime.cache_checks import (
    check_cache,
    check_lengths,
    check_scales,
    check_table,
)
from fmhagen.runtime.cache_prepared import Ready, prepare_cache
from fmhagen.runtime.cache_values import (
    choose_cut,
)
from fmhagen.runtime.checks import check_out
from fmhagen.runtime.launch_values import scale_log2_of
from fmhagen.runtime.launcher import Launcher
from fmhagen.runtime.outputs import allocators, output_shapes
from fmhagen.runtime.tensors import (
    ALIGNMENT_BYTES,
    Framework,
    TensorView,
    view,
)
from fmhagen.spec import AttentionSpec

MAX_PREPARED = 256
OWN = ("cache_seqlens", "block_table", "num_splits", "k_scale", "v_scale")


class CacheCalls:
    """The calls of one kernel over a cache; see `calls.Calls`."""

    def __init__(self, spec: AttentionSpec, pick: Callable[[TensorView], Launcher]) -> None:
        """Start with no layout; `pick` gives the launcher for q's memory."""
        self._spec = spec
        self._pick = pick
        self._arguments = Arguments(spec)
        self._ready: dict[tuple[Any, ...], Ready] = {}

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
        given = extras or {}
        lengths, table = given.get("cache_seqlens"), given.get("block_table")
        k_scale, v_scale = given.get("k_scale"), given.get("v_scale")
        more: tuple[int | float, ...] = ()
        try:
            # fmt: off
            key: tuple[Any, ...] = (
                q.shape, q.stride(), q.dtype, q.get_device(),
                k.shape, k.stride(), k.dtype, k.get_device(),
                v.shape, v.stride(), v.dtype, v.get_device(),
                *_layout(lengths), *_layout(table), *_layout(out), given.get("num_splits"),
                *_layout(k_scale), *_layout(v_scale),
            )
            # fmt: on
            if self._arguments.fields:
                named, more, _ = self._arguments.read(_others(given))
                key = (*key, named)
            ready = self._ready[key]
        except (AttributeError, KeyError, TypeError):
            return self._first(q, k, v, scale, out, return_lse, given)
        first, second = ready.first, ready.second
        q_address, k_address, v_address = q.data_ptr(), k.data_ptr(), v.data_ptr()
        o = first.new_o() if out is None else out
        o_address = o.data_ptr()
        if (q_address | k_address | v_address | o_address) % ALIGNMENT_BYTES or (
            q.requires_grad and first.wants_gradients()
        ):
            return self._first(q, k, v, scale, out, return_lse, given)
        lse = first.new_lse() if return_lse else None
        workspace = None if ready.new_workspace is None else ready.new_workspace()
        partial = 0 if workspace is None else workspace.data_ptr()
        stream = first.stream(first.device)  # type: ignore[misc]
        addresses = (
            q_address,
            k_address,
            v_address,
            o_address,
            0 if lse is None else lse.data_ptr(),
            0 if table is None else table.data_ptr(),
            0 if lengths is None else lengths.data_ptr(),
            partial,
            partial + ready.o_bytes,
            0 if k_scale is None else k_scale.data_ptr(),
            0 if v_scale is None else v_scale.data_ptr(),
            *more,
        )
        place = (addresses, scale, stream)
        for prepared in (first,) if second is None else (first, second):
            launch = prepared.launches.get(place)
            if launch is None:
                launch = prepared.launch_of(place, addresses, scale, stream)
            code = launch()
            if code:
                prepared.settle(launch, code)
        return o if lse is None else (o, lse)

    def _first(
        self,
        q: Any,
        k: Any,
        v: Any,
        scale: float | None,
        out: Any,
        return_lse: bool,
        given: Extras,
    ) -> Any:
        """Check everything, prepare the layout, keep it if the quick path can use it, launch."""
        spec = self._spec
        views = view("q", q), view("k", k), view("v", v)
        q_view, k_view, v_view = views
        arguments = self._arguments.check(_others(given), q_view)
        num_splits = _whole_splits(given.get("num_splits"))
        batch = q_view.shape[0] if q_view.shape else 0
        table = check_table(spec, given.get("block_table"), q_view, batch)
        launcher = self._pick(q_view)
        plan = launcher.plan
        problem = check_cache(spec, *views, table, float8_kind=plan.target.float8_kind)
        lengths = check_lengths(given.get("cache_seqlens"), q_view, batch)
        sizes = problem.sizes
        names = {"B": batch, "H": sizes.heads, "Sq": sizes.seqlen_q, "Sk": sizes.seqlen_k}
        self._arguments.check_sizes(arguments, names)
        scales = check_scales(spec, given, k_view, batch)
        if lengths is None and spec.page_size is not None:
            raise TensorError("cache_seqlens", None, "must be given: int32 of shape (B,)")
        scale_log2 = scale_log2_of(spec.scale_value if scale is None else scale)
        shapes = output_shapes(launcher.axes, sizes, q_view, spec.dv)
        allocate = allocators(q_view, shapes, has_out=out is not None)
        if out is not None:
            inputs_at = tuple(tensor.address for tensor in views)
            check_out(spec, sizes, view("out", out), q_view, inputs_at)
        if sizes.is_empty:
            o = allocate[0]() if out is None else out
            return (o, allocate[1]()) if return_lse else o
        q_view = launcher.fit(q_view)
        stream = launcher.backend.stream(q_view)
        launcher.load(q_view.device, stream)
        o = allocate[0]() if out is None else out
        o_view = view("out", o)
        lse = allocate[1]() if return_lse else None
        units = launcher.backend.compute_units(q_view.device)
        cut = choose_cut(plan, problem, units, num_splits)
        tensors = q_view, k_view, v_view, o_view
        more = {**arguments.values, **dict.fromkeys(self._arguments.fields, 0)}
        fields = self._arguments.fields
        ready = prepare_cache(
            launcher, problem, cut, tensors, table, scales, allocate, stream, more, fields
        )
        if not arguments.is_converted:
            self._keep(ready, (q_view, k_view, v_view), q, out, lengths, table, given)
        workspace = (
            None if ready.new_workspace is None else view("workspace", ready.new_workspace())
        )
        partial = 0 if workspace is None else workspace.address
        outputs = (o_view,) if lse is None else (o_view, view("lse", lse))
        addresses = (
            q_view.address,
            k_view.address,
            v_view.address,
            o_view.address,
            0 if lse is None else outputs[-1].address,
            0 if table is None else table.address,
            0 if lengths is None else lengths.address,
            partial,
            partial + ready.o_bytes,
            *(scales[name].address if name in scales else 0 for name in ("k_scale", "v_scale")),
            *arguments.addresses,
        )
        named = arguments.tensors.items()
        read = *scales.values(), *(tensor for name, tensor in named if name != MAX_LOGIT)
        raised = tuple(tensor for name, tensor in named if name == MAX_LOGIT)
        own = (q_view, k_view, v_view, table, lengths, *read)
        inputs = tuple(tensor for tensor in own if tensor is not None)
        works = () if workspace is None else (workspace,)
        memories = Memories(
            inputs=inputs,
            outputs=(*outputs, *works),
            updated=raised,
            is_complete=ready.second is None,
            leads=ready.second is not None,
        )
        ready.first.run(addresses, scale_log2, stream, memories)
        if ready.second is not None:
            # NOTE: the first launch waits before it lets the second one begin.
            memories = Memories(inputs=works, settled=inputs, updated=outputs)
            ready.second.run(addresses, scale_log2, stream, memories)
        return o if lse is None else (o, lse)

    def _keep(
        self,
        ready: Ready,
        inputs: tuple[TensorView, TensorView, TensorView],
        q: Any,
        out: Any,
        lengths: TensorView | None,
        table: TensorView | None,
        given: Extras,
    ) -> None:
        """Keep a layout for the quick path, unless something was converted for this call."""
        if ready.first.stream is None or any(t.framework != Framework.TORCH for t in inputs):
            return
        if inputs[0].tensor is not q or (out is not None and not hasattr(out, "stride")):
            return
        for name, tensor in (("cache_seqlens", lengths), ("block_table", table)):
            if tensor is not None and given.get(name) is not tensor.tensor:
                return
        tensors = [t.tensor for t in inputs]
        key: tuple[Any, ...] = (
            *(x for t in tensors for x in _layout(t)),
            *_layout(given.get("cache_seqlens")),
            *_layout(given.get("block_table")),
            *_layout(out),
            given.get("num_splits"),
            *_layout(given.get("k_scale")),
            *_layout(given.get("v_scale")),
        )
        if self._arguments.fields:
            try:
                key = (*key, self._arguments.read(_others(given))[0])
            except (AttributeError, TypeError):
                return
        if len(self._ready) >= MAX_PREPARED:
            self._ready.clear()
        self._ready[key] = ready


def _layout(tensor: Any) -> tuple[Any, ...]:
    """Return what a launch on a torch tensor depends on besides its address."""
    if tensor is None:
        return (None,)
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device()


def _others(given: Extras) -> Any:
    """Return the arguments of a call that are not those of a cache."""
    return {name: item for name, item in given.items() if name not in OWN}


def _whole_splits(value: int | None) -> int | None:
    if value is None or value == 0:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
        limit = "must be a whole number from 1 to 1024; None or 0 lets the kernel choose"
        raise TensorError("num_splits", value, limit)
    return value
