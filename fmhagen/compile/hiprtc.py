"""hipRTC through hip-python: HIP C++ to a gfx942 code object, with ROCm's own compiler.

hip-python has no ROCm libraries in its wheels: it loads libhiprtc from a ROCm installation. No
GPU is needed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
from pathlib import Path

from fmhagen.compile.binary import Binary
from fmhagen.compile.clang import code_object_binary
from fmhagen.compile.rtc import RuntimeCompiler
from fmhagen.compile.toolchain import Compiler, Job, missing_compiler

_INSTALL = "ROCm 6.4 or newer, and pip install hip-python (version 10, or that of the ROCm)"
# hip-python 10 and newer; then the package of one release for one ROCm.
_MODULES = ("rocm.bindings.hiprtc", "hip.hiprtc")


@functools.cache
def detect() -> Compiler:
    """Return hipRTC's version and library, or why it is missing."""
    try:
        major, minor = _api().version()
    except Exception as error:  # hip-python raises RuntimeError when libhiprtc cannot be loaded
        return missing_compiler("hiprtc", "gfx942", error, _INSTALL)
    libraries = _loaded_libraries()
    return Compiler(
        name="hiprtc",
        target="gfx942",
        version=f"{major}.{minor}",
        identity=" ".join((f"hiprtc {major}.{minor}", *(path.name for path in libraries))),
        path=next((str(path) for path in libraries if "hiprtc" in path.name), None),
        install=_INSTALL,
    )


def _api() -> RuntimeCompiler:
    """Return hip-python's hiprtc under its newer or its older name."""
    failure: ImportError | None = None
    for name in _MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            failure = failure or error
            continue
        return RuntimeCompiler(
            module=module,
            prefix="hiprtc",
            image="Code",
            destroys_by_reference=True,
            clean_log=_with_real_paths,
        )
    raise failure or ImportError("no hip-python")


def _loaded_libraries() -> tuple[Path, ...]:
    """Return the real paths of the compiler's libraries in this process, sorted.

    Their file names carry the full version of ROCm, which hiprtcVersion does not tell.
    """
    found = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            fields = line.split(maxsplit=5)
            name = Path(fields[5]).name if len(fields) == 6 else ""
            if name.startswith(("libhiprtc", "libamd_comgr", "libLLVM")):
                found.add(Path(fields[5]))
    return tuple(sorted(found))


def build(compiler: Compiler, job: Job) -> Binary:
    """Compile a HIP source whose file lies at `job.source_path`.

    Raises:
        CompileError: hipRTC refused the source, or the code object cannot be read.
    """
    image, log = _api().compile(job)
    return code_object_binary(compiler, job, image, log)


def _with_real_paths(log: str) -> str:
    """Return a log without the directory that the compiler copied the source into."""
    return re.sub(r"[\w/.-]*/comgr-\w+/input(?=/)", "", log)
