"""Plot: TFLOP/s over sequence length, a panel for each head dim and mask, peers side by side."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from fmhagen.bench.contest import OURS, Result
from fmhagen.bench.report import peer_names, variant_names
from fmhagen.bench.run import Report
from fmhagen.bench.watch import BenchError

COLOURS = ("#c1121f", "#003049", "#669bbc", "#8d99ae", "#d4a373", "#588157", "#9d4edd", "#000000")
BAR_SHARE = 0.84


def plot(report: Report, path: Path) -> None:
    """Write the picture of a report; the file's suffix gives its format.

    Raises:
        BenchError: matplotlib is not installed, or there is nothing to draw.
    """
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError as error:
        raise BenchError(
            "a plot needs matplotlib; install: pip install matplotlib, then draw it from the"
            " JSON: fmhagen bench --report FILE.json --plot FILE.png"
        ) from error
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    panels = _panels(report)
    if not panels:
        raise BenchError("there is nothing to draw: no result has a time")
    depths = sorted({depth for depth, _ in panels})
    masks = [mask for mask in ("full", "causal") if any(m == mask for _, m in panels)]
    names = (OURS, *variant_names(report), *peer_names(report))
    figure, axes = pyplot.subplots(
        len(depths),
        len(masks),
        figsize=(6.4 * len(masks), 3.1 * len(depths)),
        squeeze=False,
        constrained_layout=True,
    )
    for y, depth in enumerate(depths):
        for x, mask in enumerate(masks):
            _panel(axes[y][x], panels.get((depth, mask), []), names, f"head_dim {depth}, {mask}")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6))
    figure.suptitle(_title(report))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _title(report: Report) -> str:
    device = report.device.get("name", "")
    kinds = sorted({str(result.workload.spec.dtype) for result in report.results})
    return f"Attention forward, {', '.join(kinds)}, {device}, {report.date} (TFLOP/s)"


def _panels(report: Report) -> dict[tuple[str, str], list[Result]]:
    panels: dict[tuple[str, str], list[Result]] = {}
    for result in report.results:
        spec = result.workload.spec
        depth = f"{spec.d:3d}" if spec.d == spec.dv else f"{spec.d:3d}/{spec.dv}"
        if any(outcome.ok for outcome in result.outcomes):
            panels.setdefault((depth, result.workload.mask), []).append(result)
    return panels


def _panel(axes: Any, results: list[Result], names: tuple[str, ...], title: str) -> None:
    results = sorted(results, key=lambda result: result.workload.seqlen_k)
    width = BAR_SHARE / len(names)
    for number, name in enumerate(names):
        found = [result.find(name) for result in results]
        heights = [
            outcome.tflops(result.workload) if outcome else 0.0
            for result, outcome in zip(results, found, strict=True)
        ]
        places = [i + (number - (len(names) - 1) / 2) * width for i in range(len(results))]
        colour = COLOURS[number % len(COLOURS)]
        bars = axes.bar(places, heights, width, label=name, color=colour)
        labels = [f"{height:.0f}" if height else "" for height in heights]
        axes.bar_label(bars, labels=labels, fontsize=5, padding=1)
    axes.set_xticks(range(len(results)), [_length(result) for result in results])
    axes.set_title(title, fontsize=10)
    axes.set_ylabel("TFLOP/s", fontsize=8)
    axes.set_xlabel("sequence length", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _length(result: Result) -> str:
    length = result.workload.seqlen_k
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)
