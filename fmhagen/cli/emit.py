"""`emit` and `check`: print generated files, or compare the committed ones with what would be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fmhagen.cli.command import command
from fmhagen.cli.options import GeneratedDirectory, Json
from fmhagen.cli.output import EXIT_FAILED, EXIT_USAGE, note, write_json, write_text
from fmhagen.cli.request import Request
from fmhagen.committed.inventory import (
    compare,
    files_under,
    generated_dir,
    is_ours,
    render_all,
    write_if_different,
)
from fmhagen.committed.measure import Measured, measure, measure_again
from fmhagen.source import Source


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    command(app, "emit", default_target="sm90")(emit)
    command(app, "check")(check)


def emit(
    request: Request,
    *,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE|DIR|-", help="Where to write; - is stdout."),
    ] = "-",
    every: Annotated[
        bool,
        typer.Option("--all", help="Write every committed instance and the manifest."),
    ] = False,
    directory: GeneratedDirectory = None,
    resources: Annotated[
        bool,
        typer.Option(
            "--resources/--no-resources",
            help="With --all: compile, and put registers and spills into the manifest.",
        ),
    ] = True,
    json: Json = False,
) -> None:
    """Print the kernel of a spec as one self-contained source file.

    The same spec and schedule give the same bytes everywhere. A file on disk is touched only if
    its text changes.

    \b
    Examples:
      fmhagen emit --dtype bf16 --head-dim 128 --causal
      fmhagen emit --target gfx942 --head-dim 64 -o kernel.hip
      fmhagen emit --target all --causal -o build/   one file a target
      fmhagen emit spec.toml --tile-n 64             flags on top of a file
      fmhagen emit --all                             regenerate generated/
    """
    if every:
        if output != "-" or not request.is_plain:
            note("fmhagen: --all writes the committed kernels as they are; give no spec and no -o")
            raise typer.Exit(EXIT_USAGE)
        _emit_all(directory or generated_dir(), resources=resources, as_json=json)
        return
    sources = tuple(instance.source() for instance in request.instances("sm90"))
    if output == "-":
        _print(sources, as_json=json)
        return
    written = []
    for source in sources:
        path = Path(output)
        is_directory = path.is_dir() or output.endswith("/") or len(sources) > 1
        if is_directory:
            path = path / source.filename
        changed = write_if_different(path, source.text)
        written.append({"path": str(path), "changed": changed, "digest": source.digest})
        if not json:
            note(f"{'wrote' if changed else 'unchanged'} {path}")
    if json:
        write_json(written)


def _print(sources: tuple[Source, ...], *, as_json: bool) -> None:
    if as_json:
        write_json(
            [{name: getattr(source, name) for name in Source.__slots__} for source in sources]
        )
    elif len(sources) > 1:
        note("fmhagen: -o -: one file fits on standard output; give a directory or one --target")
        raise typer.Exit(EXIT_USAGE)
    else:
        write_text(sources[0].text)


def _emit_all(directory: Path, *, resources: bool, as_json: bool) -> None:
    files = render_all(directory, measure if resources else None)
    written = [p for p, text in files.items() if write_if_different(directory / p, text)]
    # NOTE: nothing but generated files is ever removed, whatever --dir names.
    removed = [p for p in files_under(directory) if p not in files and is_ours(directory / p)]
    for path in removed:
        (directory / path).unlink()
    if as_json:
        write_json({"directory": directory, "written": written, "removed": removed})
        return
    for path in written:
        note(f"wrote {directory / path}")
    for path in removed:
        note(f"removed {directory / path}")
    note(f"{len(files)} files, {len(written)} written, {len(removed)} removed")


def check(
    *,
    directory: GeneratedDirectory = None,
    resources: Annotated[
        bool,
        typer.Option(
            "--resources",
            help="Also compile, and compare registers and spills with the manifest.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Compare generated/ with what would be emitted; exit 1 on any difference.

    Everything is rendered to memory and nothing is written. Missing and extra files count, and a
    file that was edited by hand is told by the digest in its header.

    \b
    Examples:
      fmhagen check
      fmhagen check --resources        registers and spills too
    """
    where = directory or generated_dir()
    expected = render_all(where)
    differences = compare(where, expected)
    measured = measure_again(where) if resources else Measured(compared=0, moved=(), left_out=())
    if json:
        write_json(
            {
                "directory": where,
                "files": len(expected),
                "differences": [
                    {name: getattr(d, name) for name in d.__slots__} for d in differences
                ],
                "resources": list(measured.moved),
                "resources_compared": measured.compared,
                "resources_left_out": list(measured.left_out),
            }
        )
    else:
        for difference in differences:
            write_text(difference.diff)
        for difference in differences:
            hint = " (edited by hand: its digest does not hold)" if difference.edited else ""
            note(f"{difference.kind}: {where / difference.path}{hint}")
        for line in measured.moved:
            note(line)
        for line in measured.left_out:
            note(f"not compared: {line}")
    if differences or measured.moved:
        if not json:
            note("regenerate with: fmhagen emit --all")
        raise typer.Exit(EXIT_FAILED)
    if not json:
        note(f"{len(expected)} files are what would be emitted")
        if resources:
            note(f"{measured.compared} kernels cost what the manifest says")
