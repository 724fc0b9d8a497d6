"""`bench`: kernels and their peers, timed side by side."""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fmhagen.bench.contest import OURS, Entry, Result
from fmhagen.bench.markdown import markdown, summary, write_section
from fmhagen.bench.peers import PEERS, find_peers
from fmhagen.bench.plot import plot as draw
from fmhagen.bench.report import (
    failed,
    figure,
    means,
    peer_names,
    problems,
    rows,
    under,
    unit_of,
    variant_names,
)
from fmhagen.bench.run import Report, Settings, entries_for
from fmhagen.bench.run import run as run_bench
from fmhagen.bench.selection import resized, select, words
from fmhagen.bench.variants import ablations, variant
from fmhagen.bench.watch import judge
from fmhagen.bench.workloads import HIDDEN, SUITES, TOKENS, Workload
from fmhagen.cli.command import command
from fmhagen.cli.output import EXIT_FAILED, note, table, write_json, write_table, write_text
from fmhagen.committed.inventory import write_if_different
from fmhagen.targets import TARGETS

_SHAPES = "Workloads: a suite, narrowed by these, or a grid of them"
_PROTOCOL = "Protocol"
_OUTPUT = "Output"
_PEERS = ",".join(peer.name for peer in PEERS)


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    command(app, "bench")(bench)


def _option(panel: str, flag: str, metavar: str, text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        flag, metavar=metavar, help=text, rich_help_panel=panel, show_default=False
    )
    return option


def bench(
    *,
    suite_name: Annotated[
        str | None, _option(_SHAPES, "--suite", "|".join(SUITES), "Which workloads; quick if none.")
    ] = None,
    head_dim: Annotated[str, _option(_SHAPES, "--head-dim", "N,N", "Depths of Q, K and V.")] = "",
    mask: Annotated[str, _option(_SHAPES, "--mask", "full,causal", "Masks.")] = "",
    seqlen: Annotated[str, _option(_SHAPES, "--seqlen", "N,N", "Lengths of Q and K.")] = "",
    dtype: Annotated[str, _option(_SHAPES, "--dtype", "bf16|fp16", "Type of all.")] = "",
    batch: Annotated[int, _option(_SHAPES, "--batch", "N", "Sequences; else --tokens.")] = 0,
    heads: Annotated[int, _option(_SHAPES, "--heads", "N", "Query heads; else --hidden.")] = 0,
    heads_kv: Annotated[int, _option(_SHAPES, "--heads-kv", "N", "Key and value heads.")] = 0,
    seqlen_k: Annotated[int, _option(_SHAPES, "--seqlen-k", "N", "Keys, if not --seqlen.")] = 0,
    tokens: Annotated[
        int, _option(_SHAPES, "--tokens", "N", f"Batch x length of a grid; {TOKENS}.")
    ] = TOKENS,
    hidden: Annotated[
        int, _option(_SHAPES, "--hidden", "N", f"Heads x depth of a grid; {HIDDEN}.")
    ] = HIDDEN,
    peers: Annotated[str, _option(_PROTOCOL, "--peers", _PEERS, "Who else is timed.")] = "",
    variants: Annotated[
        list[str] | None,
        _option(_PROTOCOL, "--variant", "FIELD=V,..", "Also fmhagen with a changed schedule."),
    ] = None,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Also every optimisation off.", show_default=False)
    ] = False,
    on_host: Annotated[
        bool, typer.Option("--host", help="Time the host's part of a call.", show_default=False)
    ] = False,
    rounds: Annotated[int, _option(_PROTOCOL, "--rounds", "N", "Samples of each; 5.")] = 5,
    window_ms: Annotated[
        float, _option(_PROTOCOL, "--window-ms", "X", "Device time of a sample, about; 30.")
    ] = 30.0,
    seed: Annotated[int, _option(_PROTOCOL, "--seed", "N", "Of inputs and orders; 0.")] = 0,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Compare with float64 before timing.")
    ] = True,
    max_seconds: Annotated[
        float, _option(_PROTOCOL, "--max-seconds", "X", "Start no workload after so long.")
    ] = float("inf"),
    watchdog: Annotated[
        float,
        _option(_PROTOCOL, "--watchdog", "X", "End an entry silent for so long; 120. 0: no child."),
    ] = 120.0,
    threshold: Annotated[
        float, _option(_OUTPUT, "--threshold", "X", "List workloads under this ratio; 1.02.")
    ] = 1.02,
    json_file: Annotated[
        Path | None, _option(_OUTPUT, "--json", "FILE", "Write all that was found; - prints it.")
    ] = None,
    commit: Annotated[
        str, _option(_OUTPUT, "--commit", "TEXT", "The commit to state, where git is not here.")
    ] = "",
    plot: Annotated[
        Path | None, _option(_OUTPUT, "--plot", "FILE.png", "Draw TFLOP/s over length.")
    ] = None,
    report_file: Annotated[
        Path | None, _option(_OUTPUT, "--report", "FILE.json", "Show a report; time nothing.")
    ] = None,
    document: Annotated[
        Path | None,
        _option(_OUTPUT, "--markdown", "FILE.md", "Write the tables into a document's section."),
    ] = None,
) -> None:
    """Time kernels and their peers on a GPU, on the same tensors, in the same shuffled rounds.

    Device time is of CUDA-graph replays over three rotating sets of N(0, 1) inputs, each after an
    equal warm-up; the median of the rounds counts. Every result is compared with float64 first.
    Entries run in a child process: one that hangs or crashes is named and left out. Peers that
    are not installed are named with what to install. Exits with 1 if a kernel of fmhagen was
    wrong, crashed or hung.

    \b
    Examples:
      fmhagen bench --suite forward --peers fa3,cudnn --json forward.json --plot forward.png
      fmhagen bench --head-dim 128 --mask causal --seqlen 4096,8192 --peers fa3
      fmhagen bench --heads 32 --heads-kv 8 --batch 2 --seqlen 8192 --mask causal
      fmhagen bench --head-dim 128 --seqlen 4096 --variant ping_pong=false --variant stages=3
      fmhagen bench --suite quick --ablate --json ablation.json
      fmhagen bench --suite host --peers fa3,cudnn
      fmhagen bench --report forward.json --markdown docs/performance.md
    """
    if report_file is not None:
        report = Report.from_dict(json.loads(report_file.read_text(encoding="utf-8")))
    else:
        workloads = select(suite_name, head_dim, mask, seqlen, dtype, tokens, hidden)
        workloads = resized(workloads, batch, heads, heads_kv, seqlen_k)
        on_host = on_host or suite_name == "host"
        section = "ablation" if ablate else suite_name or ("host" if on_host else "custom")
        settings = Settings(
            rounds=rounds,
            window_ms=window_ms,
            check=check,
            seed=seed,
            section=section,
            on_host=on_host,
            max_seconds=max_seconds,
        )
        names = words(peers)
        find_peers(names)
        entries = _entries(names, tuple(variants or ()), ablate=ablate, on_host=on_host)
        for workload in workloads:
            entries(workload)  # refuse a wrong variant before a device is touched
        report = Report(command=_command_line(sys.argv[1:]))
        report.commit = commit or report.commit
        to_file = None if json_file is None or str(json_file) == "-" else json_file

        def done(result: Result | None) -> None:
            if result is not None:
                (row,) = rows(dataclasses.replace(report, results=[result]))
                note(summary(result, row))
            if to_file is not None:
                write_if_different(to_file, _json(report))

        note(f"{len(workloads)} workloads, {len(entries(workloads[0]))} entries each")
        with judge(watchdog) as held:
            run_bench(workloads, entries, held, settings, report, done=done)
        if to_file is not None:
            write_if_different(to_file, _json(report))
    if str(json_file) == "-":
        write_json(report.to_dict())
    elif report.settings.get("section") == "ablation":
        write_text(markdown(report))
    else:
        _print(report, threshold)
    if document is not None:
        write_section(document, str(report.settings["section"]), markdown(report))
    if plot is not None:
        draw(report, plot)
    if failed(report):
        raise typer.Exit(EXIT_FAILED)


def _entries(
    peers: tuple[str, ...], variants: tuple[str, ...], *, ablate: bool, on_host: bool
) -> Callable[[Workload], tuple[Entry, ...]]:
    target = TARGETS[0]  # the one that has a device under PyTorch with CUDA

    @functools.cache
    def entries(workload: Workload) -> tuple[Entry, ...]:
        more = [variant(text, workload, target) for text in variants]
        if ablate:
            more.extend(ablations(workload, target))
        return entries_for(peers, more, on_host=on_host)

    return entries


def _command_line(arguments: list[str]) -> str:
    """Return the command without the folders of its files and without `--commit`."""
    words_left = iter(arguments)
    kept = ["fmhagen"]
    for word in words_left:
        if word == "--commit":
            next(words_left, None)
        elif not word.startswith("--commit="):
            kept.append(Path(word).name if "/" in word and not word.startswith("-") else word)
    return shlex.join(kept)


def _json(report: Report) -> str:
    return json.dumps(report.to_dict(), indent=1) + "\n"


def _print(report: Report, threshold: float) -> None:
    ours = (OURS, *variant_names(report))
    names = (*ours, *peer_names(report))
    on_host = bool(report.settings.get("on_host"))
    numbers = (*names, "ratio", "spread", "of limit", "MHz", "W")
    shown = table("workload", *names, "best peer", *numbers[len(names) :], right=numbers)
    found = rows(report)
    for row in found:
        mine = row.ours
        cells = [figure(row.result, name) for name in names]
        shown.add_row(
            row.result.workload.name,
            *cells,
            row.best.name if row.best else "-",
            f"{row.ratio:.3f}" if row.ratio else "-",
            f"{mine.spread:.1%}" if mine else "-",
            f"{row.share:.0%}" if row.share and not on_host else "-",
            _mean(mine.clock_mhz) if mine else "-",
            _mean(mine.watts) if mine else "-",
        )
    write_table(shown)
    write_text(f"{unit_of(found, on_host=on_host)}, median")
    if report.cublas_tflops:
        write_text(f"cuBLAS 8192^3 bf16 in this run: {report.cublas_tflops:.0f} TFLOP/s")
    for mean in means(found):
        write_text(
            f"geometric mean of the ratio to the best peer, {mean.title}: {mean.ratio:.3f}"
            f" over {mean.count}, lowest {mean.lowest:.3f}"
        )
    for row in under(found, threshold):
        write_text(f"under {threshold:g}: {row.result.workload.name}: {row.ratio:.3f}")
    for line in problems(report):
        write_text(line)


def _mean(values: tuple[float, ...]) -> str:
    return f"{sum(values) / len(values):.0f}" if values else "-"
