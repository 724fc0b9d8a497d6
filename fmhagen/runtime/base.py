"""Base: the interface that CUDA, HIP and the emulator stand behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fmhagen.compile.binary import Binary
from fmhagen.plan import Plan, TensorMapPlan
from fmhagen.runtime.launch_values import Operand, Value
from fmhagen.runtime.tensors import Memory, TensorView


class Loaded(Protocol):
    """A kernel that lies on one device, ready to launch."""

    def launch(
        self,
        values: list[Value],
        blocks: int,
        stream: int,
        tensors: tuple[TensorView, ...],
    ) -> None:
        """Start the kernel; the caller's current device is what it was before.

        Args:
            values: of the fields of the parameter block, in the plan's order.
            blocks: blocks of the grid.
            stream: handle of the stream to run on; 0 is the legacy default stream.
            tensors: q, k, v, o and perhaps lse. The emulator checks accesses against them; a GPU
                needs none, and the quick path gives an empty tuple.

        Raises:
            LaunchError: the driver refused.
            EmulatorError: the emulator found a fault.
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

    def load(self, binary: Binary, plan: Plan, device: int) -> Loaded:
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
