"""Launcher: one plan on one backend, from checked tensors to a prepared launch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fmhagen.compile.binary import Binary
from fmhagen.errors import TensorError
from fmhagen.plan.attention import Plan
from fmhagen.runtime.alignment import aligned_copy, misalignment
from fmhagen.runtime.arguments import Given
from fmhagen.runtime.base import Backend, Loaded, refuse_in_capture
from fmhagen.runtime.checks import Problem, axes_of, key_axes_of
from fmhagen.runtime.launch_values import (
    Operand,
    Value,
    launch_values,
    operand,
    scale_log2_of,
)
from fmhagen.runtime.outputs import workspace_allocator
from fmhagen.runtime.pair import WORKSPACE_FIELDS, PreparedPair
from fmhagen.runtime.parts import choose_parts, second_blocks
from fmhagen.runtime.prepared import Maps, Prepared
from fmhagen.runtime.tensors import Framework, Memory, TensorView
from fmhagen.runtime.torch_memory import Allocate


class Launcher:
    """One plan on one backend; compiles and loads when first needed."""

    def __init__(self, plan: Plan, backend: Backend, compile_binary: Callable[[], Binary]) -> None:
        """Do nothing yet: `compile_binary` is called when the kernel is first needed."""
        self.plan = plan
        self.backend = backend
        self._compile = compile_binary
        self._binary: Binary | None = None
        self._loaded: dict[int, Loaded] = {}
        self._second: dict[int, Loaded] = {}
        self._lock = threading.Lock()
        self.axes = axes_of(plan.spec)
        self.key_axes = key_axes_of(plan.spec)

    @property
    def binary(self) -> Binary:
        """The compiled kernel."""
        if self._binary is None:
            self._binary = self._compile()
        return self._binary

    def load(self, device: int, stream: int = 0) -> Loaded:
        """Return the kernel on a device; compiles and loads it the first time.

        Raises:
            CaptureError: that is still to do, and the stream is being captured.
        """
        if self.plan.combine is not None:
            self.load_second(device, stream)
        return self._load(self.plan, self._loaded, device, stream)

    def load_second(self, device: int, stream: int = 0) -> Loaded:
        """Return the second kernel of the plan's file on a device, as `load` does the first.

        Raises:
            CaptureError: see `load`.
        """
        plan = self.plan.combine
        assert plan is not None
        return self._load(plan, self._second, device, stream)

    def _load(self, plan: Plan, kept: dict[int, Loaded], device: int, stream: int) -> Loaded:
        loaded = kept.get(device)
        if loaded is None:
            with self._lock:
                loaded = kept.get(device)
                if loaded is None:
                    refuse_in_capture(self.backend, plan.symbol, device, stream)
                    loaded = self.backend.load(self.binary, plan, device)
                    kept[device] = loaded
        return loaded

    def fit(self, tensor: TensorView) -> TensorView:
        """Return an input that the kernel can read: itself, or an aligned copy with a warning."""
        reason = misalignment(tensor)
        if reason is None:
            reason = self.backend.unfit(self.plan, operand(tensor.name, tensor, self.axes))
        return tensor if reason is None else aligned_copy(tensor, reason)

    def fit_cache(self, tensor: TensorView) -> TensorView:
        """Return K or V of a cache; no copy is made of one, as it would be made in every call.

        Raises:
            TensorError: the kernel cannot read it.
        """
        refuse_unfit(
            tensor, self.backend.unfit(self.plan, operand(tensor.name, tensor, self.key_axes))
        )
        return tensor

    def prepare(
        self,
        problem: Problem,
        inputs: tuple[TensorView, TensorView, TensorView],
        o: TensorView,
        allocate: tuple[Allocate, Allocate],
        stream: int,
        given: Given,
        more: tuple[str, ...],
    ) -> Prepared:
        """Find all that depends on the layout of a call; `more` are the fields of `given`."""
        q, k, v = inputs
        operands = [
            operand(name, tensor, self.key_axes if name in "kv" else self.axes)
            for name, tensor in zip("qkvo", (q, k, v, o), strict=True)
        ]
        reason = self.backend.unfit(self.plan, operands[3])
        if reason is not None:
            hint = "leave out=None, or pass a dense tensor"
            raise TensorError("out", o.strides, reason, hint)
        one_factor = not self.plan.small.is_used  # NOTE: else each head has its own
        if one_factor and _heads_expanded(operands[1]) and _heads_expanded(operands[2]):
            # One key head under many names: read as the single head that it is.
            operands[1:3] = [replace(item, heads=1, stride_h=item.depth) for item in operands[1:3]]
            problem = replace(problem, heads_kv=1)
        loaded = self.load(q.device, stream)
        units = self.backend.compute_units(q.device)
        parts = 1
        if self.plan.schedule.split_keys:
            wished = given.numbers.get("num_splits", 0)
            parts = choose_parts(self.plan, problem, units, wished)
        cut: dict[str, Value] = {"splits": parts, **dict.fromkeys(WORKSPACE_FIELDS, 0)}
        values = {**cut, **given.values, **dict.fromkeys(more, 0)}
        found = launch_values(self.plan, problem, tuple(operands), units, values, parts)
        common: dict[str, Any] = {
            **self.of_call(q, allocate),
            "values": found.values,
            "maps": self._maps({item.name: item for item in operands}, problem.packed_heads),
            "keys_are_empty": problem.rows_k == 0 or 0 in k.shape,
        }
        if parts == 1:
            return Prepared(**common, more=more, blocks=found.blocks, loaded=loaded)
        common["more"] = (*more, *WORKSPACE_FIELDS)
        second = self.load_second(q.device, stream)
        o_bytes = parts * 4 * problem.batch * problem.heads * problem.seqlen_q * self.plan.spec.dv
        return PreparedPair(
            **common,
            blocks=found.blocks,
            loaded=loaded,
            second=Prepared(**common, blocks=second_blocks(problem), loaded=second),
            new_workspace=workspace_allocator(q, o_bytes + o_bytes // self.plan.spec.dv),
            o_bytes=o_bytes,
            both_write=False,
        )

    def of_call(self, q: TensorView, allocate: tuple[Allocate, Allocate]) -> dict[str, Any]:
        """Return the arguments of `Prepared` that are the same of all launches of a call."""
        return {
            "names": tuple(field.name for field in self.plan.params),
            "new_o": allocate[0],
            "new_lse": allocate[1],
            "device": q.device,
            "stream": quick_stream(q),
            "wants_gradients": wants_gradients(q),
            "scale_log2": scale_log2_of(self.plan.spec.scale_value),
        }

    def _maps(self, operands: dict[str, Operand], packed: int) -> dict[str, Maps]:
        made = {}
        for map_plan in self.plan.tensor_maps:
            item = operands[map_plan.tensor]
            if map_plan.packs_heads:
                columns, rows, _, *rest = map_plan.box
                box = (columns, packed, rows // packed, *rest)
                map_plan = replace(map_plan, box=box)
                item = replace(item, heads_first=True)
            made[map_plan.field] = Maps(self.backend.map_encoder(map_plan, item))
        return made


def refuse_unfit(tensor: TensorView, reason: str | None) -> None:
    """Refuse K or V of a cache if there is a reason."""
    if reason is not None:
        hint = "allocate the cache with such strides"
        raise TensorError(tensor.name, tensor.strides, reason, hint)


def _heads_expanded(item: Operand) -> bool:
    return item.heads > 1 and item.stride_h == 0


def quick_stream(q: TensorView) -> Callable[[int], int] | None:
    """Return what gives the current stream of a device; None where no quick path goes."""
    if q.framework != Framework.TORCH or q.memory == Memory.HOST:
        return None
    import torch

    get: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
    return get


def wants_gradients(q: TensorView) -> Callable[[], bool]:
    """Return what says whether the framework of q records operations now."""
    if q.framework != Framework.TORCH:
        return lambda: False
    import torch

    get: Callable[[], bool] = torch.is_grad_enabled
    return get
