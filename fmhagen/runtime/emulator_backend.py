"""The emulator as a backend: host tensors, every check on, outputs poisoned before a run."""

from __future__ import annotations

import contextlib
import ctypes
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fmhagen.compile.binary import Binary
from fmhagen.compile.flags import HostOptimisation
from fmhagen.errors import EmulatorError
from fmhagen.plan.attention import Plan, TensorMapPlan
from fmhagen.plan.kernel import KernelPlan
from fmhagen.runtime.base import Memories
from fmhagen.runtime.emulator import Buffer, Checks, Emulator, Region, Report, encode_tensor_map
from fmhagen.runtime.launch_values import Operand, Value, block_packer, unfit_rows
from fmhagen.runtime.tensors import Memory, TensorView

_TURN = threading.Lock()  # a library has one static state, so threads take turns


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorOptions:
    """How kernels run on the emulator.

    Attributes:
        seed: of the interleaving of warps and the moments of asynchronous operations.
        checks: what is checked besides bounds, alignment, barriers and convergence.
        compute_units: of the emulated chip; few, so that a block of a persistent grid gets
            several tiles even where a call has few.
        optimisation: of the host compiler; O0 compiles fastest, O2 runs fastest.
    """

    seed: int = 0
    checks: Checks = Checks.ALL
    compute_units: int = 3
    optimisation: HostOptimisation = "O0"


class LoadedEmulator:
    """A kernel compiled for the host; `report` is that of the last launch."""

    def __init__(self, library: Path, plan: KernelPlan, options: EmulatorOptions) -> None:
        """Load the library."""
        self._emulator = Emulator(library, plan.symbol)
        self._packer = block_packer(plan)
        self._plan = plan
        self._options = options
        self.report: Report | None = None

    def bind(
        self, values: list[Value], blocks: int, stream: int, memories: Memories
    ) -> Callable[[], object]:
        """Return a run of the grid to its end; see `base.Loaded`.

        It raises EmulatorError on a fault, or where an element of O or LSE was not written.
        """

        def start() -> None:
            self._run(values, blocks, memories)

        return start

    def settle(self, launch: Callable[[], object], code: object) -> None:
        """Do nothing: a run raises what it finds."""

    def _run(self, values: list[Value], blocks: int, memories: Memories) -> None:
        plan = self._plan
        with _TURN, _kept_gaps(memories.outputs):
            self.report = self._emulator.run(
                params=self._packer.pack(*values),
                grid=blocks,
                threads=plan.threads,
                smem_bytes=plan.shared_bytes,
                buffers=tuple(_buffers(memories)),
                seed=self._options.seed,
                checks=self._options.checks,
                cluster=plan.grid.cluster,
                is_dependent=plan.is_dependent,
                leads=memories.leads,
                names=tuple(
                    Region(
                        offset_bytes=region.offset_bytes, nbytes=region.size_bytes, name=region.name
                    )
                    for region in plan.shared
                ),
            )
        outputs = {tensor.name: tensor for tensor in memories.outputs}
        for use in self.report.buffers if memories.is_complete else ():
            tensor = outputs.get(use.name)
            if tensor is not None and is_dense(tensor) and use.unwritten_bytes:
                raise EmulatorError(
                    f"{plan.symbol}: {use.unwritten_bytes} bytes of {use.name} were never"
                    f" written, the first at byte {use.first_unwritten_byte}",
                    kind="unwritten",
                )


class EmulatorBackend:
    """Runs host libraries of emitted files; see `base.Backend`."""

    memory = Memory.HOST

    def __init__(self, options: EmulatorOptions) -> None:
        """Run every kernel with these options."""
        self.options = options

    def compute_units(self, device: int) -> int:
        """Return the compute units of the emulated chip."""
        return self.options.compute_units

    def require(self, target: str) -> None:
        """Accept every target: the emulator needs no device."""

    def load(self, binary: Binary, plan: KernelPlan, device: int) -> LoadedEmulator:
        """Load a host library; one that is in memory only goes through a temporary file."""
        if binary.path is not None:
            return LoadedEmulator(binary.path, plan, self.options)
        with tempfile.TemporaryDirectory(prefix="fmhagen-") as directory:
            path = Path(directory) / f"{plan.symbol}.so"
            path.write_bytes(binary.image)
            return LoadedEmulator(path, plan, self.options)

    def map_encoder(self, map_plan: TensorMapPlan, operand: Operand) -> Callable[[int], bytes]:
        """Return the function that encodes a map as the emulator reads it; see `base.Backend`."""
        return lambda address: encode_tensor_map(
            address=address,
            element_bytes=operand.element_bytes,
            sizes=operand.map_sizes,
            stride_bytes=operand.map_strides_bytes,
            box=map_plan.box,
            swizzle_bytes=map_plan.swizzle_bytes,
        )

    def unfit(self, plan: Plan, operand: Operand) -> str | None:
        """Return why a tile's rows lie too far apart, or None."""
        return unfit_rows(plan, operand)

    def stream(self, q: TensorView) -> int:
        """Return 0: the host has no streams."""
        return 0

    def is_capturing(self, device: int, stream: int) -> bool:
        """Return False: the host has no graphs."""
        return False


def is_dense(tensor: TensorView) -> bool:
    """Return whether a tensor's extent holds its elements and nothing else."""
    from math import prod

    return tensor.extent_bytes == prod(tensor.shape) * tensor.element_bytes


def _buffers(memories: Memories) -> Iterator[Buffer]:
    for tensors, is_output, is_kept, settled in (
        (memories.inputs, False, False, False),
        (memories.settled, False, False, True),
        (memories.outputs, True, False, False),
        (memories.updated, True, True, False),
    ):
        for tensor in tensors:
            if tensor.extent_bytes:
                yield Buffer(
                    address=tensor.address,
                    nbytes=tensor.extent_bytes,
                    name=tensor.name,
                    writable=is_output,
                    written_once=is_output,
                    is_kept=is_kept,
                    settled=settled,
                )


@contextlib.contextmanager
def _kept_gaps(outputs: tuple[TensorView, ...]) -> Iterator[None]:
    """Put back what lies between the elements of outputs, which the poison covers too."""
    gapped = [tensor for tensor in outputs if not is_dense(tensor)]
    before = [_bytes_of(tensor).copy() for tensor in gapped]
    yield
    for tensor, old in zip(gapped, before, strict=True):
        memory = _bytes_of(tensor)
        new = memory.copy()
        memory[:] = old
        _elements_of(memory, tensor)[...] = _elements_of(new, tensor)


def _bytes_of(tensor: TensorView) -> Any:
    import numpy as np

    pointer = (ctypes.c_uint8 * tensor.extent_bytes).from_address(tensor.address)
    return np.ctypeslib.as_array(pointer)


def _elements_of(memory: Any, tensor: TensorView) -> Any:
    import numpy as np

    element = np.dtype(f"u{tensor.element_bytes}")
    strides = tuple(stride * tensor.element_bytes for stride in tensor.strides)
    return np.ndarray(tensor.shape, element, buffer=memory, strides=strides)
