"""What the static model says of decode on gfx942: bytes of a tile against clocks of its work.

    python -m scripts.gfx942_decode [--write]    print docs/gfx942.md's table of it, or put it there

A compiler that is not here has no column's figure. Exits with status 1 if a kernel spills or uses
scratch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fmhagen.compile import compile_source
from fmhagen.compile.code_object import read_resources
from fmhagen.errors import CompilerNotFoundError
from fmhagen.inspection.disassembly import disassemble
from fmhagen.inspection.main_loop import main_loop_report
from fmhagen.instance import Instance
from fmhagen.inventory import write_if_different
from fmhagen.spec import AttentionSpec, CacheScale, DType
from fmhagen.targets import GFX942
from scripts.gfx942 import DOCUMENT, quoted

COMPILERS = ("clang", "zig")
CLOCK_GHZ = 2.1  # of a chip that waits for memory: the highest
HBM_TB_A_SECOND = 5.3
SIMDS = 4
ROWS = (
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


def measure(spec: AttentionSpec, compiler: str) -> tuple[int, float, float, bool] | None:
    """Return registers, clocks of a tile, TB/s that the loop alone could take, whether it is clean.

    None where the compiler is not here.
    """
    instance = Instance.of(spec, GFX942)
    plan, source = instance.plan(), instance.source()
    try:
        binary = compile_source(source, compiler=compiler, allow_spills=True)
    except CompilerNotFoundError:
        return None
    listing = disassemble(binary, source, GFX942).text
    report = main_loop_report(listing, GFX942, binary.resources, threads=source.threads)
    assert report is not None
    assert plan.split is not None
    second = read_resources(binary.image, symbol=plan.split.combine_symbol, dynamic_shared_bytes=0)
    clk = report.simulated.clk_per_turn / report.waves
    a_second = tile_bytes(instance) * SIMDS * GFX942.compute_units * CLOCK_GHZ / clk / 1000
    clean = binary.resources.clean and second.clean
    return binary.resources.registers, clk, a_second, clean


def tile_bytes(instance: Instance) -> int:
    """Return the bytes of K and V that a wave loads for one turn of the loop."""
    spec = instance.spec
    size = 2 if spec.kv_dtype is None else 1
    return instance.schedule.tile_n * (spec.d + spec.dv) * size


def table() -> tuple[str, bool]:
    """Return the table, and whether every kernel is clean."""
    names = " / ".join(f"clang {version}" for version in (19, 22))
    rows = [
        f"| cache | bytes of a tile | registers: {names} | clk of a tile and SIMD"
        " | TB/s without HBM's limit | busy at 5.3 TB/s |",
        "|---|---|---|---|---|---|",
    ]
    clean = True
    for name, spec in ROWS:
        found = [measure(spec, compiler) for compiler in COMPILERS]
        clean &= all(each is None or each[3] for each in found)

        def cell(index: int, digits: str, found: list = found) -> str:  # type: ignore[type-arg]
            return " / ".join(
                "-" if each is None else format(each[index], digits) for each in found
            )

        busy = " / ".join(
            "-" if each is None else f"{HBM_TB_A_SECOND / each[2]:.2f}" for each in found
        )
        size = tile_bytes(Instance.of(spec, GFX942))
        rows.append(
            f"| {name} | {size} | {cell(0, 'd')} | {cell(1, '.0f')} | {cell(2, '.1f')} | {busy} |"
        )
    return "\n".join(rows) + "\n", clean


def main(arguments: list[str] | None = None) -> int:
    """Run one command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.gfx942_decode", description=__doc__)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    text, clean = table()
    print(text)
    if options.write:
        quoted_text = quoted(Path(DOCUMENT).read_text(encoding="ascii"), {"decode": text})
        write_if_different(DOCUMENT, quoted_text.encode("ascii"))
    return 0 if clean else 1


if __name__ == "__main__":
    raise SystemExit(main())
