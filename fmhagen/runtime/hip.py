"""HIP: kernels through hip-python, on AMD GPUs.

Written from the bindings' own source and from ROCm's manual. It is tested against a stand-in for
the bindings that takes and gives what they do, and against the real library as far as that goes
without a device; it has not run on an AMD GPU yet.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fmhagen.compile.binary import Binary
from fmhagen.errors import LaunchError, RuntimeUnavailableError
from fmhagen.plan.attention import Plan, TensorMapPlan
from fmhagen.plan.kernel import KernelPlan
from fmhagen.runtime.base import Memories
from fmhagen.runtime.launch_values import Operand, Value, block_packer, unfit_rows
from fmhagen.runtime.tensors import Framework, Memory, TensorView

if TYPE_CHECKING:
    from fmhagen.runtime.devices import DeviceReport

# hip-python 10 and newer; then the package of one release for one ROCm.
_MODULES = ("rocm.bindings.hip", "hip.hip")
WRONG_DEVICE = object()
"""What a launch gives in a thread whose current device is not the kernel's."""


def check(call: str, result: tuple[Any, ...]) -> Any:
    """Return what a call gave beside its error code: nothing, one value, or a tuple.

    Raises:
        LaunchError: the code is not success; the text names the call and the code.
    """
    code, *values = result
    if int(code) != 0:
        raise LaunchError(f"{call}: {getattr(code, 'name', code)}")
    return values[0] if len(values) == 1 else tuple(values)


@contextlib.contextmanager
def on_device(hip: Any, device: int) -> Iterator[None]:
    """Make a device current, and the caller's again at the end."""
    before = check("hipGetDevice", hip.hipGetDevice())
    if before != device:
        check("hipSetDevice", hip.hipSetDevice(device))
    try:
        yield
    finally:
        if before != device:
            check("hipSetDevice", hip.hipSetDevice(before))


class LoadedHip:
    """A kernel on one device."""

    def __init__(
        self, hip: Any, device: int, module: Any, function: Any, plan: KernelPlan, shared_bytes: int
    ) -> None:
        """Keep the handles of a function that is loaded on `device`."""
        self._hip = hip
        self._device = device
        self._module = module  # kept alive: the function belongs to it
        self._function = function
        self._plan = plan
        self._shared_bytes = shared_bytes
        self._packer = block_packer(plan)

    def bind(
        self, values: list[Value], blocks: int, stream: int, memories: Memories
    ) -> Callable[[], object]:
        """Return a launch whose values are fixed; see `base.Loaded`."""
        hip, device, plan = self._hip, self._device, self._plan
        memory = ctypes.create_string_buffer(self._packer.size)
        self._packer.pack_into(memory, 0, *values)
        # NOTE: HIP copies the block by the size in the code object's metadata. The bindings take
        # the address of the array of pointers as an int.
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
        params = ctypes.addressof(pointers)
        function, threads, shared_bytes = self._function, plan.threads, self._shared_bytes
        owners = memory, pointers

        def start(_: object = owners) -> object:
            if hip.hipGetDevice()[1] != device:
                return WRONG_DEVICE
            # fmt: off
            (code,) = hip.hipModuleLaunchKernel(
                function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, params, None,
            )
            # fmt: on
            return code if int(code) != 0 else None

        return start

    def settle(self, launch: Callable[[], object], code: object) -> None:
        """Start a launch on the kernel's own device, or say why the driver refused it.

        Raises:
            LaunchError: the driver refused.
        """
        if code is WRONG_DEVICE:
            with on_device(self._hip, self._device):
                code = launch()
        if code is not None:
            raise LaunchError(
                f"{self._plan.symbol}: launch with blocks of {self._plan.threads} threads:"
                f" {getattr(code, 'name', code)}"
            )


class HipBackend:
    """Runs code objects on AMD GPUs; see `base.Backend`."""

    memory = Memory.HIP

    def __init__(self, hip: Any = None) -> None:
        """Use the given module in place of hip-python's, which tests do."""
        self._given = hip

    @functools.cached_property
    def hip(self) -> Any:
        """The bindings, initialised.

        Raises:
            RuntimeUnavailableError: the package, ROCm or a GPU is not here.
        """
        hip = self._given or _import()
        try:
            (code,) = hip.hipInit(0)
        except RuntimeError as error:  # libamdhip64 cannot be loaded
            raise RuntimeUnavailableError(f"there is no ROCm here: {error}") from error
        if int(code) != 0:
            reason = getattr(code, "name", code)
            what = "finds no AMD GPU" if reason == "hipErrorNoDevice" else "does not start"
            raise RuntimeUnavailableError(f"HIP {what}: {reason}")
        return hip

    @functools.cached_property
    def _facts(self) -> dict[tuple[int, str], Any]:
        return {}

    def compute_units(self, device: int) -> int:
        """Return the CUs of a device."""
        return int(self._property(device, "multiProcessorCount"))

    def architecture(self, device: int) -> str:
        """Return a device's full architecture, such as "gfx942:sramecc+:xnack-"."""
        name = self._property(device, "gcnArchName")
        return name.decode() if isinstance(name, bytes) else str(name)

    def device_count(self) -> int:
        """Return the number of GPUs that HIP shows."""
        code, count = self.hip.hipGetDeviceCount()
        return int(count) if int(code) == 0 else 0

    def devices(self) -> tuple[DeviceReport, ...]:
        """Return what is known of each GPU.

        Raises:
            RuntimeUnavailableError: there is no ROCm or no GPU.
        """
        from fmhagen.runtime.devices import DeviceReport

        count = self.device_count()
        if count == 0:
            raise RuntimeUnavailableError("HIP shows no GPU")
        return tuple(
            DeviceReport(
                memory=str(self.memory),
                index=index,
                name=str(self._property(index, "name")),
                architecture=self.architecture(index),
                compute_units=self.compute_units(index),
                missing=self._lack(index, "gfx942"),
            )
            for index in range(count)
        )

    def require(self, target: str) -> None:
        """Check that some device runs a target.

        Raises:
            RuntimeUnavailableError: none does; says what each one is.
        """
        lacks = [self._lack(index, target) for index in range(self.device_count())]
        if not lacks:
            raise RuntimeUnavailableError("HIP shows no GPU")
        if None not in lacks:
            raise RuntimeUnavailableError("; ".join(map(str, lacks)))

    def load(self, binary: Binary, plan: KernelPlan, device: int) -> LoadedHip:
        """Load a code object on a device; see `base.Backend`."""
        lack = self._lack(device, plan.target.name)
        if lack is not None:
            raise RuntimeUnavailableError(lack)
        hip = self.hip
        with on_device(hip, device):
            module = check("hipModuleLoadData", hip.hipModuleLoadData(binary.image))
            found = hip.hipModuleGetFunction(module, plan.symbol.encode())
            function = check("hipModuleGetFunction", found)
        shared_bytes = plan.shared_bytes if plan.shared_is_dynamic else 0
        return LoadedHip(hip, device, module, function, plan, shared_bytes)

    def map_encoder(self, map_plan: TensorMapPlan, operand: Operand) -> Callable[[int], bytes]:
        """Refuse: AMD GPUs have no tensor maps."""
        raise LaunchError(f"{map_plan.field}: AMD GPUs have no tensor maps")

    def unfit(self, plan: Plan, operand: Operand) -> str | None:
        """Return why a tile's rows lie too far apart, or None."""
        return unfit_rows(plan, operand)

    def stream(self, q: TensorView) -> int:
        """Return the current stream of q's framework, or the legacy default stream."""
        if q.framework == Framework.TORCH:
            import torch

            return int(torch._C._cuda_getCurrentRawStream(q.device))
        return q.stream or 0

    def is_capturing(self, device: int, stream: int) -> bool:
        """Return whether a stream is being captured, also as the legacy stream of a capture."""
        try:
            code, status = self.hip.hipStreamIsCapturing(stream)
        except ValueError:
            # NOTE: a call that fails writes no status, and hip-python makes an enum of whatever is
            # there. The legacy stream may not be asked during a capture: that is what it means.
            return True
        if int(code) != 0:
            return getattr(code, "name", "") == "hipErrorStreamCaptureImplicit"
        return int(status) != 0

    def _property(self, device: int, name: str) -> Any:
        key = device, name
        if key not in self._facts:
            answer = self.hip.hipGetDeviceProperties(device)
            properties = check("hipGetDeviceProperties", answer)
            for field in ("name", "multiProcessorCount", "gcnArchName"):
                self._facts[device, field] = getattr(properties, field)
        return self._facts[key]

    def _lack(self, device: int, target: str) -> str | None:
        found = self.architecture(device)
        if found.partition(":")[0] == target:
            return None
        return f"hip:{device} is {found}; this kernel is for {target}"


def _import() -> Any:
    failure: ImportError | None = None
    for name in _MODULES:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            failure = failure or error
    raise RuntimeUnavailableError(
        f"hip-python is not here ({failure}); install fmhagen[hip] and ROCm"
    ) from failure
