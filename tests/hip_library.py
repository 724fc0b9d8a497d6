"""The HIP backend against the real libamdhip64 on a machine without an AMD GPU: a script.

Run by `.ci/hip-library`, in a root directory that has the library and nothing else of ROCm, and by
test_runtime_hip_library.py. It needs no pytest. Each check prints a line; the first that fails ends
the script.
"""

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fmhagen
from fmhagen import api
from fmhagen.errors import FmhagenError, LaunchError, RuntimeUnavailableError
from fmhagen.runtime import hip as backend_module
from fmhagen.runtime.hip import HipBackend, LoadedHip
from fmhagen.runtime.launch_values import block_packer
from fmhagen.spec import AttentionSpec

# What the backend calls, as the API reference has it: https://rocm.docs.amd.com/projects/HIP
SIGNATURES = {
    "hipInit": "hipError_t hipInit(unsigned int flags)",
    "hipGetDeviceCount": "hipError_t hipGetDeviceCount(int * count)",
    "hipGetDevice": "hipError_t hipGetDevice(int * deviceId)",
    "hipSetDevice": "hipError_t hipSetDevice(int deviceId)",
    "hipGetDeviceProperties": (
        "hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600 * prop, int deviceId)"
    ),
    "hipModuleLoadData": "hipError_t hipModuleLoadData(hipModule_t * module, const void * image)",
    "hipModuleGetFunction": (
        "hipError_t hipModuleGetFunction(hipFunction_t * function, hipModule_t module,"
        " const char * kname)"
    ),
    "hipModuleLaunchKernel": (
        "hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned int gridDimX,"
        " unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,"
        " unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,"
        " hipStream_t stream, void ** kernelParams, void ** extra)"
    ),
    "hipStreamIsCapturing": (
        "hipError_t hipStreamIsCapturing(hipStream_t stream,"
        " hipStreamCaptureStatus * pCaptureStatus)"
    ),
}
SPEC = AttentionSpec(causal=True)


def calls_of_the_backend() -> str:
    """The backend calls what is listed above, and nothing else."""
    text = Path(backend_module.__file__).read_text(encoding="ascii")
    called = set(re.findall(r"\bhip\.(hip[A-Z]\w+)\(", text))
    assert called == set(SIGNATURES), called ^ set(SIGNATURES)
    return f"{len(called)} functions"


def signatures(hip: Any) -> str:
    """The bindings document the C signatures that the backend takes them to have."""
    for name, expected in SIGNATURES.items():
        documented = " ".join(getattr(hip, name).__doc__.split())
        assert documented.endswith(expected), f"{name}: {documented[-300:]}"
    return "as in the API reference"


def symbols(hip: Any) -> str:
    """The library exports every function under the name of its signature."""
    library = ctypes.CDLL("libamdhip64.so")
    for signature in SIGNATURES.values():
        name = signature.split("(")[0].split()[-1]
        assert getattr(library, name), name
    code, version = hip.hipRuntimeGetVersion()
    assert int(code) == 0
    return f"HIP {version}"


def codes(hip: Any) -> str:
    """Every call gives a tuple with the code first, and takes what the backend hands over."""
    memory = ctypes.create_string_buffer(64)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    launch = (None, 8, 1, 1, 512, 1, 1, 65536, 0x51, ctypes.addressof(pointers), None)
    calls: tuple[tuple[str, tuple[Any, ...], int], ...] = (
        ("hipInit", (0,), 1),
        ("hipGetDeviceCount", (), 2),
        ("hipGetDevice", (), 2),
        ("hipSetDevice", (0,), 1),
        ("hipGetDeviceProperties", (0,), 2),
        ("hipModuleLoadData", (b"\x7fELF" + bytes(64),), 2),
        ("hipModuleGetFunction", (None, b"kernel"), 2),
        ("hipModuleLaunchKernel", launch, 1),
        ("hipStreamIsCapturing", (0x51,), 2),
    )
    assert {name for name, _, _ in calls} == set(SIGNATURES)
    for name, arguments, size in calls:
        try:
            result = getattr(hip, name)(*arguments)
        except ValueError:
            # The library wrote no status, and the bindings want an enum; `is_capturing` knows.
            assert name == "hipStreamIsCapturing", name
            continue
        assert isinstance(result, tuple), name
        assert len(result) == size, f"{name}: {result}"
        assert result[0] == hip.hipError_t.hipErrorNoDevice, f"{name}: {result}"
    assert hip.hipError_t.hipErrorStreamCaptureImplicit == 906
    for field in ("name", "multiProcessorCount", "gcnArchName"):
        assert hasattr(hip.hipDeviceProp_t, field), field
    return "hipErrorNoDevice from all"


def refused(what: str, call: Callable[[], Any], kind: type[FmhagenError], words: str) -> str:
    """A call raises an error of ours whose text has some words."""
    try:
        call()
    except kind as error:
        said = str(error)
    else:
        said = "nothing"
    assert words in said, f"{what} raised {said}"
    return f"{what}: {said}"


def errors() -> tuple[str, ...]:
    """What a user is told where there is no GPU."""
    words = "HIP finds no AMD GPU: hipErrorNoDevice"
    unavailable = RuntimeUnavailableError
    return (
        refused("devices", lambda: HipBackend().devices(), unavailable, words),
        refused("require", lambda: HipBackend().require("gfx942"), unavailable, words),
        refused("compute_units", lambda: HipBackend().compute_units(0), unavailable, words),
        refused(
            "compile_kernel",
            lambda: fmhagen.compile_kernel(SPEC, device="hip"),
            unavailable,
            words,
        ),
    )


def launch(hip: Any) -> str:
    """A launch of the backend reaches the library; the error names the code of its refusal."""
    plan = api.lower(SPEC, target="gfx942")
    loaded = LoadedHip(hip, 0, None, None, plan, plan.shared_bytes)
    values = [0] * len(plan.params)
    assert block_packer(plan).size == plan.params_bytes
    start = loaded.bind(values, 8, 0, ())
    return refused("launch", lambda: loaded.settle(start, start()), LaunchError, "hipErrorNoDevice")


def main() -> int:
    """Run every check; return the exit status."""
    hip = backend_module._import()
    code, *_ = hip.hipInit(0)
    if code != hip.hipError_t.hipErrorNoDevice:
        print(f"these checks are for a machine without an AMD GPU; hipInit gives {code!r}")
        return 77
    for name, line in (
        ("calls", calls_of_the_backend()),
        ("signatures", signatures(hip)),
        ("symbols", symbols(hip)),
        ("codes", codes(hip)),
        *(("errors", line) for line in errors()),
        ("errors", launch(hip)),
    ):
        print(f"ok  {name}: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
