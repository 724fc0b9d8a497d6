"""Compile generated files and print what each kernel costs; for CI and for one look by hand.

    python -m fmhagen.compile.files [--compiler NAME] [--save DIR] [--jobs N] FILE...

Exits with status 1 if a file does not compile, spills or uses local memory.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from fmhagen.compile.driver import compile_source
from fmhagen.errors import FmhagenError
from fmhagen.source import Source

_TARGETS = {".cu": "sm90", ".hip": "gfx942"}
_ENTRY = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\('
)


def source_of_file(path: Path) -> Source:
    """Return the Source of a generated file, as far as its text tells.

    The number of threads and the dynamic shared memory are not in the text and are given as 0.

    Raises:
        ValueError: the file's suffix or its entry point is not that of a generated file.
    """
    target = _TARGETS.get(path.suffix)
    if target is None:
        raise ValueError(f"{path}: a generated file ends in {' or '.join(_TARGETS)}")
    text = path.read_text(encoding="ascii")
    entry = _ENTRY.search(text)
    if entry is None:
        raise ValueError(f'{path}: has no entry point `extern "C" __global__ void NAME(...)`')
    return Source(
        text=text,
        symbol=entry[1],
        target=target,
        filename=path.name,
        digest=hashlib.sha256(text.encode()).hexdigest()[:16],
        constructor="",
        threads=0,
        dynamic_shared_bytes=0,
    )


def compile_file(path: Path, compiler: str, save: Path | None = None) -> tuple[bool, str]:
    """Compile one file; return whether it is clean, and one line (or a log) about it.

    Args:
        path: the generated file.
        compiler: the name of one, or "auto".
        save: folder that the binary is written to, under the file's name and `.bin`.
    """
    started = time.perf_counter()
    try:
        binary = compile_source(
            source_of_file(path), compiler=compiler, cache=None, allow_spills=True
        )
    except (FmhagenError, ValueError) as error:
        return False, f"FAIL  {path}\n{error}"
    seconds = time.perf_counter() - started
    if save is not None:
        (save / f"{path.name}.bin").write_bytes(binary.image)
    used = binary.resources
    registers = [f"{used.registers} registers"]
    if used.accumulator_registers is not None:
        registers.append(f"{used.accumulator_registers} of them accumulators")
    if used.scalar_registers is not None:
        registers.append(f"{used.scalar_registers} scalar")
    return used.clean, (
        f"{'ok   ' if used.clean else 'SPILL'} {path}: {', '.join(registers)}, "
        f"{used.spill_bytes} bytes spilled, {used.stack_bytes} bytes of local memory, "
        f"{used.static_shared_bytes} bytes of static shared memory, {binary.compiler}, "
        f"{seconds:.2f} s"
    )


def main(arguments: list[str] | None = None) -> int:
    """Compile the files that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m fmhagen.compile.files", description="Compile generated kernels."
    )
    parser.add_argument("--compiler", default="auto", help="auto, or the name of one")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write the binaries there")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes; all cores"
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    jobs = min(options.jobs, len(options.files))
    clean_count = _in_processes(jobs, options) if jobs > 1 else _one_by_one(options)
    print(f"{clean_count} of {len(options.files)} files are clean")
    return 0 if clean_count == len(options.files) else 1


def _one_by_one(options: argparse.Namespace) -> int:
    """Compile the files and print a report of each; return how many are clean."""
    clean_count = 0
    for path in options.files:
        clean, report = compile_file(path, options.compiler, options.save)
        clean_count += clean
        print(report, flush=True)
    return clean_count


def _in_processes(jobs: int, options: argparse.Namespace) -> int:
    """Deal the files to processes of this module; print their reports; return how many are clean.

    NOTE: plain processes and not a pool, whose semaphores need a /dev/shm: CI runs this in a bare
    root directory, too.
    """
    command = [sys.executable, "-m", "fmhagen.compile.files", "--compiler", options.compiler]
    if options.save is not None:
        command += ["--save", str(options.save)]
    started = [
        subprocess.Popen(
            [*command, "--jobs", "1", *map(str, options.files[first::jobs])],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for first in range(jobs)
    ]
    clean_count = 0
    for process in started:
        *reports, summary = process.communicate()[0].splitlines() or [""]
        print(*reports, sep="\n", flush=True)
        counted = re.match(r"(\d+) of \d+ files are clean$", summary)
        if counted is None:
            print(summary, flush=True)  # it did not get that far
        else:
            clean_count += int(counted[1])
    return clean_count


if __name__ == "__main__":
    sys.exit(main())
