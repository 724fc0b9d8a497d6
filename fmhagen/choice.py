"""Choice: a schedule and why it was chosen."""

from __future__ import annotations

from dataclasses import dataclass

from fmhagen.errors import ScheduleError
from fmhagen.schedule import Schedule
from fmhagen.schedules import Row
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A schedule and why it was chosen.

    Attributes:
        schedule: the schedule to use.
        reasons: one sentence for each decision.
        rejected: (schedule, why not) for the alternatives that were weighed.
        row: the row of the shipped table that it is, or None where the rules chose.
    """

    schedule: Schedule
    reasons: tuple[str, ...]
    rejected: tuple[tuple[Schedule, str], ...]
    row: Row | None = None


def is_crowded(spec: AttentionSpec, schedule: Schedule, target: Target) -> bool:
    """Return whether vector work is longer than the matrix instructions that hide it."""
    from fmhagen.lowering import lower

    table = lower(spec, schedule, target).slot_table
    return table is not None and len(table.overfull) * 4 > len(table.slots)


def fits(spec: AttentionSpec, schedule: Schedule, target: Target) -> bool:
    """Return whether the lowering accepts a schedule."""
    from fmhagen.lowering import lower

    try:
        lower(spec, schedule, target)
    except ScheduleError:
        return False
    return True
