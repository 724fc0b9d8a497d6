"""Devices: which backend serves which memory, which chip it is, and what is here."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fmhagen.errors import FmhagenError, InvalidSpecError
from fmhagen.records import did_you_mean
from fmhagen.runtime.base import Backend
from fmhagen.runtime.tensors import Memory


class Device(StrEnum):
    """What a kernel is compiled to run on; auto lets the tensors of a call decide."""

    AUTO = "auto"
    CUDA = "cuda"
    HIP = "hip"
    EMULATOR = "emulator"


def find_device(name: str) -> Device:
    """Return the device of a name.

    Raises:
        InvalidSpecError: no device is called so; names the nearest.
    """
    names = tuple(str(device) for device in Device)
    if str(name) not in names:
        limit = "must be one of " + ", ".join(names)
        raise InvalidSpecError("device", name, limit, did_you_mean(str(name), names))
    return Device(str(name))


# The one chip of each vendor that kernels exist for.
TARGET_OF_MEMORY = {Memory.CUDA: "sm90", Memory.HIP: "gfx942"}
MEMORY_OF_TARGET = {target: memory for memory, target in TARGET_OF_MEMORY.items()}
MEMORY_OF_DEVICE = {
    Device.CUDA: Memory.CUDA,
    Device.HIP: Memory.HIP,
    Device.EMULATOR: Memory.HOST,
}


class GpuBackend(Backend, Protocol):
    """A backend whose devices can be listed."""

    def devices(self) -> tuple[DeviceReport, ...]:
        """Return what is known of each GPU.

        Raises:
            RuntimeUnavailableError: there is no driver or no GPU.
        """


@functools.cache
def gpu_backend(memory: Memory) -> GpuBackend:
    """Return the backend of a GPU's memory; one a process, and it touches no driver until used."""
    if memory == Memory.CUDA:
        from fmhagen.runtime.cuda import CudaBackend

        return CudaBackend()
    from fmhagen.runtime.hip import HipBackend

    return HipBackend()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """What is known of one GPU, or why there is none.

    Attributes:
        memory: "cuda" or "hip".
        index: its number, or -1 where there is none.
        name: product name, or "".
        architecture: such as "9.0" or "gfx942:sramecc+:xnack-", or "".
        compute_units: SMs or CUs, or 0.
        missing: why kernels do not run on it, or None if they do.
    """

    memory: str
    index: int
    name: str
    architecture: str
    compute_units: int
    missing: str | None


def list_devices() -> tuple[DeviceReport, ...]:
    """Return every GPU that is here, with a line for each vendor that has none.

    This initialises the drivers, so a process that is to fork afterwards must not call it.
    """
    reports: list[DeviceReport] = []
    for memory in TARGET_OF_MEMORY:
        try:
            reports += gpu_backend(memory).devices()
        except FmhagenError as error:
            reports.append(
                DeviceReport(
                    memory=str(memory),
                    index=-1,
                    name="",
                    architecture="",
                    compute_units=0,
                    missing=str(error),
                )
            )
    return tuple(reports)
