"""Which compiler compiles a source, with which flags, through which cache."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fmhagen.compile import clang, flags, hiprtc, host, nvrtc
from fmhagen.compile.binary import Binary
from fmhagen.compile.cache import Cache, cache_key, default_cache, tool_environment
from fmhagen.compile.entry import write_atomically
from fmhagen.compile.smoke import smoke_source
from fmhagen.compile.toolchain import Build, Compiler, Job
from fmhagen.errors import CompilerNotFoundError, SpillError
from fmhagen.resources import package_version
from fmhagen.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class _Driver:
    """How to find one compiler and how to use it."""

    target: str
    detect: Callable[[], Compiler]
    build: Build


# In order of preference for each target.
_DRIVERS = {
    "nvrtc": _Driver(target="sm90", detect=nvrtc.detect, build=nvrtc.build),
    "hiprtc": _Driver(target="gfx942", detect=hiprtc.detect, build=hiprtc.build),
    "clang": _Driver(target="gfx942", detect=clang.detect_clang, build=clang.build_clang),
    "hipcc": _Driver(target="gfx942", detect=clang.detect_hipcc, build=clang.build_clang),
    "zig": _Driver(target="gfx942", detect=clang.detect_zig, build=clang.build_zig),
    "host": _Driver(target="emulator", detect=host.detect, build=host.build),
}


def available_compilers() -> tuple[Compiler, ...]:
    """Return every compiler that fmhagen knows, found or missing, with what to install."""
    return tuple(driver.detect() for driver in _DRIVERS.values())


def find_compiler(target: str, compiler: str = "auto") -> Compiler:
    """Return the compiler to use for a target: "sm90", "gfx942" or "emulator".

    Args:
        target: what to compile for.
        compiler: a compiler's name, or "auto" for the first that is here: NVRTC for sm90; hipRTC,
            clang, hipcc, zig for gfx942; the host's C++ compiler for the emulator.

    Raises:
        CompilerNotFoundError: it is not here; the message says what to install.
        ValueError: no such compiler, or it cannot compile for the target.
    """
    if compiler == "auto":
        names = tuple(name for name, driver in _DRIVERS.items() if driver.target == target)
    elif compiler not in _DRIVERS:
        raise ValueError(f"compiler={compiler!r}: not one of auto, {', '.join(_DRIVERS)}")
    elif _DRIVERS[compiler].target != target:
        raise ValueError(f"compiler={compiler!r} does not compile for {target}")
    else:
        names = (compiler,)
    if not names:
        raise ValueError(f"target={target!r}: no compiler is known for it")
    missing = []
    for name in names:
        found = _DRIVERS[name].detect()
        if found.available:
            return found
        missing.append(f"  {found.name}: {found.missing}; install: {found.install}")
    raise CompilerNotFoundError(f"no compiler for {target} is here:\n" + "\n".join(missing))


def compile_source(
    source: Source,
    *,
    compiler: str = "auto",
    cache: Cache | Literal["default"] | None = "default",
    for_emulator: bool = False,
    allow_spills: bool = False,
    host_optimisation: flags.HostOptimisation = "O0",
    architecture: str | None = None,
    extra_flags: tuple[str, ...] = (),
) -> Binary:
    """Compile a generated file, or return the binary that the cache has of it.

    Args:
        source: the generated file.
        compiler: "auto" or the name of one: "nvrtc", "hiprtc", "clang", "hipcc", "zig", "host".
        cache: a cache, "default" for the user's, or None to compile anew and keep nothing.
        for_emulator: compile for the host, together with the emulator of the source's target.
        allow_spills: accept a device binary that spills registers or uses local memory.
        host_optimisation: for the emulator only; O0 compiles fastest, O2 runs fastest.
        architecture: the full name of the device, such as "gfx942:sramecc+:xnack-"; None for code
            that runs on every chip of the target.
        extra_flags: more flags for the compiler, such as "-lineinfo".

    Raises:
        CompilerNotFoundError: no compiler is here; the message says what to install.
        CompileError: the compiler refused the source; carries the log and the source's path.
        SpillError: the binary is not clean and `allow_spills` is false.
        CacheError: another process holds the entry's lock for too long.
    """
    found = find_compiler("emulator" if for_emulator else source.target, compiler)
    kept = default_cache() if cache == "default" else cache
    all_flags = (
        *_flags_of(found.name, source.target, architecture, host_optimisation),
        *extra_flags,
    )
    objects: tuple[Path, ...] = ()
    if for_emulator and host_optimisation == "O0" and kept is not None:
        apart = ("-O2", *flags.HOST, *flags.HOST_EMULATOR_ALONE)
        emulator = _compile(found, host.emulator_source(source.target), apart, (), kept)
        if emulator.path is not None:
            objects = (emulator.path,)
            all_flags += flags.HOST_KERNEL_ALONE
    binary = _compile(found, source, all_flags, objects, kept)
    if not for_emulator and not allow_spills and not binary.resources.clean:
        raise SpillError(_spill_message(binary, source))
    return binary


def _compile(
    compiler: Compiler,
    source: Source,
    all_flags: tuple[str, ...],
    objects: tuple[Path, ...],
    cache: Cache | None,
) -> Binary:
    """Run a compiler that was found, through a cache if there is one."""

    def build(directory: Path) -> Binary:
        job = Job(
            source=source,
            flags=all_flags,
            directory=directory,
            environment=tool_environment(directory),
            objects=objects,
        )
        # NOTE: NVRTC and hipRTC take the text itself, so they work where nothing can be written.
        takes_text = compiler.name in ("nvrtc", "hiprtc")
        with contextlib.suppress(NotADirectoryError) if takes_text else contextlib.nullcontext():
            write_atomically(job.source_path, source.text.encode())
        return _DRIVERS[compiler.name].build(compiler, job)

    if cache is None:
        # NOTE: the directory stays if the compiler fails, because the error names the source in it.
        directory = Path(tempfile.mkdtemp(prefix="fmhagen-"))
        binary = build(directory)
        shutil.rmtree(directory, ignore_errors=True)
        return binary
    # NOTE: objects have no part in the key: the headers, the flags and the compiler decide them.
    key = cache_key(
        text=source.text,
        symbol=source.symbol,
        filename=source.filename,
        target=source.target,
        dynamic_shared_bytes=source.dynamic_shared_bytes,
        flags=all_flags,
        compiler=compiler.name,
        identity=compiler.identity,
        fmhagen=package_version(),
        headers=host.headers_digest() if compiler.name == "host" else "",
    )
    return cache.get_or_build(key, build)


def _flags_of(
    compiler: str, target: str, architecture: str | None, host_optimisation: str
) -> tuple[str, ...]:
    """Return a compiler's flags from the table."""
    name = architecture or flags.ARCHITECTURES[target]
    if compiler == "nvrtc":
        return (f"--gpu-architecture={name}", *flags.NVRTC)
    if compiler == "host":
        return (f"-{host_optimisation}", *flags.HOST)
    return (f"--offload-arch={name}", *flags.AMDGPU)


def _spill_message(binary: Binary, source: Source) -> str:
    """Say what spills and what to do about it."""
    used = binary.resources
    return (
        f"{binary.symbol} is not clean with {binary.compiler}: {used.spill_bytes} bytes of spills "
        f"and {used.stack_bytes} bytes of local memory a thread, at {used.registers} registers and "
        f"{source.threads} threads a block; use a smaller tile or more warps, or pass "
        "allow_spills=True to have it all the same"
    )


def smoke(compiler: str) -> Binary:
    """Compile a trivial kernel with one compiler, without the cache.

    Raises:
        CompilerNotFoundError: the compiler is not here.
        CompileError: it is here and does not work.
    """
    driver = _DRIVERS.get(compiler)
    if driver is None:
        raise ValueError(f"compiler={compiler!r}: not one of {', '.join(_DRIVERS)}")
    for_emulator = compiler == "host"
    source = smoke_source("sm90" if for_emulator else driver.target)
    return compile_source(source, compiler=compiler, cache=None, for_emulator=for_emulator)
