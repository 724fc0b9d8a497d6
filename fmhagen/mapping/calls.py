"""Mapper: the block maps of one attention kernel, by a classifier kernel that it compiles."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

from fmhagen.compile.binary import Binary
from fmhagen.errors import TensorError
from fmhagen.expr.mods import MaskMod
from fmhagen.formula import mask_of
from fmhagen.mapping.flex import is_block_mask, map_of_block_mask
from fmhagen.mapping.plan import MapPlan, lower_map, source_of
from fmhagen.mapping.spec import MapSpec
from fmhagen.runtime.alignment import aligned_numpy
from fmhagen.runtime.arguments import Arguments, Extras, Given
from fmhagen.runtime.base import Loaded, Memories, refuse_in_capture
from fmhagen.runtime.block_map import BlockMap, map_size
from fmhagen.runtime.checks import axes_of
from fmhagen.runtime.launch_values import Value
from fmhagen.runtime.launcher import Launcher, quick_stream
from fmhagen.runtime.tensors import Framework, Memory, TensorView, import_cupy, view
from fmhagen.source import Source
from fmhagen.spec import AttentionSpec

MAX_READY = 256  # layouts kept; then all are dropped and found again
Compile = Callable[[Source, Memory], Binary]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """One layout of a call: what is left is an allocation and a launch."""

    allocate: Callable[[], Any]
    fill: Callable[[tuple[int | float, ...]], list[Value]]
    blocks: int
    loaded: Loaded
    device: int
    stream: Callable[[int], int] | None
    made: Callable[[Any], BlockMap]
    launches: dict[tuple[Any, ...], Callable[[], object]]

    def run(self, addresses: tuple[int | float, ...], stream: int, memories: Memories) -> None:
        """Launch, and keep the launch for the next call with these addresses."""
        key = (addresses, stream)
        launch = self.launches.get(key)
        if launch is None:
            launch = self.loaded.bind(self.fill(addresses), self.blocks, stream, memories)
            if len(self.launches) >= MAX_READY:
                self.launches.clear()
            # NOTE: a launch that knows its memories keeps tensors alive; the quick path gives none.
            if not memories.outputs:
                self.launches[key] = launch
        code = launch()
        if code:
            self.loaded.settle(launch, code)


class Mapper:
    """Makes the block maps of one attention kernel; compiles and loads when first needed."""

    def __init__(
        self, spec: AttentionSpec, pick: Callable[[TensorView], Launcher], compile: Compile
    ) -> None:
        """Start with nothing.

        Args:
            spec: of the attention kernel; its mask needs a map.
            pick: gives the attention kernel's launcher for q's memory.
            compile: compiles a source for a kind of memory.
        """
        mask = mask_of(spec)
        assert mask is not None
        assert spec.mask_mod is not None
        self._mask = MaskMod(mask, bound=spec.mask_mod.bound)
        self._axes = axes_of(spec)
        self._pick = pick
        self._compile = compile
        self._arguments = Arguments(AttentionSpec(mask_mod=self._mask), mapped=False)
        self._names = frozenset(parameter.name for parameter in self._mask.parameters)
        self._ready: dict[tuple[Any, ...], _Ready] = {}
        self._loaded: dict[tuple[Memory, int], Loaded] = {}
        self._lock = threading.Lock()

    def __call__(self, q: Any, k: Any, params: Mapping[str, Any] | None) -> BlockMap:
        """Return the map of a call, computed on the current stream of q's device."""
        extras = self._own(params)
        try:
            named, more, _ = self._arguments.read(extras)
            ready = self._ready[q.shape, k.shape, q.get_device(), named]
        except (AttributeError, KeyError, TypeError):
            return self._first(q, k, extras)
        assert ready.stream is not None
        tensor = ready.allocate()
        ready.run((tensor.data_ptr(), *more), ready.stream(ready.device), Memories())
        return ready.made(tensor)

    def converted(self, q: Any, k: Any, block_mask: Any) -> BlockMap:
        """Return the map that a BlockMask of PyTorch says; the mask is not asked.

        Raises:
            TensorError: it is none, or does not fit the call or the kernel's tiles.
        """
        if not is_block_mask(block_mask):
            limit = "must be a BlockMap, or a BlockMask of PyTorch"
            raise TensorError("block_map", type(block_mask).__name__, limit)
        views = self._views(q, k)
        plan = self._pick(views[0]).plan
        lengths = self._axes.sizes(views[0])[2], self._axes.sizes(views[1])[2]
        return map_of_block_mask(block_mask, plan.map_rows, plan.map_keys, *lengths)

    def load(self, launcher: Launcher, device: int, stream: int = 0) -> Loaded:
        """Return the classifier on a device; compiles and loads it the first time.

        Raises:
            CaptureError: that is still to do, and the stream is being captured.
        """
        backend = launcher.backend
        place = backend.memory, device
        with self._lock:
            found = self._loaded.get(place)
            if found is None:
                plan = self._plan(launcher)
                refuse_in_capture(backend, plan.symbol, device, stream)
                binary = self._compile(source_of(plan), backend.memory)
                found = self._loaded[place] = backend.load(binary, plan, device)
        return found

    def spec_of(self, launcher: Launcher) -> MapSpec:
        """Return what the classifier of an attention kernel decides."""
        plan = launcher.plan
        return MapSpec(mask=MaskMod(self._mask.node), tile_m=plan.map_rows, tile_n=plan.map_keys)

    def _plan(self, launcher: Launcher) -> MapPlan:
        return lower_map(self.spec_of(launcher), launcher.plan.target)

    def _views(self, q: Any, k: Any) -> tuple[TensorView, TensorView]:
        views = view("q", q), view("k", k)
        for tensor in views:
            if len(tensor.shape) != self._axes.rank:
                limit = f"must have {self._axes.rank} dimensions"
                raise TensorError(tensor.name, tensor.shape, limit)
        return views

    def _own(self, params: Mapping[str, Any] | None) -> Extras:
        """Return the arguments that the mask reads; the score function's are left out."""
        if not isinstance(params, Mapping):
            return {}
        found = {name: value for name, value in params.items() if name in self._names}
        return {"params": found} if found else {}

    def _first(self, q: Any, k: Any, extras: Extras) -> BlockMap:
        """Check everything, find all that depends on the layout, launch."""
        views = self._views(q, k)
        given = self._arguments.check(extras, views[0])
        batch, heads, seqlen_q = self._axes.sizes(views[0])
        seqlen_k = self._axes.sizes(views[1])[2]
        sizes = {"H": heads, "B": batch, "B + 1": batch + 1, "Sq": seqlen_q, "Sk": seqlen_k}
        self._arguments.check_sizes(given, sizes)
        launcher = self._pick(views[0])
        spec = self.spec_of(launcher)
        rows, words = map_size(spec.tile_m, spec.tile_n, seqlen_q, seqlen_k)
        shape = (batch if spec.per_batch else 1, heads if spec.per_head else 1, rows, words, 2)
        allocate = _allocator(views[0], shape)
        text = str(self._mask)

        def made(tensor: Any) -> BlockMap:
            return BlockMap(
                tensor=tensor,
                tile_m=spec.tile_m,
                tile_n=spec.tile_n,
                seqlen_q=seqlen_q,
                seqlen_k=seqlen_k,
                mask=text,
            )

        tensor = allocate()
        if not math.prod(shape):
            return made(tensor)
        stream = launcher.backend.stream(views[0])
        plan = self._plan(launcher)
        ready = _Ready(
            allocate=allocate,
            fill=self._filler(plan, given, shape, (seqlen_q, seqlen_k)),
            blocks=plan.grid.blocks(-(-math.prod(shape[:4]) * 4 // plan.grid.tile_m), 0),
            loaded=self.load(launcher, views[0].device, stream),
            device=views[0].device,
            stream=quick_stream(views[0]),
            made=made,
            launches={},
        )
        self._keep(ready, q, k, given, extras)
        output = view("block_map", tensor)
        memories = Memories(inputs=tuple(given.tensors.values()), outputs=(output,))
        ready.run((output.address, *given.addresses), stream, memories)
        return made(tensor)

    def _filler(
        self, plan: MapPlan, given: Given, shape: tuple[int, ...], lengths: tuple[int, int]
    ) -> Callable[[tuple[int | float, ...]], list[Value]]:
        """Return what gives the values of the parameter block for some addresses."""
        num_bytes = math.prod(shape[:4]) * 4
        if num_bytes >= 2**31:
            limit = "gives a block map of 4 GiB or more"
            raise TensorError("q", shape, limit, "split B, or pass masks of fewer heads")
        fixed: dict[str, Value] = {
            **given.values,
            "num_bytes": num_bytes,
            "num_heads": shape[1],
            "num_m_tiles": shape[2],
            "num_words": shape[3],
            "seqlen_q": lengths[0],
            "seqlen_k": lengths[1],
        }
        names = [field.name for field in plan.params]
        called = ("block_map", *self._arguments.fields)
        values = [fixed.get(name, 0) for name in names]
        places = [(names.index(name), i) for i, name in enumerate(called)]

        def fill(addresses: tuple[int | float, ...]) -> list[Value]:
            filled = values.copy()
            for place, i in places:
                filled[place] = addresses[i]
            return filled

        return fill

    def _keep(self, ready: _Ready, q: Any, k: Any, given: Given, extras: Extras) -> None:
        """Keep a layout for the quick path, under what it will read of the tensors of a call."""
        if ready.stream is None or given.is_converted:
            return
        try:
            key = (q.shape, k.shape, q.get_device(), self._arguments.read(extras)[0])
        except (AttributeError, TypeError):
            return
        if len(self._ready) >= MAX_READY:
            self._ready.clear()
        self._ready[key] = ready


def _allocator(q: TensorView, shape: tuple[int, ...]) -> Callable[[], Any]:
    """Return a function that makes a new map beside q, by the allocator of q's framework.

    Raises:
        TensorError: the framework is unknown.
    """
    if q.framework == Framework.TORCH:
        import torch

        device = q.tensor.device
        return lambda: torch.empty(shape, dtype=torch.int32, device=device)
    if q.framework == Framework.CUPY:
        cupy, device = import_cupy(), q.tensor.device.id

        def empty() -> Any:
            with cupy.cuda.Device(device):
                return cupy.empty(shape, "int32")

        return empty
    if q.framework == Framework.NUMPY:
        import numpy as np

        return lambda: aligned_numpy(shape, np.int32)
    owner = q.tensor[0] if isinstance(q.tensor, tuple) else q.tensor
    limit = "fmhagen cannot allocate a block map in this framework"
    raise TensorError("q", type(owner).__name__, limit, "pass block_map=, or PyTorch tensors")
