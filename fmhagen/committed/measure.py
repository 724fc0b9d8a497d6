"""Registers, spills and shared memory of the committed kernels, for the manifest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fmhagen.committed.inventory import kernels
from fmhagen.committed.manifest import MANIFEST, Measurement, read_manifest
from fmhagen.compile import Compiler, available_compilers, compile_source
from fmhagen.compile.binary import Resources
from fmhagen.compile.listing import assembly_listing
from fmhagen.inspection.main_loop import main_loop_report, snapshot
from fmhagen.source import Source
from fmhagen.targets import find_target
from fmhagen.targets.timing import timing_of

# NOTE: compilers that come as pinned wheels, so that every machine reads the same registers.
PINNED = ("nvrtc", "zig")


def pinned_compiler(target: str) -> Compiler | None:
    """Return the compiler that a target's resources are read with, or None if it is missing."""
    for compiler in available_compilers():
        if compiler.name in PINNED and compiler.target == target and compiler.available:
            return compiler
    return None


def measure(source: Source) -> Measurement | None:
    """Compile a source with its target's pinned compiler and read its resources back.

    Returns:
        The measurement, or None where the compiler is missing. A kernel that spills is measured
        all the same, so that the manifest shows it.

    Raises:
        CompileError: the compiler refused the source.
    """
    compiler = pinned_compiler(source.target)
    if compiler is None:
        return None
    binary = compile_source(source, compiler=compiler.name, allow_spills=True)
    return Measurement(
        compiler=binary.compiler,
        resources=binary.resources,
        main_loop=_main_loop(source, binary.resources),
    )


def _main_loop(source: Source, resources: Resources) -> str:
    """Return the snapshot of a kernel's main loop, "" where there is no model or no listing."""
    target = find_target(source.target)
    if timing_of(target.name) is None:
        return ""
    text = assembly_listing(source)
    report = main_loop_report(
        text or "", target, resources, threads=source.threads, groups=source.wave_groups
    )
    return "" if report is None else snapshot(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The committed kernels, measured again.

    Attributes:
        compared: how many kernels were compared.
        moved: one sentence for each resource that is not what the manifest says.
        left_out: one sentence for each kernel that was not compared, with the reason.
    """

    compared: int
    moved: tuple[str, ...]
    left_out: tuple[str, ...]


def measure_again(directory: Path) -> Measured:
    """Compare what every committed kernel costs with what the manifest in a directory says.

    A kernel is compared only if the compiler that is here is the one that the manifest names, since
    another one may give it other registers.
    """
    known = read_manifest(directory / MANIFEST)
    chosen: list[tuple[str, Measurement, Source]] = []
    moved: list[str] = []
    left_out: list[str] = []
    for _, source in kernels():
        path = f"{source.target}/{source.filename}"
        entry = known.get(path)
        old = entry.measurement if entry is not None else None
        compiler = pinned_compiler(source.target)
        if compiler is None:
            left_out.append(f"{path}: no compiler whose resources the manifest holds is here")
        elif old is None:
            moved.append(f"{path}: the manifest has no resources")
        elif old.compiler != compiler.label:
            left_out.append(f"{path}: measured with {old.compiler}; here is {compiler.label}")
        else:
            chosen.append((path, old, source))
    # Compilers run beside one another: they are processes, or leave the interpreter alone.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = list(threads.map(measure, (source for _, _, source in chosen)))
    for (path, old, _), new in zip(chosen, found, strict=True):
        if new is not None:
            moved += (f"{path}: {sentence}" for sentence in _differences(old, new))
    compared = sum(new is not None for new in found)
    return Measured(compared=compared, moved=tuple(moved), left_out=tuple(left_out))


def _differences(old: Measurement, new: Measurement) -> Iterator[str]:
    if old.main_loop != new.main_loop:
        yield f"main loop: {new.main_loop}; the manifest says {old.main_loop}"
    before, after = old.resources.to_dict(), new.resources.to_dict()
    for name, value in after.items():
        if value != before[name]:
            yield f"{name} is {value}, the manifest says {before[name]}"
