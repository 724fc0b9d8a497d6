"""`verify`: any spec and shape against float64, on any device."""

from __future__ import annotations

from typing import Annotated

import typer

from fmhagen.checking.verification import DEVICES, Case, Verification, target_of_device
from fmhagen.checking.verification import verify as verify_instance
from fmhagen.cli.command import command
from fmhagen.cli.options import Json
from fmhagen.cli.output import EXIT_FAILED, note, table, write_json, write_table
from fmhagen.cli.request import Request

_PANEL = "Case: the sizes of the call"


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    command(app, "verify", default_target="all")(verify)


def _size(name: str, text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        f"--{name}", metavar="N", help=text, rich_help_panel=_PANEL
    )
    return option


def verify(
    request: Request,
    *,
    device: Annotated[
        str, typer.Option("--device", metavar="|".join(DEVICES), help="Where to run.")
    ] = "auto",
    batch: Annotated[int, _size("batch", "Sequences.")] = 2,
    heads: Annotated[int, _size("heads", "Query heads.")] = 4,
    heads_kv: Annotated[int, _size("heads-kv", "Key and value heads; divides --heads.")] = 2,
    seqlen_q: Annotated[int, _size("seqlen-q", "Query rows of a sequence.")] = 197,
    seqlen_k: Annotated[int, _size("seqlen-k", "Keys of a sequence.")] = 333,
    seed: Annotated[int, _size("seed", "Seed of the random tensors.")] = 0,
    seeds: Annotated[int, _size("seeds", "How many seeds, from --seed on.")] = 1,
    json: Json = False,
) -> None:
    """Run a kernel on random tensors and compare O and LSE with float64.

    With --device auto a target runs on its GPU if there is one, else on the emulator, which also
    looks for races, deadlocks and bad addresses. Prints the worst error and where it is; exits
    with 1 on a mismatch.

    \b
    Examples:
      fmhagen verify --head-dim 128 --causal
      fmhagen verify --target gfx942 --device emulator --seeds 5
      fmhagen verify --dtype fp16 --layout bhsd --seqlen-q 1 --seqlen-k 777
      fmhagen verify --device cuda --batch 4 --heads 32 --heads-kv 8 --seqlen-q 4096
    """
    results = [
        verify_instance(
            instance,
            Case(
                batch=batch,
                heads=heads,
                heads_kv=heads_kv,
                seqlen_q=seqlen_q,
                seqlen_k=seqlen_k,
                seed=number,
            ),
            device=device,
        )
        for instance in request.instances(target_of_device(device))
        for number in range(seed, seed + max(seeds, 1))
    ]
    if json:
        write_json([result.to_dict() for result in results])
    else:
        _print(results)
    if not all(result.passed for result in results):
        raise typer.Exit(EXIT_FAILED)


def _print(results: list[Verification]) -> None:
    numbers = ("seed", "O worst", "O rms", "LSE worst", "time")
    shown = table("target", "device", *numbers, "result", right=numbers)
    for result in results:
        found = result.comparison
        shown.add_row(
            result.target,
            result.device,
            str(result.case.seed),
            f"{found.o_worst:.2e}",
            f"{found.o_rms:.2e}",
            f"{found.lse_worst:.2e}",
            f"{result.seconds * 1000:.1f} ms",
            "ok" if result.passed else "WRONG",
        )
    write_table(shown)
    for result in results:
        if not result.passed:
            note(f"{result.symbol} on {result.device}, seed {result.case.seed}:")
            note("\n".join(f"  {line}" for line in str(result.comparison).splitlines()))
