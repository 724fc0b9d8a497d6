"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
