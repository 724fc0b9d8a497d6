"""What every compiler driver is: a record of what was found, and a way to run it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fmhagen.compile.binary import Binary
from fmhagen.errors import CompileError
from fmhagen.source import Source

COMPILE_LIMIT_SECONDS = 900.0  # a compiler that runs longer is taken to hang
PROBE_LIMIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """One compiler, found or missing.

    Attributes:
        name: "nvrtc", "hiprtc", "clang", "hipcc", "zig" or "host".
        target: what it compiles for: "sm90", "gfx942" or "emulator".
        version: the version for people, or None if missing.
        identity: everything known that tells two builds of the compiler apart; part of cache keys.
        path: the program or library, or None.
        missing: why it cannot be used, or None if it can.
        install: what to install to have it.
    """

    name: str
    target: str
    version: str | None = None
    identity: str = ""
    path: str | None = None
    missing: str | None = None
    install: str = ""

    @property
    def available(self) -> bool:
        """True if it can be used."""
        return self.missing is None

    @property
    def label(self) -> str:
        """Name and version, such as "clang 19.1.7"."""
        return f"{self.name} {self.version}" if self.version else self.name

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON-ready data."""
        return {
            "name": self.name,
            "target": self.target,
            "available": self.available,
            "version": self.version,
            "path": self.path,
            "missing": self.missing,
            "install": self.install,
        }


def missing_compiler(name: str, target: str, error: Exception, install: str) -> Compiler:
    """Return the record of a compiler that could not be loaded because of `error`."""
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return Compiler(name=name, target=target, missing=reason, install=install)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One compilation: what, with which flags, and where it may write.

    Attributes:
        source: the generated file.
        flags: the complete flags that are part of the cache key.
        directory: an existing directory for the source and whatever the compiler writes.
        environment: the environment of child processes.
        objects: for the host: what a kernel is linked with.
    """

    source: Source
    flags: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str]
    objects: tuple[Path, ...] = ()

    @property
    def source_path(self) -> Path:
        """Where the source lies on disk, so that every diagnostic names a file to open."""
        return self.directory / self.source.filename

    def output_path(self, suffix: str) -> Path:
        """Return the path of an output beside the source."""
        return self.directory / f"{self.source.filename}{suffix}"


Build = Callable[[Compiler, Job], Binary]
"""A driver's `build`: compiles a job, whose source lies on disk, and reads the resources back."""


def run_step(job: Job, command: tuple[str, ...], output: Path) -> str:
    """Run one command of a compilation that must write `output`; return what it printed.

    Raises:
        CompileError: the command cannot be run, fails, hangs or writes nothing; carries the log.
    """
    source_path = str(job.source_path)
    output.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(job.environment),
            stdin=subprocess.DEVNULL,
            timeout=COMPILE_LIMIT_SECONDS,
            check=False,
        )
    except OSError as error:
        raise CompileError(f"cannot run {command[0]}: {error}", path=source_path) from error
    except subprocess.TimeoutExpired as error:
        raise CompileError(
            f"{command[0]} did not finish within {COMPILE_LIMIT_SECONDS:.0f} s", path=source_path
        ) from error
    log = done.stderr + done.stdout
    if done.returncode != 0:
        raise CompileError(
            f"{' '.join(command)} failed with exit status {done.returncode}",
            log=log,
            path=source_path,
        )
    if not output.is_file() or output.stat().st_size == 0:
        raise CompileError(f"{' '.join(command)} wrote no output", log=log, path=source_path)
    return log


def take(output: Path) -> bytes:
    """Return the bytes of a compiler's output and remove it; the cache publishes its own copy."""
    image = output.read_bytes()
    output.unlink()
    return image


def output_of(command: tuple[str, ...], limit_seconds: float = PROBE_LIMIT_SECONDS) -> str:
    """Return what a program prints on its standard output, or "" if it cannot be run or fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=limit_seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def first_line_of(command: tuple[str, ...]) -> str:
    """Return the first line that a program prints, or "" if it cannot be run or fails."""
    lines = output_of(command).strip().splitlines()
    return lines[0].strip() if lines else ""
