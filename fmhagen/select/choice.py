"""Choice: a schedule and why it was chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fmhagen.errors import ScheduleError, UnsupportedSpecError
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


def first_fitting(spec: AttentionSpec, wished: Iterable[Schedule], target: Target) -> Schedule:
    """Return the first schedule that the lowering accepts.

    Raises:
        UnsupportedSpecError: it accepts none; says what is wrong with the last one.
    """
    from fmhagen.lowering import lower

    problem: ScheduleError | None = None
    for schedule in wished:
        try:
            lower(spec, schedule, target)
        except ScheduleError as error:
            problem = error
        else:
            return schedule
    why = "" if problem is None else f": {problem.field}={problem.value} {problem.limit}"
    limit = f"no schedule of {target.name} fits{why}"
    if spec.score_mod is not None:
        hint = "use a score function that does less"
        raise UnsupportedSpecError("score_mod", spec.score_mod, limit, hint) from problem
    hint = "use smaller head dims"
    if spec.kv_cache and problem is not None and problem.field == "main_loop":
        hint = problem.suggestion or hint
    raise UnsupportedSpecError("head_dim", max(spec.d, spec.dv), limit, hint) from problem
