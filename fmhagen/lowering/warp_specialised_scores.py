"""Score functions of the warp-specialised loop: their units, and the polynomial of soft caps."""

from __future__ import annotations

from math import e, floor, log2

from fmhagen.expr.cap import Cap
from fmhagen.lowering.warp_specialised_masks import has_spare_registers, is_wide
from fmhagen.plan.attention import Constant
from fmhagen.plan.cap_steps import NO_CAP_STEPS, CapSteps
from fmhagen.plan.language import Language
from fmhagen.plan.small_cache import SmallCache
from fmhagen.schedule import Rescale, Schedule
from fmhagen.spec import AttentionSpec

LIMIT = 0.3
"""Up to here, in both directions, the polynomial stands for the hyperbolic tangent."""

COEFFICIENTS = (0.99987025, -0.32171637)
"""x * (c0 + c1 x^2), the least largest relative error within the limit: 1.3e-4."""

LARGEST_P_LOG2 = 56.0
"""P of bf16 under a soft cap is at most 2 to this, whatever the scores; O and l have room above."""

LEAST_P_LOG2 = -90.0
"""And at least 2 to this, so that its products with small values are no denormal numbers."""


def cap_constants(cap: Cap, steps: CapSteps) -> tuple[Constant, ...]:
    """Return the constants of a soft cap."""
    # NOTE: P at the cap is a power of two, so that where all scores lie there none is rounded.
    largest = _largest_log2(cap)
    reference = largest - min(LARGEST_P_LOG2, floor(largest))
    numbers = (
        *(
            (("REFERENCE", reference, "of every row, in units of log2"),)
            if steps.has_one_reference
            else ()
        ),
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


def cap_steps(
    spec: AttentionSpec, schedule: Schedule, language: Language, small: SmallCache
) -> CapSteps:
    """Decide how steps put a soft cap on scores.

    One reference is not for fp16, whose P ends at 65504, nor for a cap above 50.
    """
    cap = language.cap
    if cap is None or schedule.rescale != Rescale.ON_OVERFLOW or schedule.p_buffers == 2:
        return NO_CAP_STEPS
    is_low = LARGEST_P_LOG2 - 2 * _largest_log2(cap) >= LEAST_P_LOG2
    if is_low and spec.dtype == "bf16" and not small.is_used:
        return CapSteps(has_one_reference=True, repairs_alone=is_wide(spec))
    return CapSteps(has_near_loop=True)


def _largest_log2(cap: Cap) -> float:
    """Return the largest score under a cap, in units of log2."""
    return abs(cap.outer) * log2(e)


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
