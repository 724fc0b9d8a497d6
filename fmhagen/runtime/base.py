"""Base: the interface that CUDA, HIP and the emulator stand behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fmhagen.compile.binary import Binary
from fmhagen.errors import CaptureError
from fmhagen.plan.attention import Plan, TensorMapPlan
from fmhagen.plan.kernel import KernelPlan
from fmhagen.runtime.launch_values import Operand, Value
from fmhagen.runtime.tensors import Memory, TensorView


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """The memory that a launch may touch, for a device that checks every access.

    Attributes:
        inputs: tensors that the kernel reads, those of `settled` aside.
        outputs: tensors that it writes.
        updated: tensors that it writes in part; the rest stays as it was.
        is_complete: every element of the outputs is written.
        settled: inputs that a dependent launch reads before it waits for the kernel ahead of it,
            which has itself waited for whoever writes them.
        leads: the launch behind this one has settled inputs.
    """

    inputs: tuple[TensorView, ...] = ()
    outputs: tuple[TensorView, ...] = ()
    updated: tuple[TensorView, ...] = ()
    is_complete: bool = True
    settled: tuple[TensorView, ...] = ()
    leads: bool = False


class Loaded(Protocol):
    """A kernel that lies on one device, ready to launch."""

    def bind(
        self, values: list[Value], blocks: int, stream: int, memories: Memories
    ) -> Callable[[], object]:
        """Return a launch whose values are fixed; it can be started again and from any thread.

        Args:
            values: of the fields of the parameter block, in the plan's order.
            blocks: blocks of the grid.
            stream: handle of the stream to run on; 0 is the legacy default stream.
            memories: what the kernel may touch. The emulator checks accesses against it; a GPU
                needs none, and the quick path gives an empty one.

        Returns:
            A function that starts the kernel. What it gives is true if it did not start, which
            `settle` is to deal with.
        """

    def settle(self, launch: Callable[[], object], code: object) -> None:
        """Start a launch that the driver did not take in the caller's context, or say why not.

        Args:
            launch: what `bind` gave.
            code: what it gave in turn.

        Raises:
            LaunchError: the driver refused.
        """


class Backend(Protocol):
    """One way to run kernels: a driver, or the emulator."""

    @property
    def memory(self) -> Memory:
        """The memory that its kernels read and write."""

    def compute_units(self, device: int) -> int:
        """Return the compute units of a device, on which a persistent grid is sized."""

    def require(self, target: str) -> None:
        """Check that some device here runs a target.

        Raises:
            RuntimeUnavailableError: none does; says what is here instead.
        """

    def load(self, binary: Binary, plan: KernelPlan, device: int) -> Loaded:
        """Load a binary on a device.

        Raises:
            LaunchError: the driver refused the binary.
            RuntimeUnavailableError: the device cannot run the plan's target.
        """

    def map_encoder(self, map_plan: TensorMapPlan, operand: Operand) -> Callable[[int], bytes]:
        """Return the function that gives the 128 bytes of a tensor map for an address.

        It raises LaunchError where the encoder refuses the tensor.
        """

    def unfit(self, plan: Plan, operand: Operand) -> str | None:
        """Return why an aligned input cannot be read in place, or None if it can."""

    def stream(self, q: TensorView) -> int:
        """Return the stream to launch on: the framework's current one."""

    def is_capturing(self, device: int, stream: int) -> bool:
        """Return whether the stream is being captured into a graph."""


def refuse_in_capture(
    backend: Backend, symbol: str, device: int, stream: int, warm_up: str | None = None
) -> None:
    """Refuse to compile and load a kernel while a graph is being captured.

    `warm_up` says what to do before the capture; None means what serves an attention kernel.

    Raises:
        CaptureError: the stream is being captured.
    """
    if backend.is_capturing(device, stream):
        how = warm_up or f"call the kernel once outside it, or kernel.load({device})"
        raise CaptureError(
            f"{symbol} is not loaded on device {device}, and a graph is being captured; warm up"
            f" before the capture: {how}"
        )
