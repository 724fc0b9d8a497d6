"""A stand-in for `cuda.bindings.driver`: its own types, and functions that note what they get.

Tensor maps are encoded as the emulator reads them, so a test can look into them or run them.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from fmhagen.runtime.emulator import encode_tensor_map

SWIZZLE_BYTES = {"NONE": 0, "32B": 32, "64B": 64, "128B": 128}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One cuLaunchKernel."""

    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stream: int
    params: bytes
    context: int
    extra: Any


class FakeDriver:
    """Two GPUs of compute capability 9.0 (or as given) with 132 SMs each."""

    def __init__(
        self,
        *,
        params_bytes: int = 0,
        capabilities: tuple[tuple[int, int], ...] = ((9, 0), (9, 0)),
        accepts_zero_stride: bool = True,
    ) -> None:
        from cuda.bindings import driver

        self._real = driver
        self.params_bytes = params_bytes
        self.capabilities = capabilities
        self.accepts_zero_stride = accepts_zero_stride
        self.contexts: list[int] = []  # the current one last
        self.capturing: set[int] = set()
        self.launches: list[Launch] = []
        self.encodes: list[SimpleNamespace] = []
        self.attributes: list[tuple[Any, Any, int]] = []
        self.modules: list[tuple[bytes, int]] = []
        self.calls: list[str] = []
        self.launch_code = 0

    def __getattr__(self, name: str) -> Any:
        """Give the real module's types; its functions would need a driver."""
        if name.startswith("cu") and not name.startswith("cuuint"):
            raise AttributeError(f"the stand-in has no {name}")
        return getattr(self._real, name)

    def _code(self, value: int) -> Any:
        return self._real.CUresult(value)

    @property
    def current(self) -> int:
        return self.contexts[-1] if self.contexts else 0

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (self._code(0),)

    def cuGetErrorString(self, code: Any) -> tuple[Any, ...]:
        return self._code(0), b"invalid argument"

    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return self._code(0), len(self.capabilities)

    def cuDeviceGet(self, index: int) -> tuple[Any, ...]:
        return self._code(0), self._real.CUdevice(index)

    def cuDeviceGetName(self, size: int, device: Any) -> tuple[Any, ...]:
        return self._code(0), b"NVIDIA H200".ljust(size, b"\0")

    def cuDeviceGetAttribute(self, attribute: Any, device: Any) -> tuple[Any, ...]:
        self.calls.append("cuDeviceGetAttribute")
        name = attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        major, minor = self.capabilities[int(device)]
        values = {
            "MULTIPROCESSOR_COUNT": 132,
            "COMPUTE_CAPABILITY_MAJOR": major,
            "COMPUTE_CAPABILITY_MINOR": minor,
        }
        return self._code(0), values[name]

    def cuDevicePrimaryCtxRetain(self, device: Any) -> tuple[Any, ...]:
        return self._code(0), self._real.CUcontext(0x1000 + int(device))

    def cuCtxGetCurrent(self) -> tuple[Any, ...]:
        return self._code(0), self._real.CUcontext(self.current)

    def cuCtxPushCurrent(self, context: Any) -> tuple[Any, ...]:
        self.contexts.append(int(context))
        return (self._code(0),)

    def cuCtxPopCurrent(self) -> tuple[Any, ...]:
        return self._code(0), self._real.CUcontext(self.contexts.pop())

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
        self.modules.append((image, self.current))
        return self._code(0), self._real.CUmodule(0x2000)

    def cuModuleGetFunction(self, module: Any, name: bytes) -> tuple[Any, ...]:
        return self._code(0), self._real.CUfunction(0x3000 + self.current)

    def cuFuncSetAttribute(self, function: Any, name: Any, value: int) -> tuple[Any, ...]:
        self.attributes.append((function, name, value))
        return (self._code(0),)

    def cuFuncLoad(self, function: Any) -> tuple[Any, ...]:
        self.calls.append("cuFuncLoad")
        return (self._code(0),)

    def cuStreamIsCapturing(self, stream: int) -> tuple[Any, ...]:
        status = self._real.CUstreamCaptureStatus
        if int(stream) == 0 and self.capturing:
            return self._real.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, status(0)
        return self._code(0), status(1 if int(stream) in self.capturing else 0)

    def cuTensorMapEncodeTiled(
        self,
        dtype: Any,
        rank: int,
        address: int,
        sizes: list[Any],
        strides: list[Any],
        box: list[Any],
        element_strides: list[Any],
        interleave: Any,
        swizzle: Any,
        promotion: Any,
        fill: Any,
    ) -> tuple[Any, ...]:
        size, stride, edge = ([int(n) for n in values] for values in (sizes, strides, box))
        self.encodes.append(
            SimpleNamespace(
                dtype=dtype.name,
                rank=rank,
                address=address,
                sizes=tuple(size),
                strides=tuple(stride),
                box=tuple(edge),
                element_strides=tuple(int(n) for n in element_strides),
                swizzle=swizzle.name,
                promotion=promotion.name,
                fill=fill.name,
                interleave=interleave.name,
            )
        )
        encoded = self._real.CUtensorMap()
        bad = (
            address % 16
            or not address
            or any(not 0 < n <= 2**32 for n in size)
            or any(n % 16 or not 0 <= n < 2**40 for n in stride)
            or (0 in stride and not self.accepts_zero_stride)
            or any(not 0 < n <= 256 for n in edge)
        )
        if bad:
            return self._code(1), encoded
        content = encode_tensor_map(
            address=address,
            element_bytes=2,
            sizes=size,
            stride_bytes=stride,
            box=edge,
            swizzle_bytes=SWIZZLE_BYTES[swizzle.name.removeprefix("CU_TENSOR_MAP_SWIZZLE_")],
        )
        ctypes.memmove(encoded.getPtr(), content, len(content))
        return self._code(0), encoded


class FakeLibrary:
    """libcuda itself, as ctypes has it, over the same stand-in."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver

    def cuLaunchKernelEx(self, config: Any, function: Any, params: Any, extra: Any) -> int:
        driver = self._driver
        if driver.launch_code:
            return driver.launch_code
        # CUlaunchConfig of cuda.h: seven u32, stream, attributes, their number.
        where = ctypes.cast(config, ctypes.c_void_p).value
        gx, gy, gz, bx, by, bz, shared_bytes = (ctypes.c_uint32 * 7).from_address(where)
        stream, attributes, count = (ctypes.c_uint64 * 3).from_address(where + 32)
        assert (attributes, count & 0xFFFFFFFF) == (0, 0)
        # As seen on two H200: a stream of its own says which context is meant, the default one not.
        own = function.value - 0x3000
        if stream == 0 and driver.current != own:
            return 400 if driver.current else 201
        block = ctypes.cast(params, ctypes.POINTER(ctypes.c_void_p))[0]
        driver.launches.append(
            Launch(
                function=function.value,
                grid=(gx, gy, gz),
                block=(bx, by, bz),
                shared_bytes=shared_bytes,
                stream=stream,
                params=ctypes.string_at(block, driver.params_bytes),
                context=own,
                extra=extra,
            )
        )
        return 0
