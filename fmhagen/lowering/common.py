"""What every lowering shares."""

from __future__ import annotations

import math

from fmhagen.plan import Constant
from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target

LN2 = Constant(ctype="f32", name="LN2", value=math.log(2.0), comment="ln(x) = LN2 * log2(x)")


def symbol_of(
    spec: AttentionSpec, schedule: Schedule, target: Target, traits: tuple[str, ...] = ()
) -> str:
    """Return a kernel's symbol: what it computes, then its tile and traits, then the chip."""
    words = ["fmha", "fwd", str(spec.dtype)]
    if spec.causal:
        words.append("causal_top_left" if spec.anchor == "top_left" else "causal")
    if spec.p_rounding != "auto":
        words.append(str(spec.p_rounding))
    depth = f"d{spec.d}" if spec.d == spec.dv else f"d{spec.d}x{spec.dv}"
    tile = "_".join((f"m{schedule.tile_m}n{schedule.tile_n}{depth}", *traits))
    return "_".join(words) + f"__{tile}__{target.symbol_suffix}"
