"""clang, hipcc and the clang of the ziglang wheel: HIP C++ to a gfx942 code object, with no ROCm.

The source is header-free, so none of them needs a HIP installation or a GPU.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import sys

from fmhagen.compile.binary import Binary
from fmhagen.compile.code_object import read_resources
from fmhagen.compile.flags import HIP_OFFLINE
from fmhagen.compile.toolchain import Compiler, Job, first_line_of, output_of, run_step, take
from fmhagen.errors import CompileError

_OLDEST = 19  # the first clang whose gfx942 instructions and attributes are all in use here
_NEWEST_NAMED = 22
_INSTALL_CLANG = "apt-get install clang-19 lld-19, or any clang >= 19 with AMDGPU and lld"
_INSTALL_HIPCC = "ROCm 6.4 or newer (hipcc)"
_INSTALL_ZIG = "pip install ziglang"


def detect_clang() -> Compiler:
    """Return the first usable clang on PATH, or why there is none."""
    names = ("clang", *(f"clang-{major}" for major in range(_NEWEST_NAMED, _OLDEST - 1, -1)))
    reasons = []
    for name in names:
        path = shutil.which(name)
        if path is None:
            continue
        found = _probe_clang(path)
        if found.available:
            return found
        reasons.append(f"{path}: {found.missing}")
    reason = "; ".join(reasons) or f"none of {', '.join(names)} is on PATH"
    return Compiler(name="clang", target="gfx942", missing=reason, install=_INSTALL_CLANG)


@functools.cache
def _probe_clang(path: str) -> Compiler:
    """Return what one clang is and whether it can build code objects."""
    banner = first_line_of((path, "--version"))
    version = re.search(r"clang version (\d+)([\w.]*)", banner)
    missing = None
    if version is None:
        missing = "does not answer --version as clang does"
    elif int(version[1]) < _OLDEST:
        missing = f"is clang {version[1]}{version[2]}; {_OLDEST} or newer is needed"
    elif "amdgcn" not in output_of((path, "--print-targets")):
        missing = "has no AMDGPU backend"
    else:
        linker = first_line_of((path, "-print-prog-name=lld"))
        if shutil.which(linker) is None:
            missing = "has no lld beside it"
    return Compiler(
        name="clang",
        target="gfx942",
        version=f"{version[1]}{version[2]}" if version else None,
        identity=banner,
        path=path,
        missing=missing,
        install=_INSTALL_CLANG,
    )


def detect_hipcc() -> Compiler:
    """Return the hipcc on PATH, or why there is none."""
    path = shutil.which("hipcc")
    if path is None:
        return Compiler(
            name="hipcc", target="gfx942", missing="not on PATH", install=_INSTALL_HIPCC
        )
    return _probe_hipcc(path)


@functools.cache
def _probe_hipcc(path: str) -> Compiler:
    """Return what one hipcc is."""
    banner = first_line_of((path, "--version"))  # HIP version: 6.4.43483-...
    version = re.search(r"(\d+\.[\w.-]+)", banner)
    return Compiler(
        name="hipcc",
        target="gfx942",
        version=version[1] if version else None,
        identity=banner,
        path=path,
        missing=None if version else "does not answer --version",
        install=_INSTALL_HIPCC,
    )


@functools.cache
def detect_zig() -> Compiler:
    """Return the ziglang wheel, or why it is missing."""
    if importlib.util.find_spec("ziglang") is None:
        return Compiler(
            name="zig",
            target="gfx942",
            missing="the package ziglang is not installed",
            install=_INSTALL_ZIG,
        )
    version = first_line_of((*ZIG, "version"))
    return Compiler(
        name="zig",
        target="gfx942",
        version=version or None,
        identity=f"ziglang {version}",
        path=" ".join(ZIG),
        missing=None if version else "`python -m ziglang version` fails",
        install=_INSTALL_ZIG,
    )


ZIG = (sys.executable, "-m", "ziglang")


def build_clang(compiler: Compiler, job: Job) -> Binary:
    """Compile with clang or hipcc in one step.

    Raises:
        CompileError: the compiler refused the source, or the code object cannot be read.
    """
    assert compiler.path is not None
    output = job.output_path(".hsaco")
    command = (compiler.path, *HIP_OFFLINE, *job.flags, str(job.source_path), "-o", str(output))
    log = run_step(job, command, output)
    return code_object_binary(compiler, job, take(output), log)


def build_zig(compiler: Compiler, job: Job) -> Binary:
    """Compile with the ziglang wheel, in three steps.

    NOTE: clang's own link step looks for a program named lld, which the wheel has only as
    `zig ld.lld`; so it stops at assembly, which is then assembled and linked.

    Raises:
        CompileError: a step failed, or the code object cannot be read.
    """
    assembly = job.output_path(".s")
    object_file = job.output_path(".o")
    output = job.output_path(".hsaco")
    architecture = offload_architecture(job.flags)
    clang = (*ZIG, "clang")
    source_path = str(job.source_path)
    steps = (
        (assembly, (*clang, *HIP_OFFLINE, *job.flags, "-S", source_path, "-o", str(assembly))),
        (
            object_file,
            (
                *(*clang, "-target", "amdgcn-amd-amdhsa", f"-mcpu={architecture}"),
                *("-x", "assembler", "-c", str(assembly), "-o", str(object_file)),
            ),
        ),
        (output, (*ZIG, "ld.lld", "-shared", str(object_file), "-o", str(output))),
    )
    log = "".join(run_step(job, command, made) for made, command in steps)
    image = take(output)
    for intermediate in (assembly, object_file):
        intermediate.unlink(missing_ok=True)
    return code_object_binary(compiler, job, image, log)


def offload_architecture(flags: tuple[str, ...]) -> str:
    """Return the architecture that `--offload-arch=` names in the flags."""
    prefix = "--offload-arch="
    return next(flag.removeprefix(prefix) for flag in flags if flag.startswith(prefix))


def code_object_binary(compiler: Compiler, job: Job, image: bytes, log: str) -> Binary:
    """Wrap a code object, with its resources read from its own metadata.

    Raises:
        CompileError: the metadata cannot be read or does not name the kernel.
    """
    try:
        resources = read_resources(
            image,
            symbol=job.source.symbol,
            dynamic_shared_bytes=job.source.dynamic_shared_bytes,
        )
    except CompileError as error:
        raise CompileError(str(error), log=log, path=str(job.source_path)) from error
    return Binary(
        symbol=job.source.symbol,
        target=job.source.target,
        kind="code_object",
        image=image,
        path=None,
        compiler=compiler.label,
        flags=job.flags,
        resources=resources,
        log=log,
    )
