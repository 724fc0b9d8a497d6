"""How long a forward kernel takes to emit and compile, and to load once it is in the cache.

    python -m scripts.compile_time [--runs 5] [--head-dim 64,128,256] [--no-causal]
    python -m scripts.compile_time --modded [--runs 5] [--head-dim 128]

Needs NVRTC and no GPU. Each run has two fresh processes over one cache that was empty:

    cold    nothing is in the cache: emission, then NVRTC; templates are compiled, too
    load    the same in a second process, which finds the binary and the templates
    warm    the load once more in that process

Times are of the wall, the least and the median of the runs, in seconds; `cpu` is the least CPU time
of the same, which other processes disturb less. `import` is what `import fmhagen` and its functions
take, and is in none of the others.

With --modded: the least CPU time of the compiler for kernels with a mask or a score function,
causal and not, and that as a multiple of the plain kernel's. All take turns in one process.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def modded(head_dim: int, runs: int) -> None:
    """Print one table of kernels with masks and score functions beside the plain one."""
    from fmhagen import AttentionSpec, emit, masks
    from fmhagen.compile import compile_source

    sinks_and_window = "(kv_idx < 4) | (q_idx - kv_idx < 1024)"
    fields: dict[str, dict[str, Any]] = {
        "plain": {},
        "ALiBi": {"alibi": True},
        "soft cap": {"soft_cap": 30.0},
        "soft cap and ALiBi": {"soft_cap": 30.0, "alibi": True},
        "`lambda s, b, h, m, n: s * 0.5 + 0.1 * (m - n)`": {
            "score_mod": lambda s, b, h, m, n: s * 0.5 + 0.1 * (m - n)
        },
        "window of 1024": {"window_left": 1023},
        "documents": {"mask_mod": masks.documents([0, 700, 2048])},
        "sink, 4 sink tokens and a window (`mask_mod`)": {
            "sink": True,
            "mask_mod": sinks_and_window,
        },
    }
    sources = {
        (name, causal): emit(
            AttentionSpec(head_dim=head_dim, causal=causal, **given), target="sm90"
        )
        for name, given in fields.items()
        for causal in (True, False)
    }
    took: dict[tuple[str, bool], list[float]] = {key: [] for key in sources}
    for _ in range(runs):
        for key, source in sources.items():
            took[key].append(clocked(functools.partial(compile_source, source, cache=None))[1])
    print("| kernel | causal | of plain | full | of plain |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name in fields:
        cells: list[str] = []
        for causal in (True, False):
            least = min(took[name, causal])
            cells += [f"{least:.2f}", f"{least / min(took['plain', causal]):.2f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Print one table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.compile_time", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--head-dim", default="64,128,256")
    parser.add_argument("--no-causal", action="store_true")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--modded", action="store_true")
    options = parser.parse_args(arguments)
    if options.modded:
        for head_dim in map(int, options.head_dim.split(",")):
            modded(head_dim, options.runs)
        return 0
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
