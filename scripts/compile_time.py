"""How long a forward kernel takes to emit and compile, and to load once it is in the cache.

    python -m scripts.compile_time [--runs 5] [--head-dim 64,128,256] [--no-causal]

Needs NVRTC and no GPU. Each run has two fresh processes over one cache that was empty:

    cold    nothing is in the cache: emission, then NVRTC; templates are compiled, too
    load    the same in a second process, which finds the binary and the templates
    warm    the load once more in that process

Times are of the wall, the least and the median of the runs, in seconds; `cpu` is the least CPU time
of the same, which other processes disturb less. `import` is what `import fmhagen` and its functions
take, and is in none of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PHASES = ("import", "emit", "NVRTC", "cold", "load: emit", "load: cache", "load", "warm")


def clocked(action: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of the wall and of the CPU that an action takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cpu


def child(head_dim: int, *, causal: bool) -> None:
    """Emit and compile a kernel twice, and print what each step took as JSON."""
    took: dict[str, tuple[float, float]] = {}

    def imports() -> None:
        import fmhagen.api
        import fmhagen.compile  # noqa: F401

    took["import"] = clocked(imports)
    from fmhagen.api import emit
    from fmhagen.compile import compile_source
    from fmhagen.spec import AttentionSpec

    spec = AttentionSpec(head_dim=head_dim, causal=causal)

    def both() -> None:
        compile_source(emit(spec, target="sm90"))

    took["emit"] = clocked(lambda: emit(spec, target="sm90"))
    source = emit(spec, target="sm90")
    took["compile"] = clocked(lambda: compile_source(source))
    took["both"] = clocked(both)
    print(json.dumps(took))


def measured(head_dim: int, *, causal: bool) -> dict[str, tuple[float, float]]:
    """Run a cold and a warm process over an empty cache; return what the phases took."""
    command = [sys.executable, "-m", "scripts.compile_time", "--child", str(head_dim)]
    if not causal:
        command.append("--no-causal")
    with tempfile.TemporaryDirectory(prefix="fmhagen-") as directory:
        environment = {**os.environ, "FMHAGEN_CACHE_DIR": directory}
        root = Path(__file__).parent.parent
        cold, load = (
            json.loads(subprocess.check_output(command, env=environment, cwd=root))
            for _ in range(2)
        )

    def added(took: dict[str, tuple[float, float]]) -> tuple[float, float]:
        return took["emit"][0] + took["compile"][0], took["emit"][1] + took["compile"][1]

    return {
        "import": load["import"],
        "emit": cold["emit"],
        "NVRTC": cold["compile"],
        "cold": added(cold),
        "load: emit": load["emit"],
        "load: cache": load["compile"],
        "load": added(load),
        "warm": load["both"],
    }


def main(arguments: list[str] | None = None) -> int:
    """Print one table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.compile_time", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--head-dim", default="64,128,256")
    parser.add_argument("--no-causal", action="store_true")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        child(options.child, causal=not options.no_causal)
        return 0
    print(f"| head_dim | | {' | '.join(PHASES)} |")
    print("| ---: | --- |" + " ---: |" * len(PHASES))
    for head_dim in map(int, options.head_dim.split(",")):
        runs = [measured(head_dim, causal=not options.no_causal) for _ in range(options.runs)]
        for name, clock, pick in (
            ("least", 0, min),
            ("median", 0, statistics.median),
            ("cpu", 1, min),
        ):
            row = (f"{pick([run[phase][clock] for run in runs]):.3f}" for phase in PHASES)
            print(f"| {head_dim} | {name} | {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
