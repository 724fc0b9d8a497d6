"""Emission of the kernels beside attention, from the instructions and a vocabulary of their own."""

from __future__ import annotations

from fmhagen.emission import assemble
from fmhagen.emission.definitions import Definition, parse
from fmhagen.emission.environment import render
from fmhagen.plan.small import SmallPlan
from fmhagen.resources import templates_dir
from fmhagen.source import Source


def assemble_small(plan: SmallPlan, *parts: str) -> Source:
    """Print a plan of a kernel that needs no tiles.

    Args:
        plan: the kernel; its vocabulary is `templates/parts/SKELETON/vocabulary.j2`.
        parts: of the isa layer, besides the one that all kernels share.
    """
    prelude = templates_dir() / "prelude" / plan.target.prelude
    names = (f"isa{part}{plan.target.prelude_suffix}" for part in ("", *parts))
    available: tuple[Definition, ...] = (
        *(item for name in names for item in parse((prelude / name).read_text("ascii"), "isa")),
        *parse(render(f"parts/{plan.SKELETON}/vocabulary.j2", plan), "tile"),
    )
    return assemble(plan, available)
