"""Launch kernels over drawn shapes, many thousand times, and check samples of the results.

    python benchmarks/stress.py --launches 20000 --head-dims 64,128,256 --watchdog 60
    python benchmarks/stress.py --variant ping_pong=false --causal-only

Each case draws a shape, launches the kernel on it again and again without a pause, and compares
the first result with float64 and the last with the first, bit for bit. A child process does the
work: if it says nothing for too long, it is ended, the case is named, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from typing import Any

from fmhagen.bench.contest import Entry
from fmhagen.bench.device import Inputs, TorchDevice
from fmhagen.bench.measure import ERROR_LIMIT
from fmhagen.bench.variants import variant
from fmhagen.bench.workloads import Workload
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS

LENGTHS = (1, 2, 15, 64, 65, 127, 128, 129, 200, 255, 257, 333, 512, 777, 1000, 1024, 2048, 3333)
MOST_SCORES = 2**28  # of one launch, so that a case stays short


def draw(number: int, options: argparse.Namespace) -> Workload:
    """Return the workload of one case."""
    drawn = random.Random(f"{options.seed} {number}")
    while True:
        heads_kv = drawn.choice((1, 2, 3, 8))
        heads = heads_kv * drawn.choice((1, 1, 2, 4, 8))
        causal = True if options.causal_only else drawn.random() < 0.5
        seqlen_q = drawn.choice(LENGTHS)
        workload = Workload(
            spec=AttentionSpec.from_dict(
                {
                    "dtype": drawn.choice(("bf16", "fp16")),
                    "head_dim": drawn.choice(options.head_dims),
                    "causal": causal,
                }
            ),
            batch=drawn.choice((1, 1, 2, 3, 5)),
            heads=heads,
            heads_kv=heads_kv,
            seqlen_q=seqlen_q,
            seqlen_k=drawn.choice((seqlen_q, seqlen_q, drawn.choice(LENGTHS))),
        )
        if workload.batch * heads * workload.seqlen_q * workload.seqlen_k <= MOST_SCORES:
            return workload


def run_case(device: Any, workload: Workload, options: argparse.Namespace) -> str | None:
    """Launch one case; return what is wrong, or None."""
    from fmhagen.api import compile_kernel

    schedule = None
    if options.variant:
        entry: Entry = variant(options.variant, workload, TARGETS[0])
        schedule = entry.schedule
    kernel = compile_kernel(workload.spec, device="cuda", schedule=schedule)
    inputs: Inputs = device.inputs(workload, sets=1, seed=options.seed)[0]
    first, last = (device.new_output(workload, inputs.q) for _ in range(2))
    first.fill_(float("nan"))
    kernel(*inputs, out=first)
    for _ in range(options.repeats - 1):
        kernel(*inputs, out=last)
    if options.repeats > 1 and not device.same_bits(first, last):
        return "O changed between launches"
    reference = device.reference(workload, inputs)
    difference = first.double() - reference
    limit = ERROR_LIMIT[workload.spec.dtype]
    # NOTE: rows that see no key are 0 in both, and a case of such rows alone has no norm.
    norm = float(reference.norm())
    error = float(difference.norm()) / norm if norm else float(difference.norm())
    return None if error <= limit else f"RMS error {error:.2e}, more than {limit:.0e}"


def work(options: argparse.Namespace) -> int:
    """Run the cases in this process, a JSON line each."""
    device = TorchDevice()
    for number in range(options.first, options.cases):
        workload = draw(number, options)
        print(json.dumps({"start": number, "name": workload.name}), flush=True)
        problem = run_case(device, workload, options)
        print(json.dumps({"end": number, "problem": problem}), flush=True)
    return 0


def watch(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Run a child process that does the cases under a watchdog; return the exit status."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines: queue.Queue[str | None] = queue.Queue()
    pump = threading.Thread(target=_pump, args=(child, lines), daemon=True)
    pump.start()
    try:
        return _follow(options, child, lines)
    finally:
        child.kill()
        child.wait(timeout=20)
        pump.join(timeout=5)
        if child.stdout is not None:
            child.stdout.close()


def _follow(
    options: argparse.Namespace, child: subprocess.Popen[str], lines: queue.Queue[str | None]
) -> int:
    started, bad, launches, told = time.monotonic(), 0, 0, 0
    name = "start"

    def tell(*words: str) -> None:
        seconds = time.monotonic() - started
        print(f"{launches} launches, {bad} cases wrong, {seconds:.0f} s", *words, flush=True)

    while True:
        try:
            line = lines.get(timeout=options.watchdog)
        except queue.Empty:
            tell(f"HUNG for {options.watchdog:g} s: {name}")
            return 1
        if line is None:
            status = child.wait()
            tell(f"CRASHED with status {status}: {name}" if status else "all done")
            return 1 if bad or status else 0
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        if "start" in event:
            name = f"case {event['start']}: {event['name']}"
            continue
        launches += options.repeats
        if event["problem"]:
            bad += 1
            tell(f"WRONG: {name}: {event['problem']}")
        if launches - told >= options.launches // 10:
            told = launches
            tell()
        if options.max_seconds and time.monotonic() - started > options.max_seconds:
            tell(f"stopped as asked; go on with --first {event['end'] + 1}")
            return 1 if bad else 0


def _pump(child: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put(None)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--launches", type=int, default=20000)
    parser.add_argument("--repeats", type=int, default=50, help="launches of one case")
    parser.add_argument("--head-dims", default="64,128")
    parser.add_argument("--variant", default="", help="FIELD=VALUE,.. of the schedule")
    parser.add_argument("--causal-only", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="first case, to go on from")
    parser.add_argument("--watchdog", type=float, default=60.0)
    parser.add_argument("--max-seconds", type=float, default=0.0)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.head_dims = [int(word) for word in options.head_dims.split(",")]
    options.cases = options.first + -(-options.launches // options.repeats)
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if options.work:
        return work(options)
    return watch(options, (sys.executable, "-u", os.path.abspath(__file__), *arguments, "--work"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
