"""How the steps of a warp-specialised loop put a soft cap on scores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CapSteps:
    """At most one of the first two holds; neither: as any score function is put on them.

    Attributes:
        has_one_reference: the cap bounds scores, so that one reference serves all rows.
        has_near_loop: key tiles with scores near the cap have a loop; see steps_near_cap.j2.
        repairs_alone: a warp, not its warpgroup, computes scores near the cap again.
    """

    has_one_reference: bool = False
    has_near_loop: bool = False
    repairs_alone: bool = False


NO_CAP_STEPS = CapSteps()
