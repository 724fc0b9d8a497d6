"""CUDA: kernels through the driver API of cuda-python, in the primary context of each device.

The caller's current context is pushed aside only where it differs, and comes back whatever
happens. Nothing here synchronises, and the driver is first touched when a kernel is loaded.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fmhagen.compile.binary import Binary
from fmhagen.errors import LaunchError, RuntimeUnavailableError
from fmhagen.plan.attention import Plan, TensorMapPlan
from fmhagen.plan.kernel import KernelPlan
from fmhagen.runtime.base import Memories
from fmhagen.runtime.cuda_driver import check, describe, entered, import_driver
from fmhagen.runtime.cuda_launch import WRONG_CONTEXT, Launches, Library, import_library
from fmhagen.runtime.cuda_maps import MAP_BYTES, MAX_SIZE, MAX_STRIDE_BYTES, encoder
from fmhagen.runtime.launch_values import Operand, Value, block_packer
from fmhagen.runtime.tensors import Framework, Memory, TensorView

if TYPE_CHECKING:
    from fmhagen.runtime.devices import DeviceReport

COMPUTE_CAPABILITY = {"sm90": (9, 0)}


class LoadedCuda:
    """A kernel in one device's primary context."""

    def __init__(
        self,
        driver: Any,
        library: Library,
        context: Any,
        function: Any,
        plan: KernelPlan,
        shared_bytes: int,
    ) -> None:
        """Keep the handles of a function that is loaded in `context`."""
        self._driver = driver
        self._context = context
        self._plan = plan
        self._shared_bytes = shared_bytes
        self._launches = Launches(
            library,
            function=int(function),
            threads=plan.threads,
            shared_bytes=shared_bytes,
            packer=block_packer(plan),
            is_dependent=plan.is_dependent,
        )

    def bind(
        self, values: list[Value], blocks: int, stream: int, memories: Memories
    ) -> Callable[[], object]:
        """Return a launch whose values are fixed; see `base.Loaded`."""
        return self._launches.bind(values, blocks, stream)

    def settle(self, launch: Callable[[], object], code: object) -> None:
        """Start a launch in the kernel's own context, or say why the driver refused it.

        Raises:
            LaunchError: the driver refused.
        """
        if code in WRONG_CONTEXT:
            with entered(self._driver, self._context):
                code = launch()
        if code:
            reason = describe(self._driver, self._driver.CUresult(code))
            raise LaunchError(
                f"{self._plan.symbol}: launch with blocks of {self._plan.threads} threads and"
                f" {self._shared_bytes} bytes of shared memory: {reason}"
            )


class CudaBackend:
    """Runs cubins on NVIDIA GPUs; see `base.Backend`."""

    memory = Memory.CUDA

    def __init__(self, driver: Any = None, library: Library | None = None) -> None:
        """Use the given ones in place of `cuda.bindings.driver` and libcuda, which tests do."""
        self._given = driver
        self._given_library = library
        self._encoding_context: Any = None  # of the first kernel that was loaded

    @functools.cached_property
    def driver(self) -> Any:
        """The driver's bindings, initialised.

        Raises:
            RuntimeUnavailableError: the package or the driver is not here.
        """
        driver = self._given or import_driver()
        try:
            (code,) = driver.cuInit(0)
        except RuntimeError as error:  # the library itself is missing
            raise RuntimeUnavailableError(f"there is no NVIDIA driver here: {error}") from error
        if int(code) != 0:
            reason = getattr(code, "name", code)
            raise RuntimeUnavailableError(f"the NVIDIA driver does not start: {reason}")
        return driver

    @functools.cached_property
    def _facts(self) -> dict[tuple[int, str], int]:
        return {}

    def attribute(self, device: int, name: str) -> int:
        """Return a device attribute, such as "MULTIPROCESSOR_COUNT"; asked for once."""
        key = device, name
        value = self._facts.get(key)
        if value is None:
            code = getattr(self.driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            answer = self.driver.cuDeviceGetAttribute(code, self._device(device))
            value = self._facts[key] = int(check(self.driver, "cuDeviceGetAttribute", answer))
        return value

    def compute_units(self, device: int) -> int:
        """Return the SMs of a device."""
        return self.attribute(device, "MULTIPROCESSOR_COUNT")

    def compute_capability(self, device: int) -> tuple[int, int]:
        """Return a device's compute capability, such as (9, 0)."""
        return (
            self.attribute(device, "COMPUTE_CAPABILITY_MAJOR"),
            self.attribute(device, "COMPUTE_CAPABILITY_MINOR"),
        )

    def device_count(self) -> int:
        """Return the number of GPUs that the driver shows."""
        return int(check(self.driver, "cuDeviceGetCount", self.driver.cuDeviceGetCount()))

    def devices(self) -> tuple[DeviceReport, ...]:
        """Return what is known of each GPU.

        Raises:
            RuntimeUnavailableError: there is no driver or no GPU.
        """
        from fmhagen.runtime.devices import DeviceReport

        count = self.device_count()
        if count == 0:
            raise RuntimeUnavailableError("the NVIDIA driver shows no GPU")
        reports = []
        for index in range(count):
            name = check(
                self.driver, "cuDeviceGetName", self.driver.cuDeviceGetName(64, self._device(index))
            )
            capability = self.compute_capability(index)
            reports.append(
                DeviceReport(
                    memory=str(self.memory),
                    index=index,
                    name=name.decode().rstrip("\0"),
                    architecture=".".join(map(str, capability)),
                    compute_units=self.compute_units(index),
                    missing=self._lack(index, "sm90"),
                )
            )
        return tuple(reports)

    def require(self, target: str) -> None:
        """Check that some device runs a target.

        Raises:
            RuntimeUnavailableError: none does; says what each one is.
        """
        lacks = [self._lack(index, target) for index in range(self.device_count())]
        if not lacks:
            raise RuntimeUnavailableError("the NVIDIA driver shows no GPU")
        if None not in lacks:
            raise RuntimeUnavailableError("; ".join(map(str, lacks)))

    def load(self, binary: Binary, plan: KernelPlan, device: int) -> LoadedCuda:
        """Load a cubin in a device's primary context; see `base.Backend`."""
        lack = self._lack(device, plan.target.name)
        if lack is not None:
            raise RuntimeUnavailableError(lack)
        driver = self.driver
        retained = driver.cuDevicePrimaryCtxRetain(self._device(device))
        context = check(driver, "cuDevicePrimaryCtxRetain", retained)
        shared_bytes = plan.shared_bytes if plan.shared_is_dynamic else 0
        self._encoding_context = self._encoding_context or context
        with entered(driver, context):
            module = check(driver, "cuModuleLoadData", driver.cuModuleLoadData(binary.image))
            found = driver.cuModuleGetFunction(module, plan.symbol.encode())
            function = check(driver, "cuModuleGetFunction", found)
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            # NOTE: without this a launch with more than 48 KiB of shared memory is refused.
            answer = driver.cuFuncSetAttribute(function, attribute, shared_bytes)
            check(driver, "cuFuncSetAttribute", answer)
            # NOTE: lazy loading would load the code at the first launch, and break a capture.
            check(driver, "cuFuncLoad", driver.cuFuncLoad(function))
        library = self._given_library or import_library()
        return LoadedCuda(driver, library, context, function, plan, shared_bytes)

    def map_encoder(self, map_plan: TensorMapPlan, operand: Operand) -> Callable[[int], bytes]:
        """Return the function that encodes a CUtensorMap; see `base.Backend`."""
        encode = encoder(self.driver, map_plan, operand)

        def encode_map(address: int) -> bytes:
            code, encoded = self._encode_anywhere(encode, address)
            if code:
                raise LaunchError(
                    f"cuTensorMapEncodeTiled refused {map_plan.field} of {operand} at"
                    f" {address:#x}: {describe(self.driver, code)}"
                )
            return ctypes.string_at(encoded.getPtr(), MAP_BYTES)

        return encode_map

    def _encode_anywhere(self, encode: Callable[[int], Any], address: int) -> Any:
        """Encode a map, also in a thread that has no context.

        NOTE: cuTensorMapEncodeTiled answers CUDA_ERROR_INVALID_CONTEXT without a current context,
        though the map that it makes belongs to none (seen on an H200, driver 580).
        """
        answer = encode(address)
        missing = self.driver.CUresult.CUDA_ERROR_INVALID_CONTEXT
        if int(answer[0]) == int(missing) and self._encoding_context is not None:
            with entered(self.driver, self._encoding_context):
                answer = encode(address)
        return answer

    def unfit(self, plan: Plan, operand: Operand) -> str | None:
        """Return why a tensor map cannot describe an aligned tensor, or None."""
        if max(operand.map_sizes) > MAX_SIZE:
            return f"a size passes the tensor map's limit of {MAX_SIZE}"
        if max(operand.map_strides_bytes) > MAX_STRIDE_BYTES:
            return f"a stride passes the tensor map's limit of {MAX_STRIDE_BYTES} bytes"
        maps = [item for item in plan.tensor_maps if item.tensor == operand.name]
        if maps and operand.is_expanded:
            # The encoder's manual does not say whether a stride may be 0, so it is asked.
            code, _ = self._encode_anywhere(encoder(self.driver, maps[0], operand), 2**20)
            if int(code) != 0:
                return "it is expanded, and this driver's tensor maps take no stride of 0"
        return None

    def stream(self, q: TensorView) -> int:
        """Return the current stream of q's framework, or the legacy default stream."""
        if q.framework == Framework.TORCH:
            import torch

            return int(torch._C._cuda_getCurrentRawStream(q.device))
        return q.stream or 0

    def is_capturing(self, device: int, stream: int) -> bool:
        """Return whether a stream is being captured, also as the legacy stream of a capture."""
        driver = self.driver
        code, current = driver.cuCtxGetCurrent()
        if int(code) != 0 or not int(current):
            return False  # no context, so nothing can be in capture here
        code, status, *_ = driver.cuStreamIsCapturing(stream)
        if int(code) != 0:
            implicit = driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
            return int(code) == int(implicit)
        return int(status) != 0

    def _device(self, index: int) -> Any:
        return check(self.driver, "cuDeviceGet", self.driver.cuDeviceGet(index))

    def _lack(self, device: int, target: str) -> str | None:
        wanted = COMPUTE_CAPABILITY.get(target)
        if wanted is None:
            return f"CUDA devices do not run {target}"
        found = self.compute_capability(device)
        if found == wanted:
            return None
        words = ".".join(map(str, wanted))
        return (
            f"cuda:{device} has compute capability {found[0]}.{found[1]}; kernels for {target}"
            f" need exactly {words} (H100, H200)"
        )
