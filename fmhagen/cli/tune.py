"""`tune`: the search for schedules on a device."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fmhagen.bench.hints import hints_of
from fmhagen.bench.selection import resized, words
from fmhagen.bench.watch import judge
from fmhagen.bench.workloads import DECODE_SHAPES, HIDDEN, TOKENS, Workload, cached, square
from fmhagen.cli.command import command
from fmhagen.cli.output import note, table, write_json, write_table, write_text
from fmhagen.cli.request import Request
from fmhagen.committed.inventory import write_if_different
from fmhagen.errors import InvalidSpecError
from fmhagen.schedules import merged, read_rows, shipped_path, table_text
from fmhagen.tune.candidates import FULL, Sizes
from fmhagen.tune.prebuild import default_jobs, prebuild
from fmhagen.tune.records import Findings, Settings
from fmhagen.tune.rows import findings_data, rows_of
from fmhagen.tune.search import Search
from fmhagen.tune.store import Store

_WORK, _SEARCH, _OUTPUT = "Workloads: what it must be quick at", "Search", "Output"
_SHOWN = 12  # scores in the table
CACHE_TOKENS = 1 << 18  # keys of all sequences together, where a length is given


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    command(app, "tune", default_target="sm90")(tune)


def _option(panel: str, flag: str, metavar: str, text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        flag, metavar=metavar, help=text, rich_help_panel=panel, show_default=False
    )
    return option


def tune(
    request: Request,
    *,
    seqlen: Annotated[
        str,
        _option(_WORK, "--seqlen", "N,N", "Lengths; 1024,4096,16384, or a decoder's of a cache."),
    ] = "",
    seqlen_q: Annotated[
        int, _option(_WORK, "--seqlen-q", "N", "New queries a sequence over a cache; 1.")
    ] = 1,
    batch: Annotated[int, _option(_WORK, "--batch", "N", "Sequences; else --tokens.")] = 0,
    heads: Annotated[int, _option(_WORK, "--heads", "N", "Query heads; else --hidden.")] = 0,
    heads_kv: Annotated[int, _option(_WORK, "--heads-kv", "N", "Key and value heads.")] = 0,
    tokens: Annotated[
        int,
        _option(_WORK, "--tokens", "N", f"Batch x length; {TOKENS}, of a cache {CACHE_TOKENS}."),
    ] = 0,
    hidden: Annotated[int, _option(_WORK, "--hidden", "N", f"Heads x depth; {HIDDEN}.")] = HIDDEN,
    seconds: Annotated[float, _option(_SEARCH, "--seconds", "X", "The budget; 300.")] = 300.0,
    first: Annotated[
        int, _option(_SEARCH, "--first", "N", "Candidates of the first generation; 48.")
    ] = 48,
    full: Annotated[
        bool, typer.Option("--full", help="Draw from all that the lowering takes.")
    ] = False,
    jobs: Annotated[
        int, _option(_SEARCH, "--jobs", "N", "Compilations at once; one for each core.")
    ] = 0,
    seed: Annotated[int, _option(_SEARCH, "--seed", "N", "Of the order of candidates; 0.")] = 0,
    watchdog: Annotated[
        float, _option(_SEARCH, "--watchdog", "X", "End a candidate silent for so long; 60.")
    ] = 60.0,
    resume: Annotated[
        Path | None, _option(_OUTPUT, "--resume", "FILE", "Go on from, and keep, measurements.")
    ] = None,
    json_file: Annotated[
        Path | None, _option(_OUTPUT, "--json", "FILE", "Write what was found; - prints it.")
    ] = None,
    write_shipped: Annotated[
        bool, typer.Option("--write-table", help="Put the winners into the table of schedules.")
    ] = False,
    table_file: Annotated[
        Path | None, _option(_OUTPUT, "--table", "FILE.toml", "Another table than the shipped one.")
    ] = None,
) -> None:
    """Search for the quickest schedule of a spec on the GPU that is here.

    Candidates come from the limits of the lowering, are compiled in parallel on the CPU, and are
    dropped if they spill. Each is checked against float64 and timed in shuffled rounds beside what
    the rules choose: a quick look at all, a careful one at the better third, then the neighbours
    of the leaders, until the budget ends. Schedule flags fix a field of every candidate.
    With --write-table the winner goes into the table that `select` prefers to its rules: one row
    for any length, and one for shorter sequences if that wins two percent there.
    Over a key/value cache (--kv-cache, --page-size) the workloads are one new query over caches of
    heads 32/8, from one sequence of 1024 keys to 256 of 2048, and rows are for such specs alone.
    With --seqlen-q of many rows it is the loop for them that is searched, with heads that share
    tiles and keys cut into parts where the rules say so of the largest workload.

    \b
    Examples:
      fmhagen tune --head-dim 128 --causal --seconds 300 --resume d128c.json
      fmhagen tune --head-dim 64 --seqlen 1024,16384 --write-table
      fmhagen tune --head-dim 128 --consumers 3 --seconds 60 --json -
      fmhagen tune --head-dim 128 --heads 32 --heads-kv 8 --batch 2 --seqlen 8192
      fmhagen tune --page-size 16 --causal --seconds 300 --write-table
      fmhagen tune --page-size 16 --kv-dtype e4m3 --heads 8 --heads-kv 1 --seqlen 8192,131072
      fmhagen tune --page-size 16 --causal --seqlen-q 64 --batch 1 --seqlen 8192,32768
    """
    if seconds <= 0:
        raise InvalidSpecError("seconds", seconds, "must be above 0")
    (target,) = request.targets("sm90")
    if request.spec.kv_cache:
        workloads = _cache_workloads(request, seqlen, tokens, batch, heads, heads_kv, seqlen_q)
    else:
        workloads = _workloads(request, seqlen, tokens, hidden, batch, heads, heads_kv)
    settings = Settings(
        seconds=seconds,
        first=first,
        space=FULL if full else None,
        fixed=request.overrides,
        seed=seed,
    )
    store = Store.open(resume)
    build = functools.partial(
        prebuild, request.spec, target=target.name, jobs=jobs or default_jobs()
    )
    with judge(watchdog) as holder, _progress() as progress:
        task = progress.add_task("opening the device", total=seconds)

        def tell(text: str) -> None:
            progress.update(task, description=text[:70], completed=progress.tasks[task].elapsed)
            if not progress.console.is_terminal or text.startswith(("out", "generation")):
                progress.console.print(text, highlight=False, soft_wrap=True)

        device = str(holder.ask("facts")["name"])
        findings = Search(
            request.spec,
            workloads,
            target,
            holder=holder,
            build=build,
            device=device,
            store=store,
            settings=settings,
            hints=_hints(workloads),
            tell=tell,
        ).run()
    data = findings_data(workloads, findings)
    if str(json_file) == "-":
        write_json(data)
    else:
        _print(workloads, findings)
        if json_file is not None:
            write_if_different(json_file, json.dumps(data, indent=1) + "\n")
    if write_shipped or table_file is not None:
        path = table_file or shipped_path()
        new = rows_of(request.spec, target.name, workloads, findings, device=device)
        old = read_rows(path) if path.exists() else ()
        write_if_different(path, table_text(merged(old, new)))
        note(f"{path}: {len(new)} row{'s' if len(new) > 1 else ''} written")


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _workloads(
    request: Request, seqlen: str, tokens: int, hidden: int, batch: int, heads: int, heads_kv: int
) -> tuple[Workload, ...]:
    made = tuple(
        square(request.spec, length, tokens=tokens or TOKENS, hidden=hidden)
        for length in _lengths(seqlen or "1024,4096,16384")
    )
    return resized(made, batch, heads, heads_kv, 0)


def _cache_workloads(
    request: Request,
    seqlen: str,
    tokens: int,
    batch: int,
    heads: int,
    heads_kv: int,
    seqlen_q: int,
) -> tuple[Workload, ...]:
    shapes: tuple[tuple[int, int], ...] = DECODE_SHAPES
    if seqlen or tokens:
        every = tokens or CACHE_TOKENS
        lengths = _lengths(seqlen) if seqlen else sorted({length for _, length in DECODE_SHAPES})
        shapes = tuple((max(1, every // length), length) for length in lengths)
    made = cached(request.spec, shapes, seqlen_q)
    return resized(made, batch, heads, heads_kv, 0)


def _hints(workloads: tuple[Workload, ...]) -> Sizes:
    """Return what the rules are told: over a cache the query rows, and the most heads of a call."""
    if not workloads[0].spec.kv_cache:
        return Sizes()
    found = hints_of(max(workloads, key=lambda workload: workload.batch * workload.heads))
    return Sizes(
        query_hint=found["query_hint"],
        group_hint=found["group_hint"],
        heads_hint=found["heads_hint"],
    )


def _lengths(seqlen: str) -> tuple[int, ...]:
    try:
        lengths = tuple(dict.fromkeys(int(word) for word in words(seqlen)))
    except ValueError:
        limit = "must be whole numbers with commas between"
        raise InvalidSpecError("seqlen", seqlen, limit) from None
    if not lengths:
        raise InvalidSpecError("seqlen", seqlen, "names no length")
    if min(lengths) < 1:
        raise InvalidSpecError("seqlen", seqlen, "must be at least 1")
    return lengths


def _print(workloads: tuple[Workload, ...], findings: Findings) -> None:
    lengths = [
        f"b{w.batch} s{w.seqlen_k}" if w.spec.kv_cache else f"s{w.seqlen_k}" for w in workloads
    ]
    right = ("mean", *lengths)
    shown = table("mean", *lengths, "differs from what the rules choose in", right=right)
    for score in findings.scores[:_SHOWN]:
        shown.add_row(
            f"{score.mean(workloads):.3f}",
            *(_ratio(score.ratio(workload)) for workload in workloads),
            _difference(score.built.schedule.to_dict(defaults=True), findings),
        )
    write_table(shown)
    wrong = sum(1 for s in findings.scores if any(m.status != "ok" for m in s.measured.values()))
    write_text(
        f"{len(findings.scores)} timed, {len(findings.refused)} refused by the compiler,"
        f" {wrong} out on the device, {findings.seconds:.0f} s;"
        f" {'the budget ended it' if findings.is_exhausted else 'nothing is left to try'}"
    )
    write_text(f"best: {findings.best.built.schedule!r}")
    for name, score in findings.by_workload.items():
        if score is not findings.best:
            write_text(f"best on {name}: {score.built.schedule!r}")


def _ratio(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio else "-"


def _difference(schedule: dict[str, Any], findings: Findings) -> str:
    default = findings.reference.built.schedule.to_dict(defaults=True)
    changed = [f"{name}={schedule[name]}" for name in default if schedule[name] != default[name]]
    return ", ".join(changed) or "(the same)"
