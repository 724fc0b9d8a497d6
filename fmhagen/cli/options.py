"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fmhagen.compile import available_compilers
from fmhagen.errors import InvalidSpecError
from fmhagen.records import closest

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

GeneratedDirectory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="The directory of committed files. [dim]\\[default: generated/][/dim]",
        show_default=False,
    ),
]

CompilerName = Annotated[
    str,
    typer.Option(
        "--compiler", metavar="NAME", help="auto, nvrtc, hiprtc, clang, hipcc, zig or host."
    ),
]


def check_compiler(name: str, target: str) -> None:
    """Refuse a compiler that is not known or does not compile for a target.

    Raises:
        InvalidSpecError: names the compilers that do.
    """
    fitting = ("auto", *(c.name for c in available_compilers() if c.target == target))
    if name not in fitting:
        limit = f"does not compile for {target}"
        raise InvalidSpecError("compiler", name, limit, closest(name, fitting))
