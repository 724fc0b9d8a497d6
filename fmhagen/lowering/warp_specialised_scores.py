"""Score functions of the warp-specialised loop: their units, and the polynomial of soft caps."""

from __future__ import annotations

from fmhagen.expr.cap import Cap
from fmhagen.lowering.warp_specialised_masks import has_spare_registers
from fmhagen.plan.attention import Constant
from fmhagen.plan.language import Language
from fmhagen.plan.small_cache import SmallCache
from fmhagen.schedule import Rescale, Schedule
from fmhagen.spec import AttentionSpec

LIMIT = 0.3
"""Up to here, in both directions, the polynomial stands for the hyperbolic tangent."""

COEFFICIENTS = (0.99987025, -0.32171637)
"""x * (c0 + c1 x^2), the least largest relative error within the limit: 1.3e-4."""


def cap_constants(cap: Cap) -> tuple[Constant, ...]:
    """Return the constants of a soft cap."""
    numbers = (
        ("CAP", cap.outer, "factor of the hyperbolic tangent"),
        ("CAP_INNER", cap.inner, "factor of the score in it"),
        ("CAP_LIMIT", LIMIT, "up to here tanh(x) is x * (CAP_1 + CAP_3 x^2)"),
        ("CAP_1", COEFFICIENTS[0], "least largest relative error, 1.3e-4"),
        ("CAP_3", COEFFICIENTS[1], "likewise"),
    )
    return tuple(
        Constant(ctype="f32", name=name, value=value, comment=comment)
        for name, value, comment in numbers
    )


def has_near_cap_loop(schedule: Schedule, language: Language) -> bool:
    """Say if key tiles with scores near a soft cap go through a loop of their own."""
    return (
        language.cap is not None
        and schedule.rescale == Rescale.ON_OVERFLOW
        and schedule.p_buffers == 1
    )


def joins_rows(
    spec: AttentionSpec, schedule: Schedule, language: Language, small: SmallCache
) -> bool:
    """Say if the two rows of a thread have one reference, under a line that is level.

    P in bf16 is as small as fp32 gets, so a row far below the other loses nothing. Rows of other
    heads have lines of their own; the addends' registers are not there over caches of 8 bits.
    """
    return (
        language.line is not None
        and language.line.is_level
        and schedule.rescale == Rescale.ON_OVERFLOW
        and spec.dtype == "bf16"
        and not schedule.pack_heads
        and not small.is_used
        and has_spare_registers(spec, schedule, small)
    )


def score_unit(language: Language, small: SmallCache) -> tuple[str, str]:
    """Return what brings a score to units of log2, and a score in these units, for comments."""
    if language.score is None:
        return "tile.scale" if small.scales_heads else "params.scale_log2", "scale_log2 * S"
    if language.line is not None:
        return "1.0f", "score"  # a line is put on scores in units of log2
    return "LOG2E", "LOG2E * score"
