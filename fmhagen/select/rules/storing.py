"""Outputs that cannot be staged in shared memory, whatever the rules wish."""

from __future__ import annotations

import dataclasses

from fmhagen.lowering.warp_specialised_shared import is_wider
from fmhagen.schedule import Schedule, Store
from fmhagen.select.choice import Choice

_WIDER = "O leaves from registers: its rows are wider than those of Q, whose place it would take"


def with_direct_store(choice: Choice) -> Choice:
    """Return a choice in which O, whose rows are wider than those of Q, leaves from registers."""

    def direct(schedule: Schedule) -> Schedule:
        return dataclasses.replace(schedule, store=Store.DIRECT)

    best = direct(choice.schedule)
    rejected = {direct(schedule): reason for schedule, reason in choice.rejected}
    rejected.pop(best, None)
    reasons = tuple(reason for reason in choice.reasons if "O leaves" not in reason)
    return Choice(schedule=best, reasons=(*reasons, _WIDER), rejected=tuple(rejected.items()))


__all__ = ["is_wider", "with_direct_store"]
