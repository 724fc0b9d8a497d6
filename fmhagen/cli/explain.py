"""`explain`: what a kernel will be, before any C++ exists."""

from __future__ import annotations

import typer

from fmhagen.cli.command import command
from fmhagen.cli.options import Json
from fmhagen.cli.output import write_json, write_text
from fmhagen.cli.request import Request
from fmhagen.explain import explain as explain_instance


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    command(app, "explain", default_target="all")(explain)


def explain(request: Request, *, json: Json = False) -> None:
    """Show a kernel's loop nest, shared memory, grid, and why it is tiled so.

    Nothing is generated or compiled: this is what was decided, and what was rejected and why.

    \b
    Examples:
      fmhagen explain --head-dim 128 --causal
      fmhagen explain --target sm90 --head-dim 64 --json
      fmhagen explain --target sm90 --tile-n 64      what a change does
    """
    explanations = [explain_instance(instance) for instance in request.instances("all")]
    if json:
        write_json([explanation.to_dict() for explanation in explanations])
    else:
        write_text("\n".join(str(explanation) for explanation in explanations))
