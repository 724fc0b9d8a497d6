"""`demo`: the whole pipeline on one screen."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fmhagen.checking.verification import DEVICES
from fmhagen.cli.command import command
from fmhagen.cli.options import Json
from fmhagen.cli.output import EXIT_FAILED, write_json, write_records, write_text
from fmhagen.demonstration import CASE, SPEC, Row, demonstrate


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    command(app, "demo")(demo)


def demo(
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Where the sources go. [dim]\\[default: a new temporary directory][/dim]",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="|".join(DEVICES), help="Where to run.")
    ] = "auto",
    json: Json = False,
) -> None:
    """Take one attention description to both targets: emit, compile, run, compare with float64.

    Causal attention with grouped heads and sizes that fit no tile, in bf16 and fp16. Real
    compilers make the binaries; a kernel runs on its GPU if there is one, else the same file runs
    on the emulator. Exits with 0 only if every result is right and nothing spills.

    \b
    Examples:
      fmhagen demo
      fmhagen demo -o kernels      then read kernels/*.cu and *.hip
      fmhagen demo --device emulator --json
    """
    directory = output or Path(tempfile.mkdtemp(prefix="fmhagen-demo-"))
    with Console(stderr=True).status("starting") as status:
        rows = list(demonstrate(directory, device=device, tell=status.update))
    passed = all(row.passed for row in rows)
    if json:
        write_json({"passed": passed, "spec": SPEC.to_dict(), "rows": [r.to_dict() for r in rows]})
    else:
        _print(rows, directory, passed=passed)
    if not passed:
        raise typer.Exit(EXIT_FAILED)


def _print(rows: list[Row], directory: Path, *, passed: bool) -> None:
    write_text(
        f"{SPEC!r}: B={CASE.batch} H={CASE.heads} Hk={CASE.heads_kv} Sq={CASE.seqlen_q}"
        f" Sk={CASE.seqlen_k}\n\n"
    )
    write_records([_cells(row) for row in rows], right=_NUMBERS)
    write_text("\nO error: largest |O - float64| relative to max |O|. LSE error: relative, from 1.")
    write_text(f"sources: {directory}")
    wrong = [row.source.name for row in rows if not row.passed]
    write_text("all agree with float64" if passed else f"WRONG: {', '.join(wrong)}")


_NUMBERS = ("registers", "spills", "shared", "O error", "LSE error", "time")


def _cells(row: Row) -> dict[str, str]:
    used, found = row.binary.resources, row.result.comparison
    shared_kib = (used.static_shared_bytes + used.dynamic_shared_bytes) / 1024
    return {
        "target": row.result.target,
        "dtype": row.dtype,
        "ran on": row.result.device,
        "source": row.source.name,
        "compiler": row.binary.compiler,
        "registers": str(used.registers),
        "spills": f"{used.spill_bytes + used.stack_bytes} B",
        "shared": f"{shared_kib:.1f} KiB",
        "O error": f"{found.o_worst:.1e}",
        "LSE error": f"{found.lse_worst:.1e}",
        "time": f"{row.result.seconds * 1000:.2f} ms",
    }
