"""NVRTC: CUDA C++ to a cubin for sm_90a, with no driver and no GPU.

The library comes from the wheel `nvidia-cuda-nvrtc` and is called through `cuda.bindings`, which
needs no libcuda for it. A cubin, not PTX: a newer NVRTC then serves an older driver.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import re
from pathlib import Path

from fmhagen.compile.binary import Binary, Resources
from fmhagen.compile.elf_sections import section
from fmhagen.compile.rtc import RuntimeCompiler
from fmhagen.compile.toolchain import Compiler, Job, missing_compiler
from fmhagen.errors import CompileError

_INSTALL = "pip install cuda-bindings nvidia-cuda-nvrtc"
_OLDEST = (13, 0)  # what the package asks for; all its flags are known from here on

# NOTE: ptxas prints its advice as warnings or as info with a code, such as C7510 (wgmma
# serialised), C7511, C7512 and C7519 (warpgroup.arrive injected). Each means a slow or a wrong
# kernel.
_PTXAS_WARNING = re.compile(r"^ptxas\s+(?:warning\b|\w+\s*:\s*\(C\d+\)).*$", re.MULTILINE)


@functools.cache
def detect() -> Compiler:
    """Return NVRTC's version and path, or why it is missing."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        path = load_nvidia_dynamic_lib("nvrtc").abs_path
        major, minor = _api().version()
    except Exception as error:  # vendor packages raise many kinds when a library is missing
        return missing_compiler("nvrtc", "sm90", error, _INSTALL)
    version = _wheel_version(major, minor, path) or f"{major}.{minor}"
    size_bytes = Path(path).stat().st_size if path and Path(path).is_file() else 0
    return Compiler(
        name="nvrtc",
        target="sm90",
        version=version,
        identity=f"nvrtc {version} ({size_bytes} bytes)",
        path=path,
        missing=None if (major, minor) >= _OLDEST else f"NVRTC {version} is older than 13.0",
        install=_INSTALL,
    )


def _api() -> RuntimeCompiler:
    """Return the binding of NVRTC."""
    module = importlib.import_module("cuda.bindings.nvrtc")
    return RuntimeCompiler(
        module=module,
        prefix="nvrtc",
        image="CUBIN",
        destroys_by_reference=False,
        clean_log=str.strip,
    )


def _wheel_version(major: int, minor: int, path: str | None) -> str | None:
    """Return the full version of the wheel that `path` belongs to, or None."""
    for name in ("nvidia-cuda-nvrtc", f"nvidia-cuda-nvrtc-cu{major}"):
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        version = distribution.version
        root = str(distribution.locate_file(""))
        if version.startswith(f"{major}.{minor}.") and path and path.startswith(root):
            return version
    return None


def build(compiler: Compiler, job: Job) -> Binary:
    """Compile a CUDA source whose file lies at `job.source_path`.

    Raises:
        CompileError: NVRTC or ptxas refused it, ptxas warned, or the report could not be read.
    """
    source_path = str(job.source_path)
    image, log = _api().compile(job)
    refuse_warnings(log, source_path)
    return Binary(
        symbol=job.source.symbol,
        target=job.source.target,
        kind="cubin",
        image=image,
        path=None,
        compiler=compiler.label,
        flags=job.flags,
        resources=read_resources(
            log,
            symbol=job.source.symbol,
            dynamic_shared_bytes=job.source.dynamic_shared_bytes,
            max_threads=_max_threads(image, job.source.symbol),
            source_path=source_path,
        ),
        log=log,
    )


def refuse_warnings(log: str, source_path: str) -> None:
    """Raise CompileError if ptxas warned of anything."""
    warnings = _PTXAS_WARNING.findall(log)
    if warnings:
        first = warnings[0].strip()
        raise CompileError(f"a ptxas warning is an error: {first}", log=log, path=source_path)


def read_resources(
    log: str,
    *,
    symbol: str,
    dynamic_shared_bytes: int,
    max_threads: int | None,
    source_path: str,
) -> Resources:
    """Read the report of `ptxas -v` about one kernel.

    Raises:
        CompileError: the log has no report about `symbol`; then nothing is known about spills.
    """
    report = re.search(
        rf"Function properties for {re.escape(symbol)}\s*\n"
        r"[^\n]*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
        r"(?P<loads>\d+) bytes spill loads\s*\n"
        r"[^\n]*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
        log,
    )
    if report is None:
        raise CompileError(
            f"the log has no ptxas report about {symbol}, so its spills are unknown",
            log=log,
            path=source_path,
        )
    rest = report["rest"]
    shared = re.search(r"(\d+) bytes smem", rest)
    cumulative = re.search(r"(\d+) bytes cumulative stack size", rest)
    return Resources(
        registers=int(report["registers"]),
        spill_bytes=int(report["stores"]) + int(report["loads"]),
        stack_bytes=max(int(report["stack"]), int(cumulative[1]) if cumulative else 0),
        static_shared_bytes=int(shared[1]) if shared else 0,
        dynamic_shared_bytes=dynamic_shared_bytes,
        max_threads=max_threads,
    )


def _max_threads(image: bytes, symbol: str) -> int | None:
    """Return the launch bound that the cubin's `.nv.info` section records for a kernel."""
    try:
        data = section(image, f".nv.info.{symbol}")
    except ValueError as error:
        raise CompileError(f"the image of {symbol} is no cubin: {error}") from error
    if data is None:
        return None
    # Records of (format u8, attribute u8, u16): format 4 has that many payload bytes.
    offset = 0
    while offset + 4 <= len(data):
        form, attribute = data[offset], data[offset + 1]
        length = int.from_bytes(data[offset + 2 : offset + 4], "little") if form == 4 else 0
        if attribute == 0x05 and length == 12:  # EIATTR_MAX_THREADS: x, y, z
            payload = data[offset + 4 : offset + 16]
            x, y, z = (int.from_bytes(payload[i : i + 4], "little") for i in (0, 4, 8))
            return x * y * z
        offset += 4 + length
    return None
