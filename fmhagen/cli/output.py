"""What every command prints with: results on standard output, everything else on standard error."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fmhagen.errors import FmhagenError

EXIT_FAILED = 1
EXIT_USAGE = 2


_PLAIN_COLUMNS = 200


def write_table(shown: Table) -> None:
    """Print a table; where standard output is no terminal, wide and without trailing spaces."""
    terminal = Console(highlight=False)
    if terminal.is_terminal:
        terminal.print(shown)
        return
    plain = Console(file=io.StringIO(), highlight=False, width=_PLAIN_COLUMNS)
    with plain.capture() as captured:
        plain.print(shown)
    write_text("\n".join(line.rstrip() for line in captured.get().splitlines()))


def write_records(records: list[dict[str, str]], *, right: tuple[str, ...]) -> None:
    """Print records of the same keys as a table, a row each; a column each if that is too wide.

    Args:
        records: what to print.
        right: the keys whose values are numbers.
    """
    names = tuple(records[0])
    shown = table(*names, right=right)
    for record in records:
        shown.add_row(*record.values())
    terminal = Console(highlight=False)
    needed = Measurement.get(terminal, terminal.options.update(width=_PLAIN_COLUMNS), shown).maximum
    if terminal.is_terminal and needed > terminal.width:
        shown = table(*("" for _ in range(len(records) + 1)))
        shown.show_header = False
        for name in names:
            shown.add_row(Text(name, style="bold"), *(record[name] for record in records))
    write_table(shown)


def note(text: str) -> None:
    """Print a remark on standard error."""
    print(text, file=sys.stderr)


def write_text(text: str) -> None:
    """Print text as it is on standard output."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def write_json(data: Any) -> None:
    """Print data as JSON on standard output."""
    write_text(json.dumps(data, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} has no JSON form")


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table; the columns named in `right` are numbers."""
    made = Table(box=None, header_style="bold", pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def fail(error: Exception, *, as_json: bool, code: int) -> NoReturn:
    """Print an error, as JSON on standard output or as a message on standard error, and exit."""
    if as_json:
        data = (
            error.to_dict()
            if isinstance(error, FmhagenError)
            else {"error": type(error).__name__, "message": str(error)}
        )
        write_json(data)
    else:
        note(f"fmhagen: {type(error).__name__}: {error}")
    raise typer.Exit(code)
