"""Small kernels: those beside attention are compiled and loaded once a process and device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from fmhagen.compile.driver import compile_source
from fmhagen.plan.kernel import KernelPlan
from fmhagen.plan.small import SmallPlan
from fmhagen.runtime.base import Backend, Loaded, refuse_in_capture
from fmhagen.runtime.devices import gpu_backend
from fmhagen.runtime.tensors import Memory
from fmhagen.source import Source

PlanType = TypeVar("PlanType", bound=SmallPlan)


def load_small(
    plan: PlanType,
    source_of: Callable[[PlanType], Source],
    memory: Memory,
    device: int,
    stream: int,
    *,
    warm_up: str,
) -> Loaded:
    """Return a kernel on a device; compiles and loads it the first time.

    Args:
        plan: the kernel.
        source_of: prints it.
        memory, device: where its tensors lie.
        stream: that it will be launched on.
        warm_up: what to do before a capture, for the error.

    Raises:
        CaptureError: that is still to do, and the stream is being captured.
    """
    place = plan.symbol, memory, device
    if place not in _warm():
        refuse_in_capture(backend_of(memory), plan.symbol, device, stream, warm_up)
    found = loaded(plan, source_of, memory, device)
    _warm().add(place)
    return found


@functools.cache
def _warm() -> set[tuple[str, Memory, int]]:
    """Return the kernels that are loaded, as (symbol, memory, device)."""
    return set()


@functools.cache
def loaded(
    plan: PlanType, source_of: Callable[[PlanType], Source], memory: Memory, device: int
) -> Loaded:
    """Compile and load; once a process and device."""
    kernel: KernelPlan = plan
    binary = compile_source(source_of(plan), for_emulator=memory == Memory.HOST)
    return backend_of(memory).load(binary, kernel, device)


@functools.cache
def backend_of(memory: Memory) -> Backend:
    """Return the backend of a kind of memory."""
    if memory != Memory.HOST:
        return gpu_backend(memory)
    from fmhagen.runtime.emulator_backend import EmulatorBackend, EmulatorOptions

    return EmulatorBackend(EmulatorOptions())
