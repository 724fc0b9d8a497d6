"""The command line: `fmhagen COMMAND`, also `python -m fmhagen`.

Exit status: 0 if all is well, 1 if a check or a verification failed, 2 for a wrong command line
or a spec that is refused.
"""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from fmhagen.cli import (
    bench,
    cache,
    compile,
    demo,
    doctor,
    emit,
    explain,
    inspect,
    listing,
    support,
    tune,
    verify,
)

app = typer.Typer(
    name="fmhagen",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from fmhagen import __version__

        typer.echo(f"fmhagen {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Fused attention kernels from one description, as readable CUDA (sm90) and HIP (gfx942).

    \b
    Start here:
      fmhagen demo                both targets: emitted, compiled, run, checked
      fmhagen emit --causal       print a kernel
      fmhagen explain --causal    its loop nest, and why it is tiled so
      fmhagen doctor              what is installed, what is missing
    """


_MODULES = (
    demo,
    emit,
    listing,
    support,
    explain,
    compile,
    inspect,
    verify,
    bench,
    tune,
    doctor,
    cache,
)
for _module in _MODULES:
    _module.register(app)


def _show_warning(message: Warning | str, *_: object) -> None:
    typer.echo(f"fmhagen: warning: {message}", err=True)


def main() -> None:
    """Run the command line."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    app(prog_name="fmhagen")
