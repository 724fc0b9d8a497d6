"""A stand-in for hip-python's `hip` module, made from its source: every function returns a tuple
whose first element is the error code; handles are objects; kernelParams may be an int address."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import SimpleNamespace
from typing import Any


class hipError_t(IntEnum):
    hipSuccess = 0
    hipErrorInvalidValue = 1
    hipErrorStreamCaptureImplicit = 906


class hipStreamCaptureStatus(IntEnum):
    hipStreamCaptureStatusNone = 0
    hipStreamCaptureStatusActive = 1


_OK = hipError_t.hipSuccess


class FakeHip:
    """Two GPUs of the given architectures with 304 CUs each."""

    def __init__(
        self,
        *,
        params_bytes: int = 0,
        architectures: tuple[str, ...] = ("gfx942:sramecc+:xnack-",) * 2,
    ) -> None:
        self.params_bytes = params_bytes
        self.architectures = architectures
        self.device = 0
        self.capturing: set[int] = set()
        self.launches: list[SimpleNamespace] = []
        self.modules: list[tuple[bytes, int]] = []
        self.launch_code = _OK
        self.writes_no_status = False  # of a call that fails; the bindings then raise ValueError

    def hipInit(self, flags: int) -> tuple[Any, ...]:
        return (_OK,)

    def hipGetDeviceCount(self) -> tuple[Any, ...]:
        return _OK, len(self.architectures)

    def hipGetDevice(self) -> tuple[Any, ...]:
        return _OK, self.device

    def hipSetDevice(self, device: int) -> tuple[Any, ...]:
        self.device = device
        return (_OK,)

    def hipGetDeviceProperties(self, device: int) -> tuple[Any, ...]:
        return _OK, SimpleNamespace(
            name="AMD Instinct MI300X",
            multiProcessorCount=304,
            gcnArchName=self.architectures[device],
        )

    def hipModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
        self.modules.append((image, self.device))
        return _OK, object()

    def hipModuleGetFunction(self, module: Any, name: bytes) -> tuple[Any, ...]:
        assert isinstance(name, bytes)
        return _OK, object()

    def hipStreamIsCapturing(self, stream: int) -> tuple[Any, ...]:
        status = hipStreamCaptureStatus(1 if stream in self.capturing else 0)
        if stream == 0 and self.capturing:
            if self.writes_no_status:
                raise ValueError("32688 is not a valid hipStreamCaptureStatus")
            return hipError_t.hipErrorStreamCaptureImplicit, hipStreamCaptureStatus(0)
        return _OK, status

    def hipModuleLaunchKernel(self, function: Any, *rest: Any) -> tuple[Any, ...]:
        gx, gy, gz, bx, by, bz, shared_bytes, stream, kernel_params, extra = rest
        if self.launch_code != _OK:
            return (self.launch_code,)
        block = ctypes.c_void_p.from_address(kernel_params).value
        assert block is not None
        self.launches.append(
            SimpleNamespace(
                grid=(gx, gy, gz),
                block=(bx, by, bz),
                shared_bytes=shared_bytes,
                stream=stream,
                params=ctypes.string_at(block, self.params_bytes),
                device=self.device,
                extra=extra,
            )
        )
        return (_OK,)
