"""One layout of a call whose keys are cut on the device: launches, grid, workspace."""

from __future__ import annotations

from typing import Any

from fmhagen.runtime.arguments import Given
from fmhagen.runtime.cache_checks import cache_axes
from fmhagen.runtime.cache_values import cache_operand, cache_values, choose_cut, workspace_bytes
from fmhagen.runtime.checks import Problem
from fmhagen.runtime.launch_values import operand
from fmhagen.runtime.launcher import Launcher
from fmhagen.runtime.outputs import workspace_allocator
from fmhagen.runtime.pair import WORKSPACE_FIELDS, PreparedPair
from fmhagen.runtime.prepared import Maps, Prepared
from fmhagen.runtime.tensors import TensorView
from fmhagen.runtime.torch_memory import Allocate


def prepare_cut(
    launcher: Launcher,
    problem: Problem,
    tensors: tuple[TensorView, TensorView, TensorView, TensorView],
    allocate: tuple[Allocate, Allocate],
    stream: int,
    given: Given,
    fields: tuple[str, ...],
) -> Prepared:
    """Find all that depends on the layout of a call.

    Args:
        launcher: of the plan, which has a `split`.
        problem: the sizes of the call; its seqlen_k is the capacity.
        tensors: q, k, v and o.
        allocate: makes O and LSE.
        stream: of the call.
        given: the arguments of the call, with what else the kernel is told.
        fields: those among them that every call fills.

    Raises:
        TensorError: the call has more blocks or steps than are counted, or asks for a cut that
            the spec has fixed.
    """
    plan, backend = launcher.plan, launcher.backend
    q, k, v, o = tensors
    units = backend.compute_units(q.device)
    cut = choose_cut(plan, problem, units, given.numbers.get("num_splits") or None)
    rows = operand("q", q, launcher.axes), operand("o", o, launcher.axes)
    axes = cache_axes(plan.spec)
    keys = cache_operand("k", k, axes), cache_operand("v", v, axes)
    by_name = {cache.name: cache for cache in keys}
    own = cache_values(plan, problem, cut, rows, keys)
    common: dict[str, Any] = {
        **launcher.of_call(q, allocate),
        "values": own | given.values | dict.fromkeys(fields, 0),
        "maps": {
            item.field: Maps(backend.map_encoder(item, by_name[item.tensor]))
            for item in plan.tensor_maps
        },
        "more": (*fields, *WORKSPACE_FIELDS) if cut.items else fields,
        "keys_are_empty": 0 in k.shape,
    }
    first: dict[str, Any] = {"blocks": cut.blocks, "loaded": launcher.load(q.device, stream)}
    if not cut.items:
        return Prepared(**common, **first)
    loaded = launcher.load_second(q.device, stream)
    o_bytes, lse_bytes = workspace_bytes(plan, cut)
    return PreparedPair(
        **common,
        **first,
        second=Prepared(**common, blocks=cut.combine_blocks, loaded=loaded),
        new_workspace=workspace_allocator(q, o_bytes + lse_bytes),
        o_bytes=o_bytes,
        both_write=True,
    )
