"""The chips that fmhagen generates for."""

from __future__ import annotations

from fmhagen.errors import UnknownTargetError
from fmhagen.records import closest
from fmhagen.targets.base import Target
from fmhagen.targets.gfx942 import GFX942
from fmhagen.targets.sm90 import SM90

TARGETS: tuple[Target, ...] = (SM90, GFX942)


def find_target(name: str) -> Target:
    """Return the target that answers to a name, in any of its spellings.

    Examples: "sm90", "sm_90a", "9.0a+PTX", "h200", "gfx942:sramecc+:xnack-".

    Raises:
        UnknownTargetError: no target answers to it.
    """
    key = name.strip().lower().removesuffix("+ptx").partition(":")[0]
    for target in TARGETS:
        if key in (target.name, *target.aliases):
            return target
    known = tuple(target.name for target in TARGETS)
    raise UnknownTargetError("target", name, "no such target", closest(key, known))


__all__ = ["GFX942", "SM90", "TARGETS", "Target", "find_target"]
