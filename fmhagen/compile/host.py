"""The host's C++ compiler: an emitted file and the emulator to a library that runs anywhere."""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
from pathlib import Path

from fmhagen.compile.binary import Binary, Resources
from fmhagen.compile.clang import ZIG, detect_zig
from fmhagen.compile.flags import HOST_ZIG
from fmhagen.compile.toolchain import Compiler, Job, first_line_of, run_step, take
from fmhagen.resources import prelude_dir
from fmhagen.source import Source

_INSTALL = "a C++ compiler (g++ >= 12 or clang++), or pip install ziglang"
_OLDEST_GCC = 12  # the first with -ftrivial-auto-var-init


def detect() -> Compiler:
    """Return the first usable host compiler: c++, g++, clang++, else the ziglang wheel's."""
    reasons = []
    for name in ("c++", "g++", "clang++"):
        path = shutil.which(name)
        if path is None:
            continue
        found = _probe(path)
        if found.available:
            return found
        reasons.append(f"{path}: {found.missing}")
    return _zig_host(tuple(reasons))


@functools.cache
def _probe(path: str) -> Compiler:
    """Return what one host compiler is."""
    banner = first_line_of((path, "--version"))
    version = re.search(r"(\d+)\.\d+[\w.]*", banner.rpartition(")")[2] or banner)
    missing = None
    if version is None:
        missing = "does not answer --version"
    elif "clang" not in banner and int(version[1]) < _OLDEST_GCC:
        missing = f"is GCC {version[0]}; {_OLDEST_GCC} or newer is needed"
    return Compiler(
        name="host",
        target="emulator",
        version=f"{Path(path).name} {version[0]}" if version else None,
        identity=banner,
        path=path,
        missing=missing,
        install=_INSTALL,
    )


def _zig_host(reasons: tuple[str, ...]) -> Compiler:
    """Return the ziglang wheel as a host compiler."""
    zig = detect_zig()
    if not zig.available:
        reason = "; ".join((*reasons, "no c++, g++ or clang++ on PATH", str(zig.missing)))
        return Compiler(name="host", target="emulator", missing=reason, install=_INSTALL)
    return Compiler(
        name="host",
        target="emulator",
        version=f"zig {zig.version}",
        identity=zig.identity,
        path=zig.path,
        install=_INSTALL,
    )


def headers_digest() -> str:
    """Return a digest of every file that an emulated kernel can include, for the cache key."""
    root = prelude_dir()
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):  # sorted: the file system's order varies
        if path.is_file():
            text = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(text)}\n".encode())
            digest.update(text)
    return digest.hexdigest()


def emulator_source(target: str) -> Source:
    """Return the emulator of a target as a file of its own, for kernels to be linked with."""
    symbol = f"fmhagen_emulator_{target}"
    return Source(
        text="// The emulator alone: its header, which the compiler is told to include.\n",
        symbol=symbol,
        target=target,
        filename=f"{symbol}.cpp",
        digest="0" * 16,
        constructor="",
        threads=0,
        dynamic_shared_bytes=0,
    )


def build(compiler: Compiler, job: Job) -> Binary:
    """Compile an emitted file with the emulator of its target, or link it with one.

    Raises:
        CompileError: the compiler refused the text; carries its log.
    """
    assert compiler.path is not None
    uses_zig = compiler.path == " ".join(ZIG)
    program = (*ZIG, "cc") if uses_zig else (compiler.path,)
    is_object = "-c" in job.flags
    output = job.output_path(".o" if is_object else ".so")
    command = (
        *program,
        *job.flags,
        *(HOST_ZIG if uses_zig else ()),
        *("-I", str(prelude_dir()), "-include", f"emulator/{job.source.target}.h"),
        *("-x", "c++", str(job.source_path)),
        *(("-x", "none", *map(str, job.objects)) if job.objects else ()),
        *("-o", str(output)),
    )
    log = run_step(job, command, output)
    return Binary(
        symbol=job.source.symbol,
        target=job.source.target,
        kind="object" if is_object else "shared_library",
        image=take(output),
        path=None,
        compiler=compiler.label,
        flags=job.flags,
        resources=Resources(
            registers=0,
            spill_bytes=0,
            stack_bytes=0,
            static_shared_bytes=0,
            dynamic_shared_bytes=job.source.dynamic_shared_bytes,
        ),
        log=log,
    )
