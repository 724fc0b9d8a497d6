"""`explain`: what a kernel will be, before any C++ exists."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from fmhagen.cli.command import command
from fmhagen.cli.options import Json
from fmhagen.cli.output import note, write_json, write_text
from fmhagen.cli.request import Request
from fmhagen.errors import UnsupportedSpecError
from fmhagen.explain import explain as explain_instance
from fmhagen.inventory import write_if_different
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    command(app, "explain", default_target="all")(explain)


_PANEL = "Picture: the mask of one head and how its tiles are visited"


def explain(
    request: Request,
    *,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE.svg", help="Write it.", rich_help_panel=_PANEL),
    ] = None,
    seqlen_q: Annotated[
        int, typer.Option("--seqlen-q", metavar="N", help="Query rows.", rich_help_panel=_PANEL)
    ] = 1024,
    seqlen_k: Annotated[
        int, typer.Option("--seqlen-k", metavar="N", help="Keys.", rich_help_panel=_PANEL)
    ] = 1024,
    head: Annotated[
        int, typer.Option("--head", metavar="H", help="Query head.", rich_help_panel=_PANEL)
    ] = 0,
    json: Json = False,
) -> None:
    """Show a kernel's loop nest, shared memory, grid, and why it is tiled so.

    Nothing is generated or compiled: this is what was decided, and what was rejected and why.

    \b
    Examples:
      fmhagen explain --head-dim 128 --causal
      fmhagen explain --target sm90 --head-dim 64 --json
      fmhagen explain --target sm90 --tile-n 64      what a change does
      fmhagen explain --target sm90 --causal --window-left 300 --picture window.svg
      fmhagen explain -t sm90 --mask-mod 'q_idx // 256 == kv_idx // 256' --picture chunks.svg
    """
    if picture is not None:
        _draw(request, picture, seqlen_q=seqlen_q, seqlen_k=seqlen_k, head=head)
        return
    explanations = [explain_instance(instance) for instance in request.instances("all")]
    if json:
        write_json([explanation.to_dict() for explanation in explanations])
    else:
        write_text("\n".join(str(explanation) for explanation in explanations))


def _draw(request: Request, path: Path, *, seqlen_q: int, seqlen_k: int, head: int) -> None:
    """Write the picture of a mask, in the tiles of the first target that is asked for."""
    from fmhagen.draws import draw
    from fmhagen.key_runs import Place
    from fmhagen.picture import mask_picture
    from fmhagen.verification import Case

    target = request.targets(TARGETS[0].name)[0]
    try:
        schedule = request.instance(target).schedule
    except UnsupportedSpecError:  # a mask has a picture even where no kernel is generated for it
        plain = AttentionSpec(head_dim=request.spec.head_dim, causal=request.spec.causal)
        schedule = dataclasses.replace(request, spec=plain).instance(target).schedule
    case = Case(batch=1, heads=head + 1, heads_kv=1, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
    spec = dataclasses.replace(request.spec, varlen=False)
    params = draw(spec, case).extras.get("params", {})
    text = mask_picture(
        spec,
        Place(h=head, seqlen_q=seqlen_q, seqlen_k=seqlen_k),
        tile_m=schedule.tile_m,
        tile_n=schedule.tile_n,
        params={**params, **(spec.mask_mod.bound if spec.mask_mod is not None else {})},
    )
    write_if_different(path, text)
    note(f"wrote {path}")
