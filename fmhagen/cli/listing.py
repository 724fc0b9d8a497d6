"""`list`: the committed kernels and what they cost."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Annotated

import typer

from fmhagen.cli.command import command
from fmhagen.cli.options import GeneratedDirectory, Json
from fmhagen.cli.output import EXIT_FAILED, note, table, write_json, write_table
from fmhagen.committed.inventory import generated_dir, instances
from fmhagen.committed.manifest import MANIFEST, read_manifest
from fmhagen.instance import Instance
from fmhagen.targets import find_target


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    command(app, "list")(list_)


def list_(
    *,
    pattern: Annotated[
        str, typer.Argument(metavar="[GLOB]", help="Which symbols.", show_default=False)
    ] = "*",
    target: Annotated[
        str | None, typer.Option("--target", "-t", metavar="TARGET", help="One target only.")
    ] = None,
    directory: GeneratedDirectory = None,
    json: Json = False,
) -> None:
    """List the committed kernels with their traits and resources.

    Exits with 1 if no kernel matches.

    \b
    Examples:
      fmhagen list
      fmhagen list '*causal*' --target gfx942
      fmhagen list '*d64*' --json
    """
    name = None if target is None else find_target(target).name
    known = read_manifest((directory or generated_dir()) / MANIFEST)
    rows = []
    for instance in instances():
        plan = instance.plan()
        path = f"{plan.target.name}/{plan.filename}"
        if fnmatch(plan.symbol, pattern) and name in (None, plan.target.name):
            entry = known.get(path)
            used = entry.measurement if entry is not None else None
            rows.append(
                {
                    "symbol": plan.symbol,
                    "target": plan.target.name,
                    "file": path,
                    "dtype": str(plan.spec.dtype),
                    "head_dim": plan.spec.d,
                    "head_dim_v": plan.spec.dv,
                    "mask": _mask(instance),
                    "main_loop": str(plan.schedule.main_loop),
                    "tile_m": plan.schedule.tile_m,
                    "tile_n": plan.schedule.tile_n,
                    "threads": plan.threads,
                    "shared_bytes": plan.shared_bytes,
                    "registers": None if used is None else used.resources.registers,
                    "spill_bytes": None if used is None else used.resources.spill_bytes,
                    "compiler": None if used is None else used.compiler,
                }
            )
    if json:
        write_json(rows)
    elif rows:
        numbers = ("d", "threads", "shared", "registers", "spills")
        shown = table("symbol", "target", "dtype", "d", "mask", "tile", *numbers[1:], right=numbers)
        for row in rows:
            tile = f"{row['tile_m']} x {row['tile_n']}"
            cells = [row["symbol"], row["target"], row["dtype"], row["head_dim"], row["mask"], tile]
            cells += [row["threads"], row["shared_bytes"], row["registers"], row["spill_bytes"]]
            shown.add_row(*("-" if cell is None else str(cell) for cell in cells))
        write_table(shown)
    if not rows:
        note(f"no committed kernel matches {pattern!r}")
        raise typer.Exit(EXIT_FAILED)


def _mask(instance: Instance) -> str:
    if not instance.spec.causal:
        return "full"
    return "causal top_left" if instance.spec.anchor == "top_left" else "causal"
