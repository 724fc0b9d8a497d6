"""What a spec forces, whatever the rules wish: exact maxima, outputs that leave from registers."""

from __future__ import annotations

import dataclasses

from fmhagen.lowering.warp_specialised_shared import is_wider
from fmhagen.schedule import Rescale, Schedule, Store
from fmhagen.select.choice import Choice

NO_MAXIMUM = "rescale on_overflow: no row maximum, a fifth fewer instructions of softmax"
_WIDER = "O leaves from registers: its rows are wider than those of Q, whose place it would take"


def with_maximum(choice: Choice, why: str) -> Choice:
    """Return a choice in which every step takes the exact maximum."""

    def exact(schedule: Schedule) -> Schedule:
        return dataclasses.replace(schedule, rescale=Rescale.ALWAYS, p_buffers=1)

    best = exact(choice.schedule)
    rejected = {exact(schedule): reason for schedule, reason in choice.rejected}
    rejected.pop(best, None)
    reasons = tuple(reason for reason in choice.reasons if reason != NO_MAXIMUM)
    return Choice(
        schedule=best,
        reasons=(*reasons, f"rescale always: {why}"),
        rejected=tuple(rejected.items()),
    )


def with_direct_store(choice: Choice) -> Choice:
    """Return a choice in which O, whose rows are wider than those of Q, leaves from registers."""

    def direct(schedule: Schedule) -> Schedule:
        return dataclasses.replace(schedule, store=Store.DIRECT)

    best = direct(choice.schedule)
    rejected = {direct(schedule): reason for schedule, reason in choice.rejected}
    rejected.pop(best, None)
    reasons = tuple(reason for reason in choice.reasons if "O leaves" not in reason)
    return Choice(schedule=best, reasons=(*reasons, _WIDER), rejected=tuple(rejected.items()))


__all__ = ["NO_MAXIMUM", "is_wider", "with_direct_store", "with_maximum"]
