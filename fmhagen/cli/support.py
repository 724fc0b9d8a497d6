"""`support`: what can be generated today."""

from __future__ import annotations

import typer

from fmhagen.cli.command import command
from fmhagen.cli.options import Json
from fmhagen.cli.output import write_json, write_text
from fmhagen.committed.support import FEATURES, reason_against, support_matrix
from fmhagen.targets import TARGETS


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    command(app, "support")(support)


def support(*, json: Json = False) -> None:
    """Print the support matrix as Markdown, made from the validator that refuses specs.

    \b
    Examples:
      fmhagen support
      fmhagen support --json
    """
    if json:
        write_json(
            [
                {
                    "feature": feature.name,
                    "spec": feature.spec.to_dict(),
                    "refusals": {t.name: reason_against(feature, t) for t in TARGETS},
                }
                for feature in FEATURES
            ]
        )
    else:
        write_text(support_matrix())
