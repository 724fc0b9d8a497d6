"""Launch: what is fixed for all calls of one layout: kernel, grid, values, outputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fmhagen.appending.checks import AppendTensors
from fmhagen.appending.plan import AppendPlan, lower_append, source_of
from fmhagen.appending.spec import VECTOR_BYTES, AppendSpec, SmallDType, widest_vector
from fmhagen.errors import TensorError
from fmhagen.runtime.base import Loaded, Memories
from fmhagen.runtime.devices import TARGET_OF_MEMORY
from fmhagen.runtime.launch_values import Value
from fmhagen.runtime.overlaps import memories_of
from fmhagen.runtime.small_kernels import backend_of, load_small
from fmhagen.runtime.tensors import TensorView
from fmhagen.targets import TARGETS, Target, find_target

MAX_LAUNCHES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """One layout of a call: what is left is to allocate and to launch.

    Attributes:
        plan, loaded, blocks, device: the kernel and its grid.
        called: fields of the parameter block that are addresses, in the order of `launch`.
        values: of all fields, 0 for those.
        alignment: bytes that the addresses of rows, cosines and sines must be multiples of.
        stream: gives the current stream where a quick path goes.
        launches: kept by addresses and stream.
    """

    plan: AppendPlan
    loaded: Loaded
    blocks: int
    device: int
    called: tuple[str, ...]
    values: dict[str, Value]
    alignment: int
    stream: Callable[[int], int] | None
    launches: dict[tuple[Any, ...], Callable[[], object]] = field(default_factory=dict)

    def run(self, addresses: tuple[int, ...], stream: int, memories: Memories | None) -> None:
        """Launch; without memories the launch is kept for the next call with these addresses."""
        key = (addresses, stream)
        launch = self.launches.get(key)
        if launch is None:
            values = {**self.values, **dict(zip(self.called, addresses, strict=True))}
            block = [values[f.name] for f in self.plan.params]
            launch = self.loaded.bind(block, self.blocks, stream, memories or Memories())
            if len(self.launches) >= MAX_LAUNCHES:
                self.launches.clear()
            if memories is None:
                self.launches[key] = launch
        code = launch()
        if code:
            self.loaded.settle(launch, code)


def spec_of(tensors: AppendTensors, *, interleaved: bool) -> AppendSpec:
    """Return what the kernel of a call appends, with the widest vectors that its layout allows."""
    given = tensors.given
    half = given["cos"].shape[1] if "cos" in given else 0
    depth, dv = given["k_cache"].shape[3], given["v_cache"].shape[3]
    moved = [given[name] for name in ("q", "k", "v", "cos", "sin") if name in given]
    if "k" in given:
        moved += [given["k_cache"], given["v_cache"]]
    return AppendSpec(
        dtype=tensors.dtype,
        cache_dtype=tensors.cache_dtype,
        head_dim=depth,
        head_dim_v=None if dv == depth else dv,
        rotary_dim=2 * half,
        interleaved=interleaved and half > 0,
        angle_dtype=tensors.angle_dtype,
        vector=widest_vector(
            (depth, dv, half),
            tensors.dtype.element_bytes,
            min(_aligned_elements(tensor) for tensor in moved),
        ),
    )


def _aligned_elements(tensor: TensorView) -> int:
    """Return how many elements a lane may move at once, by address and strides."""
    size = tensor.element_bytes
    found = VECTOR_BYTES if 0 in tensor.shape else math.gcd(VECTOR_BYTES, tensor.address)
    for count, stride in zip(tensor.shape[:-1], tensor.strides, strict=False):
        if count > 1:
            found = math.gcd(found, stride * size)
    # NOTE: at a multiple of 16 bytes any number is moved, 16 bytes at a time.
    return VECTOR_BYTES if found == VECTOR_BYTES else max(1, found // size)


def prepare(
    tensors: AppendTensors,
    spec: AppendSpec,
    outputs: tuple[TensorView, ...],
    *,
    advances: bool,
    target: str | None,
    stream: Callable[[int], int] | None,
) -> Ready:
    """Return the launch of a layout; compiles and loads its kernel the first time.

    Args:
        tensors: of the call.
        spec: what its kernel appends.
        outputs: new_seqlens, and the rotated q where there is one.
        advances: row m of q is at position L + m.
        target: the chip to emulate for tensors in host memory; None means the first.
        stream: gives the current stream, where a quick path goes.

    Raises:
        CaptureError: a kernel is still to be loaded, and the stream is being captured.
    """
    given = tensors.given
    cache = given["k_cache"]
    chip = target or TARGET_OF_MEMORY.get(cache.memory, TARGETS[0].name)
    plan = _plan(spec, find_target(chip).name)
    _check_kind(spec, cache, plan.target)
    current = backend_of(cache.memory).stream(cache)
    how = "make the same call once outside it"
    loaded = load_small(plan, source_of, cache.memory, cache.device, current, warm_up=how)
    new_rows = tensors.batch * tensors.rows * tensors.heads_kv
    values: dict[str, Value] = {
        "table_stride": given["block_table"].strides[0] if "block_table" in given else 0,
        "batch": tensors.batch,
        "seqlen_new": tensors.rows,
        "num_heads_kv": tensors.heads_kv,
        "num_new_rows": new_rows,
        "page_size": max(1, tensors.page_size),
        "capacity": tensors.capacity,
        "num_pages": tensors.pages,
        "num_q_rows": 0,
        "num_heads": 1,
        "seqlen_q": 1,
        "advances": int(advances),
    }
    named = {**given, **{tensor.name: tensor for tensor in outputs}}
    if "q" in given:
        q = given["q"]
        values |= {"num_heads": q.shape[2], "seqlen_q": q.shape[1]}
        values["num_q_rows"] = tensors.batch * q.shape[1] * q.shape[2]
    for name in ("q", "rotated_q", "k", "v", "k_cache", "v_cache"):
        strides = named[name].strides if name in named else (0, 0, 0)
        axes = "bmh" if name.endswith("q") else "bnh"
        values |= {f"{name}_stride_{axis}": strides[i] for i, axis in enumerate(axes)}
    for name in ("k_scale", "v_scale"):
        strides = named[name].strides if name in named else (0, 0)
        values |= {f"{name}_stride_b": strides[0], f"{name}_stride_h": strides[1]}
    if "cos" in given:
        values |= {f"{name}_stride": given[name].strides[0] for name in ("cos", "sin")}
        values["num_positions"] = given["cos"].shape[0]
    pointers = [f.name for f in plan.params if f.ctype.endswith("*")]
    values |= dict.fromkeys(pointers, 0)
    rows = int(values["num_q_rows"]) + 2 * new_rows
    tiles = -(-max(rows, tensors.batch // plan.threads, 1) // plan.grid.tile_m)
    return Ready(
        plan=plan,
        loaded=loaded,
        blocks=plan.grid.blocks(tiles, 0),
        device=cache.device,
        called=tuple(name for name in named if name in pointers),
        values=values,
        alignment=min(VECTOR_BYTES, 4 * spec.vector),
        stream=stream,
    )


def _check_kind(spec: AppendSpec, cache: TensorView, target: Target) -> None:
    """Refuse 8-bit floats of the kind that the target does not have."""
    if spec.cache_dtype in (None, SmallDType.INT8):
        return
    kind = f"{spec.cache_dtype}{target.float8_kind}"
    if cache.dtype != kind:
        limit = f"rows are rounded to {kind} on {target.name}"
        raise TensorError("k_cache", cache.dtype, limit, "nothing is reinterpreted")


def touched_by(tensors: AppendTensors, outputs: tuple[TensorView, ...]) -> Memories:
    """Return what a launch touches: a cache is read and written, the outputs are new."""
    given = tensors.given
    caches = (given["k_cache"], given["v_cache"]) if "k" in given else ()
    return memories_of(tuple(given.values()), (*caches, *outputs))


@functools.cache
def _plan(spec: AppendSpec, target: str) -> AppendPlan:
    return lower_append(spec, find_target(target))
