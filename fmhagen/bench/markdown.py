"""Markdown: the measured tables of docs/performance.md, written from reports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fmhagen.bench.contest import OURS, Result
from fmhagen.bench.report import (
    Row,
    figure,
    geometric_mean,
    means,
    peer_names,
    problems,
    rows,
    under,
    unit_of,
    variant_names,
)
from fmhagen.bench.run import Report
from fmhagen.bench.watch import BenchError


def markdown(report: Report) -> str:
    """Return the tables of a report, below one line that says where and how it was measured."""
    section = report.settings.get("section")
    if report.settings.get("on_host"):
        body = _host(report)
    elif section == "ablation":
        body = _ablation(report)
    else:
        body = _forward(report)
    return f"{_provenance(report)}\n\n{body}\n"


def write_section(path: Path, section: str, text: str) -> None:
    """Replace what stands between a document's marks of a section.

    Raises:
        BenchError: the document has no such marks.
    """
    document = path.read_text(encoding="utf-8")
    pattern = rf"(<!-- bench: {re.escape(section)} -->\n).*?(<!-- end of bench -->)"
    written, count = re.subn(
        pattern, lambda found: found[1] + text + found[2], document, count=1, flags=re.DOTALL
    )
    if not count:
        marks = f"<!-- bench: {section} --> and <!-- end of bench -->"
        raise BenchError(f"{path}: has no lines {marks}, each alone, to write between")
    path.write_text(written, encoding="utf-8")


def _provenance(report: Report) -> str:
    device = report.device
    parts = [
        str(device.get("name", "unknown device")),
        report.date,
        f"commit {report.commit}" if report.commit else f"fmhagen {report.version}",
        f"PyTorch {device.get('torch')}, CUDA {device.get('cuda')}, cuDNN {device.get('cudnn')}",
    ]
    if report.cublas_tflops:
        parts.append(f"cuBLAS 8192^3 in the same run: {report.cublas_tflops:.0f} TFLOP/s")
    versions = [str(p["version"]) for n, p in report.peers.items() if p.get("version")]
    if versions:
        parts.append("peers: " + ", ".join(dict.fromkeys(versions)))
    return "; ".join(parts) + f".\n\n    {report.command}"


def table(header: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table; every column but the first is right-aligned."""
    rule = ("---", *("---:" for _ in header[1:]))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *lines))


def _forward(report: Report) -> str:
    found, peers = rows(report), peer_names(report)
    columns = (OURS, *variant_names(report), *peers)
    header = (
        unit_of(found),
        *columns,
        "best peer",
        "ratio",
        "spread",
        "of limit",
        "MHz",
        "RMS error",
    )
    lines = [
        (
            row.result.workload.name,
            *(figure(row.result, name) for name in columns),
            row.best.name if row.best else "-",
            f"{row.ratio:.3f}" if row.ratio else "-",
            f"{row.ours.spread:.1%}" if row.ours else "-",
            f"{row.share:.0%}" if row.share else "-",
            _mean(row.ours.clock_mhz) if row.ours else "-",
            f"{row.ours.error_rms:.1e}" if row.ours and row.ours.error_rms else "-",
        )
        for row in found
    ]
    parts = [table(header, lines), _means(found)]
    low = under(found, 1.02)
    if low:
        listed = [f"- {row.result.workload.name}: {row.ratio:.3f}" for row in low]
        parts.append("Under 1.02:\n\n" + "\n".join(listed))
    parts.append(_problems(report))
    return "\n\n".join(filter(None, parts))


def _means(found: tuple[Row, ...]) -> str:
    lines = [
        (mean.title, str(mean.count), f"{mean.ratio:.3f}", f"{mean.lowest:.3f}")
        for mean in means(found)
    ]
    if not lines:
        return ""
    return table(("geometric mean of ratios", "workloads", "mean", "lowest"), lines)


def _ablation(report: Report) -> str:
    results = report.results
    header = ("time relative to the default", *(r.workload.name for r in results), "mean")
    lines: list[tuple[str, ...]] = [
        (f"default, {unit_of(rows(report))}", *(figure(result, OURS) for result in results), "-"),
    ]
    for name in variant_names(report):
        ratios = [_slowdown(result, name) for result in results]
        mean = geometric_mean(ratio for ratio in ratios if ratio)
        cells = (
            f"{ratio:.3f}" if ratio else figure(result, name)
            for ratio, result in zip(ratios, results, strict=True)
        )
        lines.append((name.removeprefix(OURS + " "), *cells, f"{mean:.3f}" if mean else "-"))
    text = table(header, lines)
    why = "Above 1: slower than the default schedule, so the optimisation earns that much."
    return "\n\n".join(filter(None, (text, why, _problems(report))))


def _host(report: Report) -> str:
    header = ("host time of a warm call, us", *(r.workload.name for r in report.results))
    names = (OURS, *variant_names(report), *peer_names(report))
    lines = []
    for name in names:
        lines.append((name, *(figure(result, name) for result in report.results)))
    return "\n\n".join(filter(None, (table(header, lines), _problems(report))))


def _slowdown(result: Result, name: str) -> float | None:
    default, other = result.find(OURS), result.find(name)
    return other.median_ms / default.median_ms if default and other else None


def _mean(values: tuple[float, ...]) -> str:
    return f"{sum(values) / len(values):.0f}" if values else "-"


def _problems(report: Report) -> str:
    found = problems(report)
    return "Without a time:\n\n" + "\n".join(f"- {line}" for line in found) if found else ""


def summary(result: Result, row: Row) -> str:
    """Return one line on a workload that is done."""
    parts = [result.workload.name + ":"]
    for outcome in result.outcomes:
        shown = figure(result, outcome.name)
        parts.append(f"{outcome.name} {shown if outcome.ok else shown.upper()}")
    if row.ratio:
        parts.append(f"ratio {row.ratio:.3f}")
    return "  ".join(parts)
