"""`compile`: binaries with their sidecars, with no GPU."""

from __future__ import annotations

import json as json_library
from pathlib import Path
from typing import Annotated, Any

import typer

from fmhagen.cli.command import command
from fmhagen.cli.options import CompilerName, Json, check_compiler
from fmhagen.cli.output import table, write_json, write_table
from fmhagen.cli.request import Request
from fmhagen.committed.inventory import write_if_different
from fmhagen.compile import compile_source
from fmhagen.compile.sidecar import binary_name, sidecar
from fmhagen.instance import Instance


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    command(app, "compile", default_target="sm90")(compile_)


def compile_(
    request: Request,
    *,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Where the files go."),
    ] = Path(),
    compiler: CompilerName = "auto",
    allow_spills: Annotated[
        bool, typer.Option("--allow-spills", help="Accept a binary that spills registers.")
    ] = False,
    json: Json = False,
) -> None:
    """Compile a kernel to a cubin or a code object, with a sidecar that says how to launch it.

    Writes three files: the source, the binary, and a JSON sidecar with the symbol, the parameter
    block's offsets, tensor maps, grid formula, threads, shared memory, resources and digests.
    No GPU is needed. A kernel that spills is refused (exit 1).

    \b
    Examples:
      fmhagen compile --head-dim 128 --causal -o build
      fmhagen compile --target all -o build --json
      fmhagen compile --target gfx942 --compiler zig
      fmhagen compile --compiler host -o build     for the emulator
    """
    sidecars = [
        _compile(instance, output, compiler, allow_spills=allow_spills)
        for instance in request.instances("sm90")
    ]
    if json:
        write_json(sidecars)
        return
    shown = table("binary", "compiler", "registers", "spills", "shared", "bytes", right=_NUMBERS)
    for data in sidecars:
        used = data["resources"]
        shown.add_row(
            str(output / data["image"]["file"]),
            data["compiler"],
            str(used["registers"]),
            str(used["spill_bytes"]),
            str(used["static_shared_bytes"] + used["dynamic_shared_bytes"]),
            str(data["image"]["bytes"]),
        )
    write_table(shown)


_NUMBERS = ("registers", "spills", "shared", "bytes")


def _compile(
    instance: Instance, directory: Path, compiler: str, *, allow_spills: bool
) -> dict[str, Any]:
    check_compiler(compiler, "emulator" if compiler == "host" else instance.target.name)
    plan, source = instance.plan(), instance.source()
    binary = compile_source(
        source, compiler=compiler, for_emulator=compiler == "host", allow_spills=allow_spills
    )
    data = sidecar(plan, source, binary)
    name = binary_name(source, binary)
    write_if_different(directory / source.filename, source.text)
    write_if_different(directory / name, binary.image)
    write_if_different(directory / f"{name}.json", json_library.dumps(data, indent=2) + "\n")
    return data
