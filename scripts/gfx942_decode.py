"""What the static model says of caches on gfx942: decode against memory, prefill against its peak.

    python -m scripts.gfx942_decode [--root DIR] [--write]    print docs/gfx942.md's tables of it

The root directory is one that `.ci/hiprtc-root` made, for real hipRTC. A compiler that is not here
has no column's figure. `--write` puts the tables into the document. Exits with status 1 if a kernel
spills or uses scratch.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fmhagen.committed.inventory import write_if_different
from fmhagen.compile import compile_source
from fmhagen.errors import CompilerNotFoundError
from fmhagen.inspection.disassembly import disassemble
from fmhagen.inspection.main_loop import main_loop_report
from fmhagen.instance import Instance
from fmhagen.model import LoopReport
from fmhagen.select import PREFILL_ROWS, default_schedule
from fmhagen.spec import AttentionSpec, CacheScale, DType
from fmhagen.targets import GFX942
from scripts.gfx942 import COMPILERS, DOCUMENT, binary_of, images_of_hiprtc, quoted

CLOCK_GHZ = 2.1  # of a chip that waits for memory: the highest
HBM_TB_A_SECOND = 5.3
SIMDS = 4
NAMES = "clang 19 / hipRTC / clang 22"


def _small(kv_dtype: DType, kv_scale: CacheScale, **more: Any) -> AttentionSpec:
    return AttentionSpec(causal=True, kv_dtype=kv_dtype, kv_scale=kv_scale, **more)


DECODE = (
    ("bf16, d 128, contiguous", AttentionSpec(kv_cache=True)),
    ("bf16, d 128, any pages", AttentionSpec(page_size=16)),
    ("bf16, d 128, causal, any pages", AttentionSpec(page_size=16, causal=True)),
    ("bf16, d 64, any pages", AttentionSpec(page_size=16, head_dim=64)),
    ("bf16, d 256, any pages", AttentionSpec(page_size=16, head_dim=256)),
    ("e4m3, d 128, any pages", AttentionSpec(page_size=16, kv_dtype=DType.E4M3)),
    (
        "e4m3, d 128, a factor a token",
        AttentionSpec(page_size=16, kv_dtype=DType.E4M3, kv_scale=CacheScale.TOKEN),
    ),
    ("int8, d 128, any pages", AttentionSpec(page_size=16, kv_dtype=DType.INT8)),
)
PREFILL = (
    ("contiguous", AttentionSpec(kv_cache=True, causal=True)),
    ("contiguous, window 1024", AttentionSpec(kv_cache=True, causal=True, window_left=1023)),
    ("pages of 16", AttentionSpec(page_size=16, causal=True)),
    ("pages of 16, packed", AttentionSpec(page_size=16, causal=True, varlen=True)),
    ("pages of 16, window 1024", AttentionSpec(page_size=16, causal=True, window_left=1023)),
    ("pages of 1", AttentionSpec(page_size=1, causal=True)),
    ("pages of 48", AttentionSpec(page_size=48, causal=True)),
    ("e4m3, a factor a head", _small(DType.E4M3, CacheScale.HEAD, kv_cache=True)),
    ("e4m3, pages of 16", _small(DType.E4M3, CacheScale.NONE, page_size=16)),
    ("int8, pages of 16", _small(DType.INT8, CacheScale.HEAD, page_size=16)),
    ("e4m3, a factor a token", _small(DType.E4M3, CacheScale.TOKEN, kv_cache=True)),
    ("e4m3, a factor a token, pages of 16", _small(DType.E4M3, CacheScale.TOKEN, page_size=16)),
    ("d 64, pages of 16", AttentionSpec(page_size=16, causal=True, head_dim=64)),
    ("d 192, pages of 16", AttentionSpec(page_size=16, causal=True, head_dim=192)),
    ("d 256, pages of 16", AttentionSpec(page_size=16, causal=True, head_dim=256)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one compiler made of a kernel: registers, whether it is clean, the loop's report."""

    registers: int
    clean: bool
    report: LoopReport


def instance_of(spec: AttentionSpec, *, many: bool) -> Instance:
    """Return the kernel of a spec for few query rows, or for many."""
    schedule = default_schedule(spec, GFX942, query_hint=PREFILL_ROWS if many else None)
    return Instance(spec=spec, schedule=schedule, target=GFX942)


def measure(instance: Instance, compiler: str, images: Mapping[str, bytes]) -> Found | None:
    """Compile and model a kernel; None where the compiler is not here."""
    source = instance.source()
    if compiler == "hiprtc" and source.filename in images:
        binary = binary_of(source, images[source.filename])
    else:
        try:
            binary = compile_source(source, compiler=compiler, allow_spills=True)
        except CompilerNotFoundError:
            return None
    listing = disassemble(binary, source, GFX942).text
    report = main_loop_report(listing, GFX942, binary.resources, threads=source.threads)
    assert report is not None
    used = binary.resources
    return Found(registers=used.registers, clean=used.clean, report=report)


def tile_bytes(instance: Instance) -> int:
    """Return the bytes of K and V that a wave loads for one turn of the decode loop."""
    spec = instance.spec
    size = 2 if spec.kv_dtype is None else 1
    return instance.schedule.tile_n * (spec.d + spec.dv) * size


def decode_row(name: str, instance: Instance, found: list[Found | None]) -> str:
    """Return the row of a kernel for few query rows."""
    size = tile_bytes(instance)
    clk = [None if f is None else f.report.simulated.clk_per_turn / f.report.waves for f in found]
    rate = [
        None if c is None else size * SIMDS * GFX942.compute_units * CLOCK_GHZ / c / 1000
        for c in clk
    ]
    cells = (
        cell([None if f is None else f.registers for f in found], "d"),
        cell(clk, ".0f"),
        cell(rate, ".1f"),
        cell([None if r is None else HBM_TB_A_SECOND / r for r in rate], ".2f"),
    )
    return f"| {name} | {size} | {' | '.join(cells)} |"


def prefill_row(name: str, found: list[Found | None]) -> str:
    """Return the row of a kernel for many query rows."""
    registers = cell([None if f is None else f.registers for f in found], "d")
    use = [None if f is None else f.report.simulated.matrix_utilisation for f in found]
    return f"| {name} | {registers} | {cell(use, '.3f').replace('0.', '.')} |"


def cell(values: list[int | None] | list[float | None], text: str) -> str:
    """Return a figure of each compiler."""
    return " / ".join("-" if value is None else format(value, text) for value in values)


def tables(root: Path | None) -> tuple[dict[str, str], bool]:
    """Return the tables by name, and whether every kernel is clean."""
    few = [(name, instance_of(spec, many=False)) for name, spec in DECODE]
    many = [(name, instance_of(spec, many=True)) for name, spec in PREFILL]
    sources = [instance.source() for _, instance in (*few, *many)]
    images = {} if root is None else images_of_hiprtc(root, sources)
    found = {
        instance: [measure(instance, compiler, images) for compiler in COMPILERS]
        for _, instance in (*few, *many)
    }
    decode = [
        f"| cache | bytes of a tile | registers: {NAMES} | clk of a tile and SIMD"
        " | TB/s without HBM's limit | busy at 5.3 TB/s |",
        "|---|---|---|---|---|---|",
        *(decode_row(name, instance, found[instance]) for name, instance in few),
    ]
    prefill = [
        f"| cache | registers: {NAMES} | utilisation |",
        "|---|---|---|",
        *(prefill_row(name, found[instance]) for name, instance in many),
    ]
    clean = all(one is None or one.clean for row in found.values() for one in row)
    texts = {"decode": decode, "prefill": prefill}
    return {name: "\n".join(rows) + "\n" for name, rows in texts.items()}, clean


def main(arguments: list[str] | None = None) -> int:
    """Run one command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.gfx942_decode", description=__doc__)
    parser.add_argument("--root", type=Path, metavar="DIR")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    texts, clean = tables(options.root.resolve() if options.root else None)
    print("\n".join(texts.values()))
    if options.write:
        text = quoted(Path(DOCUMENT).read_text(encoding="ascii"), texts)
        write_if_different(DOCUMENT, text.encode("ascii"))
    return 0 if clean else 1


if __name__ == "__main__":
    raise SystemExit(main())
