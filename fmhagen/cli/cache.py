"""`cache`: where compiled kernels are kept, which, and removing them."""

from __future__ import annotations

from typing import Annotated

import typer

from fmhagen.cli.command import command
from fmhagen.cli.options import Json
from fmhagen.cli.output import note, table, write_json, write_table, write_text
from fmhagen.compile import default_cache

_app = typer.Typer(
    no_args_is_help=True,
    help="Compiled kernels on disk: where they are, which, and removing them.",
    rich_markup_mode="rich",
)


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    command(_app, "path")(path)
    command(_app, "list")(list_)
    command(_app, "clear")(clear)
    app.add_typer(_app, name="cache")


def path(*, json: Json = False) -> None:
    """Print the cache's directory.

    FMHAGEN_CACHE_DIR names another one.

    \b
    Example:
      du -sh "$(fmhagen cache path)"
    """
    where = default_cache().path
    if json:
        write_json({"path": where})
    else:
        write_text("(in memory)" if where is None else str(where))


def list_(*, json: Json = False) -> None:
    """List the binaries in the cache.

    \b
    Examples:
      fmhagen cache list
      fmhagen cache list --json
    """
    entries = default_cache().list()
    if json:
        write_json([{name: getattr(e, name) for name in e.__slots__} for e in entries])
        return
    if not entries:
        note("the cache is empty")
        return
    shown = table("symbol", "target", "kind", "compiler", "bytes", "key", right=("bytes",))
    for entry in entries:
        cells = (entry.symbol, entry.target, entry.kind, entry.compiler)
        shown.add_row(*cells, str(entry.image_bytes), entry.key[:12])
    write_table(shown)


def clear(
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Remove every binary from the cache.

    \b
    Example:
      fmhagen cache clear --yes
    """
    cache = default_cache()
    if not yes and not json:
        typer.confirm(f"remove {len(cache.list())} binaries from {cache.path}?", abort=True)
    count = cache.clear()
    if json:
        write_json({"removed": count, "path": cache.path})
    else:
        note(f"removed {count} entries from {cache.path}")
