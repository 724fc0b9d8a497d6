"""`explain`: what a kernel will be, before any C++ exists."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from fmhagen.cli.command import command
from fmhagen.cli.options import Json
from fmhagen.cli.output import note, write_json, write_text
from fmhagen.cli.request import Request
from fmhagen.committed.inventory import write_if_different
from fmhagen.errors import InvalidSpecError, UnsupportedSpecError
from fmhagen.explaining.explain import explain as explain_instance
from fmhagen.explaining.key_runs import Place
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    command(app, "explain", default_target="all")(explain)


_PANEL = "The mask of one head: how its tiles are visited, counted and as a picture"
_PICTURED = 1024  # query rows and keys, unless told


def explain(
    request: Request,
    *,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE.svg", help="Write it.", rich_help_panel=_PANEL),
    ] = None,
    seqlen_q: Annotated[
        int | None,
        typer.Option("--seqlen-q", metavar="N", help="Query rows.", rich_help_panel=_PANEL),
    ] = None,
    seqlen_k: Annotated[
        int | None, typer.Option("--seqlen-k", metavar="N", help="Keys.", rich_help_panel=_PANEL)
    ] = None,
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
      fmhagen explain --causal --window-left 300 --seqlen-q 4096     how tiles are visited
      fmhagen explain --target sm90 --causal --window-left 300 --picture window.svg
      fmhagen explain -t sm90 --mask-mod 'q_idx // 256 == kv_idx // 256' --picture chunks.svg
    """
    asked = [length for length in (seqlen_q, seqlen_k) if length is not None]
    place = Place(
        h=head,
        seqlen_q=(asked or [_PICTURED])[0] if seqlen_q is None else seqlen_q,
        seqlen_k=(asked or [_PICTURED])[0] if seqlen_k is None else seqlen_k,
    )
    if picture is not None:
        _draw(request, picture, place)
        return
    counted, params = (place, _params(request.spec, place)) if asked else (None, {})
    explanations = [
        explain_instance(instance, counted, params) for instance in request.instances("all")
    ]
    if json:
        write_json([explanation.to_dict() for explanation in explanations])
    else:
        write_text("\n".join(str(explanation) for explanation in explanations))


def _params(spec: AttentionSpec, place: Place) -> dict[str, Any]:
    """Return what a mask reads at run time: what it captured, else random numbers."""
    from fmhagen.checking.draws import draw
    from fmhagen.checking.verification import Case

    sizes = {"seqlen_q": place.seqlen_q, "seqlen_k": place.seqlen_k}
    case = Case(batch=1, heads=place.h + 1, heads_kv=1, **sizes)
    if spec.mask_mod is None or spec.kv_cache:
        return {}
    params = draw(dataclasses.replace(spec, varlen=False), case).extras.get("params", {})
    return {**params, **spec.mask_mod.bound}


def _draw(request: Request, path: Path, place: Place) -> None:
    """Write the picture of a mask, in the tiles of the first target that is asked for."""
    from fmhagen.explaining.picture import mask_picture

    if path.suffix != ".svg":
        raise InvalidSpecError("picture", str(path), "is SVG: the name must end in .svg")
    target = request.targets(TARGETS[0].name)[0]
    try:
        schedule = request.instance(target).schedule
    except UnsupportedSpecError:  # a mask has a picture even where no kernel is generated for it
        plain = AttentionSpec(head_dim=request.spec.head_dim, causal=request.spec.causal)
        schedule = dataclasses.replace(request, spec=plain).instance(target).schedule
    spec = dataclasses.replace(request.spec, varlen=False)
    text = mask_picture(
        spec,
        place,
        tile_m=schedule.tile_m,
        tile_n=schedule.tile_n,
        params=_params(spec, place),
    )
    write_if_different(path, text)
    note(f"wrote {path}")
