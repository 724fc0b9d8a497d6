"""`doctor`: what is here, what is missing, what to install."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from fmhagen.cli.command import command
from fmhagen.cli.options import Json
from fmhagen.cli.output import EXIT_FAILED, table, write_json, write_table
from fmhagen.doctor import examine

_STYLES = {"ok": "green", "missing": "yellow", "failed": "bold red"}


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    command(app, "doctor")(doctor)


def doctor(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Compile and run nothing, only look.")
    ] = False,
    json: Json = False,
) -> None:
    """Say what was found, what is missing, and what to install.

    Compiles a trivial kernel with every compiler that is here and runs a small one on the
    emulator. Exits with 0 if both targets can be compiled and the emulator runs; a GPU is not
    needed for that.

    \b
    Examples:
      fmhagen doctor
      fmhagen doctor --quick --json
    """
    report = examine(smoke_compile=not quick, emulate=not quick)
    if json:
        findings = [finding.to_dict() for finding in report.findings]
        write_json({"healthy": report.healthy, "findings": findings})
    else:
        shown = table("", "what", "status", "detail", "to have it")
        group = ""
        for finding in report.findings:
            title = finding.group if finding.group != group else ""
            group = finding.group
            status = Text(finding.status, style=_STYLES[finding.status])
            # Text, not markup: details may hold square brackets.
            shown.add_row(title, finding.name, status, Text(finding.detail), Text(finding.install))
        write_table(shown)
    if not report.healthy:
        raise typer.Exit(EXIT_FAILED)
