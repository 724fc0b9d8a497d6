"""Registers, spills and shared memory of the committed kernels, for the manifest."""

from __future__ import annotations

from pathlib import Path

from fmhagen.compile import Compiler, available_compilers, compile_source
from fmhagen.compile.binary import Resources
from fmhagen.compile.listing import assembly_listing
from fmhagen.inspection.main_loop import main_loop_report, snapshot
from fmhagen.inventory import instances
from fmhagen.manifest import MANIFEST, Measurement, read_manifest
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


def measured_differences(directory: Path) -> tuple[str, ...]:
    """Return one sentence for each resource that is not what the manifest says.

    A kernel is compared only if the compiler that is here is the one that the manifest names.
    """
    known = read_manifest(directory / MANIFEST)
    found = []
    for instance in instances():
        source = instance.source()
        path = f"{source.target}/{source.filename}"
        entry = known.get(path)
        old = entry.measurement if entry is not None else None
        compiler = pinned_compiler(source.target)
        if compiler is None or (old is not None and old.compiler != compiler.label):
            continue
        new = measure(source)
        if old is None or new is None:
            found.append(f"{path}: the manifest has no resources")
            continue
        before, after = old.resources.to_dict(), new.resources.to_dict()
        if old.main_loop != new.main_loop:
            found.append(f"{path}: main loop: {new.main_loop}; the manifest says {old.main_loop}")
        found.extend(
            f"{path}: {name} is {after[name]}, the manifest says {before[name]}"
            for name in after
            if after[name] != before[name]
        )
    return tuple(found)
