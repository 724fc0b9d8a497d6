"""Every shipped gfx942 schedule through three compilers, the emulator and the static model.

    python -m scripts.gfx942 --emit DIR                write the kernels as files
    python -m scripts.gfx942 [--root DIR] [--write]    measure them; print docs/gfx942.md's tables

The root directory is one that `.ci/hiprtc-root` made, for real hipRTC. A compiler that is not here
has no column's figure. `--write` puts the tables into the document. Exits with status 1 if a kernel
spills, uses scratch, has more registers than its occupancy allows, or meets a bank conflict.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fmhagen.checking.verification import Case
from fmhagen.committed.inventory import write_if_different
from fmhagen.compile import compile_source
from fmhagen.compile.binary import Binary, Resources
from fmhagen.compile.code_object import read_resources
from fmhagen.errors import CompilerNotFoundError
from fmhagen.inspection.conflicts import bank_conflicts
from fmhagen.inspection.disassembly import disassemble
from fmhagen.inspection.main_loop import main_loop_report
from fmhagen.inspection.occupancy import occupancy
from fmhagen.instance import Instance
from fmhagen.model import find_loops, parse_listing, report_loop
from fmhagen.model.launch import LoopClk, Shape, predict_launch
from fmhagen.schedule import MainLoop, Matrix
from fmhagen.select import choose
from fmhagen.source import Source
from fmhagen.spec import AttentionSpec
from fmhagen.targets import GFX942
from fmhagen.targets.gfx942_timing import TIMING

REPOSITORY = Path(__file__).resolve().parent.parent
DOCUMENT = REPOSITORY / "docs" / "gfx942.md"
COMPILERS = ("clang", "hiprtc", "zig")
DIMS = ((64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256))
LAUNCH_ROWS = 524288  # of all heads together
LAUNCH_SEQLENS = (2048, 4096, 8192, 16384)
LAUNCH_SHAPE = Shape(
    waves=8,
    waves_per_simd=2,
    wave_rows=32,
    tile_n=64,
    before_clk=3200.0,  # descriptors, Q, the first units, the first scores: assumed
    after_clk=2000.0,  # O and LSE: assumed
    mask_clk=512.0,  # of the units that are partly visible: assumed
    compute_units=GFX942.compute_units,
    xcds=8,
)
CASE = Case(batch=1, heads=2, heads_kv=1, seqlen_q=300, seqlen_k=333)


@dataclass(slots=True)
class Measured:
    """One kernel.

    Attributes:
        instance: what it is.
        resources: by compiler.
        utilisation: of the matrix core in the main loop, by compiler.
        loops: clocks of a key tile, by compiler, for the model of a launch.
        conflicts: passes through the LDS that bank conflicts add, on the emulator.
    """

    instance: Instance
    resources: dict[str, Resources] = field(default_factory=dict)
    utilisation: dict[str, float] = field(default_factory=dict)
    loops: dict[str, LoopClk] = field(default_factory=dict)
    conflicts: int = 0

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with it, a sentence each."""
        plan = self.instance.plan()
        waves = next(c.value for c in plan.constants if c.name == "WAVES_PER_SIMD")
        for compiler, resources in self.resources.items():
            if not resources.clean:
                yield f"{plan.symbol}, {compiler}: spills or scratch: {resources}"
            held = occupancy(GFX942, resources, threads=plan.threads)
            if held.warps < waves * 4:
                yield f"{plan.symbol}, {compiler}: {held}; {waves} waves a SIMD are stated"
        if self.conflicts:
            yield f"{plan.symbol}: {self.conflicts} passes through the LDS are lost to conflicts"


def specs() -> tuple[AttentionSpec, ...]:
    """Return the specs of all shipped head dims, element types and masks."""
    return tuple(
        AttentionSpec(dtype=dtype, head_dim=d, head_dim_v=dv, causal=causal)
        for dtype, (d, dv), causal in itertools.product(("bf16", "fp16"), DIMS, (False, True))
    )


def instances() -> tuple[Instance, ...]:
    """Return the default schedules, and for bf16 the alternatives of two waves a SIMD."""
    found = [Instance.of(spec, GFX942) for spec in specs()]
    for spec in specs():
        if spec.dtype != "bf16":
            continue
        for schedule, _ in choose(spec, GFX942).rejected:
            if schedule.main_loop != MainLoop.WAVE_INTERLEAVED and schedule.consumers == 8:
                found.append(Instance(spec=spec, schedule=schedule, target=GFX942))
    return tuple(found)


def emit(directory: Path, sources: Iterable[Source] | None = None) -> tuple[Path, ...]:
    """Write kernels as files, by default those of `instances`; return their paths in order."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for source in (each.source() for each in instances()) if sources is None else sources:
        path = directory / source.filename
        path.write_text(source.text, encoding="ascii")
        paths.append(path)
    return tuple(paths)


def measure(root: Path | None) -> tuple[Measured, ...]:
    """Compile every kernel with every compiler that is here, model it, run it on the emulator."""
    found = tuple(Measured(instance=instance) for instance in instances())
    sources = [kernel.instance.source() for kernel in found]
    by_hiprtc = images_of_hiprtc(root, sources) if root is not None else {}
    for kernel in found:
        source = kernel.instance.source()
        for compiler in COMPILERS:
            if compiler == "hiprtc" and source.filename in by_hiprtc:
                binary = binary_of(source, by_hiprtc[source.filename])
            else:
                try:
                    binary = compile_source(source, compiler=compiler, allow_spills=True)
                except CompilerNotFoundError:
                    continue
            kernel.resources[compiler] = binary.resources
            _model(kernel, source, binary, compiler)
        banks = bank_conflicts(kernel.instance, CASE)
        kernel.conflicts = sum(use.extra_wavefronts for use in banks)
        print(source.symbol, file=sys.stderr)
    return found


def _model(kernel: Measured, source: Source, binary: Binary, compiler: str) -> None:
    """Fill in what the static model says of one binary."""
    text = disassemble(binary, source, GFX942).text
    report = main_loop_report(
        text, GFX942, binary.resources, threads=source.threads, groups=source.wave_groups
    )
    if report is None:
        return
    kernel.utilisation[compiler] = report.simulated.matrix_utilisation
    loops = find_loops(parse_listing(text, TIMING))
    kernel.loops[compiler] = LoopClk(
        matrix=dict(report.busy)["matrix core"] / report.waves,
        together=report.simulated.clk_per_turn,
        alone=report_loop(loops, TIMING, waves=1).simulated.clk_per_turn,
    )


def images_of_hiprtc(root: Path, sources: Iterable[Source]) -> dict[str, bytes]:
    """Compile kernels in a root directory; return the code objects by file name."""
    with tempfile.TemporaryDirectory(dir=root / "tmp") as saved:
        inside = "/" + str(Path(saved).relative_to(root))
        with tempfile.TemporaryDirectory() as directory:
            paths = emit(Path(directory), sources)
            command = [str(REPOSITORY / ".ci" / "in-root"), str(root), *map(str, paths), "--"]
            command += ["-m", "fmhagen.compile.files", "--compiler", "hiprtc", "--save", inside]
            command += [f"files/{path.name}" for path in paths]
            subprocess.run(command, check=False, stdout=sys.stderr)
            return {path.name: (Path(saved) / f"{path.name}.bin").read_bytes() for path in paths}


def binary_of(source: Source, image: bytes) -> Binary:
    """Return what hipRTC made of a source, given the code object."""
    resources = read_resources(
        image, symbol=source.symbol, dynamic_shared_bytes=source.dynamic_shared_bytes
    )
    return Binary(
        symbol=source.symbol,
        target=source.target,
        kind="code_object",
        image=image,
        path=None,
        compiler="hiprtc",
        flags=(),
        resources=resources,
        log="",
    )


def kind_of(instance: Instance) -> str:
    """Return a schedule in a few words."""
    words = {
        MainLoop.WAVE_PIPELINED: "pipelined",
        MainLoop.WAVE_PING_PONG: "two groups",
    }[instance.schedule.main_loop]
    return words + (", 16x16x16" if instance.schedule.matrix == Matrix.NARROW else "")


def _dims(spec: AttentionSpec) -> str:
    return f"{spec.d}" if spec.d == spec.dv else f"{spec.d}, {spec.dv}"


def _three(values: dict[str, object]) -> str:
    return " / ".join(str(values.get(compiler, "-")) for compiler in COMPILERS)


def resource_table(kernels: tuple[Measured, ...]) -> str:
    """Return registers and LDS of the default schedules, the worse of full and causal."""
    rows = [
        "| head dim (QK, V) | schedule | waves | LDS bytes | bf16: clang 19 / hipRTC / clang 22"
        " | fp16 |",
        "|---|---|---|---|---|---|",
    ]
    defaults = kernels[: len(specs())]
    for d, dv in DIMS:
        mine = [k for k in defaults if (k.instance.spec.d, k.instance.spec.dv) == (d, dv)]
        plan = mine[0].instance.plan()
        a_simd = "two" if plan.threads == 512 else "one"
        cells = []
        for dtype in ("bf16", "fp16"):
            worst: dict[str, object] = {}
            for compiler in COMPILERS:
                of_dtype = (
                    k.resources[compiler].registers
                    for k in mine
                    if k.instance.spec.dtype == dtype and compiler in k.resources
                )
                worst[compiler] = max(of_dtype, default="-")
            cells.append(_three(worst))
        rows.append(
            f"| {_dims(mine[0].instance.spec)} | {kind_of(mine[0].instance)}"
            f" | {plan.threads // 64}, {a_simd} a SIMD | {plan.shared_bytes}"
            f" | {cells[0]} | {cells[1]} |"
        )
    return "\n".join(rows) + "\n"


def model_table(kernels: tuple[Measured, ...]) -> str:
    """Return the predicted utilisation of every kernel."""
    rows = [
        "| head dim | type | schedule | full: clang 19 / hipRTC / clang 22 | causal |",
        "|---|---|---|---|---|",
    ]
    cells: dict[tuple[str, str, str], dict[bool, str]] = {}
    for kernel in kernels:
        spec = kernel.instance.spec
        is_default = kernel.instance.schedule == choose(spec, GFX942).schedule
        kind = kind_of(kernel.instance) + (" (default)" if is_default else "")
        figures: dict[str, object] = {
            name: f"{value:.3f}".removeprefix("0") for name, value in kernel.utilisation.items()
        }
        key = (_dims(spec), str(spec.dtype), kind)
        cells.setdefault(key, {})[spec.causal] = _three(figures)
    order = {_dims(spec): i for i, spec in enumerate(specs())}
    for key in sorted(cells, key=lambda key: (order[key[0]], key[1])):
        full, causal = (cells[key].get(masked, "-") for masked in (False, True))
        rows.append(f"| {' | '.join(key)} | {full} | {causal} |")
    return "\n".join(rows) + "\n"


def launch_table(kernels: tuple[Measured, ...]) -> str:
    """Return the predicted utilisation of whole launches of head dim 128, bf16."""
    rows = [
        "| S | " + " | ".join(map(str, LAUNCH_SEQLENS)) + " |",
        "|---|" + "---|" * len(LAUNCH_SEQLENS),
    ]
    for kernel in kernels[: len(specs())]:
        spec = kernel.instance.spec
        if (spec.d, spec.dv, spec.dtype) != (128, 128, "bf16"):
            continue
        cells = []
        for seqlen in LAUNCH_SEQLENS:
            figures: dict[str, object] = {}
            for compiler, loop in kernel.loops.items():
                launch = predict_launch(
                    loop,
                    LAUNCH_SHAPE,
                    heads=LAUNCH_ROWS // seqlen,
                    seqlen_q=seqlen,
                    seqlen_k=seqlen,
                    causal=spec.causal,
                )
                figures[compiler] = f"{launch.utilisation:.3f}".removeprefix("0")
            cells.append(_three(figures))
        rows.append(f"| {'causal' if spec.causal else 'full'} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def quoted(text: str, tables: dict[str, str]) -> str:
    """Return a document's text with its tables replaced."""
    for name, table in tables.items():
        head, tail = f"<!-- table: {name} -->\n", "<!-- end of table -->"
        before, found, rest = text.partition(head)
        if not found:
            raise ValueError(f"the document has no {head.strip()}")
        text = before + head + table + tail + rest.partition(tail)[2]
    return text


def main(arguments: list[str] | None = None) -> int:
    """Run one command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.gfx942", description=__doc__)
    parser.add_argument("--emit", type=Path, metavar="DIR")
    parser.add_argument("--root", type=Path, metavar="DIR")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    if options.emit is not None:
        print("\n".join(map(str, emit(options.emit))))
        return 0
    kernels = measure(options.root.resolve() if options.root else None)
    tables = {
        "resources": resource_table(kernels),
        "model": model_table(kernels),
        "launches": launch_table(kernels),
    }
    print("\n".join(tables.values()))
    faults = [fault for kernel in kernels for fault in kernel.faults()]
    compilers = sorted({name for kernel in kernels for name in kernel.resources})
    print(f"{len(kernels)} kernels, {', '.join(compilers)}: {len(faults)} faults")
    print("\n".join(faults))
    if options.write:
        text = quoted(DOCUMENT.read_text(encoding="ascii"), tables)
        write_if_different(DOCUMENT, text.encode("ascii"))
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
