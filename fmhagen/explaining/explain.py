"""Explain: what a kernel will be and why, from its plan and its schedule's choice alone."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fmhagen.errors import ScheduleError
from fmhagen.explaining.key_runs import Place
from fmhagen.explaining.loop_nest import loop_nest
from fmhagen.explaining.tile_counts import TileCounts, count_tiles
from fmhagen.instance import Instance
from fmhagen.lowering import lower
from fmhagen.plan.attention import Plan
from fmhagen.schedule import Schedule
from fmhagen.schedules import Row
from fmhagen.select import choose
from fmhagen.select.choice import Choice
from fmhagen.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A plan with the reasons for its schedule.

    Attributes:
        plan: the kernel, decided.
        loops: its loop nest as pseudo-code.
        reasons: why the default schedule is what it is.
        changes: (field, value here, default value) where the schedule is not the default one.
        rejected: (schedule, reason) of the alternatives that were weighed.
        row: the row of the table of measured schedules that is the default, if one is.
        tiles: how key tiles are visited, at lengths that were asked about.
    """

    plan: Plan
    loops: tuple[str, ...]
    reasons: tuple[str, ...]
    changes: tuple[tuple[str, object, object], ...]
    rejected: tuple[tuple[Schedule, str], ...]
    row: Row | None = None
    tiles: TileCounts | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON-ready data."""
        plan = self.plan
        return {
            "symbol": plan.symbol,
            "target": plan.target.name,
            "spec": plan.spec.to_dict(defaults=True),
            "schedule": plan.schedule.to_dict(defaults=True),
            "threads": plan.threads,
            "grid": str(plan.grid),
            "loops": list(self.loops),
            "shared": [dataclasses.asdict(region) for region in plan.shared],
            "shared_bytes": plan.shared_bytes,
            "shared_limit_bytes": plan.target.shared_memory_per_block_bytes,
            "reasons": list(self.reasons),
            "row": None if self.row is None else self.row.to_dict(),
            "tiles": None if self.tiles is None else self.tiles.to_dict(),
            "changes": [
                {"field": name, "value": value, "default": default}
                for name, value, default in self.changes
            ],
            "rejected": [
                {"schedule": schedule.to_dict(defaults=True), "reason": reason}
                for schedule, reason in self.rejected
            ],
        }

    def __str__(self) -> str:
        """Return the explanation as text."""
        plan = self.plan
        parts = [
            plan.symbol,
            _block(
                "what",
                (repr(plan.spec),),
                "how",
                (repr(plan.schedule),),
                "for",
                (f"{plan.target.name} ({', '.join(plan.target.chips)}), {plan.target.language}",),
                "grid",
                (f"{plan.grid} blocks of {plan.threads} threads",),
            ),
            "loop nest\n" + textwrap.indent("\n".join(self.loops), "  "),
            *(() if self.tiles is None else (str(self.tiles),)),
            _shared_map(plan),
            _listed("why this schedule", self.reasons),
        ]
        if self.changes:
            lines = tuple(f"{n} = {value}, by default {old}" for n, value, old in self.changes)
            parts.append(_listed("changed from the default", lines))
        if self.rejected:
            lines = tuple(
                f"{_distinction(schedule, self.plan.schedule)}: {reason}"
                for schedule, reason in self.rejected
            )
            parts.append(_listed("rejected", lines))
        return "\n\n".join(parts) + "\n"


def explain(
    instance: Instance, place: Place | None = None, params: Mapping[str, Any] | None = None
) -> Explanation:
    """Explain an instance; no text of the kernel is made.

    Args:
        instance: the kernel.
        place: a head and lengths at which key tiles are counted; None counts none.
        params: what the mask reads at run time, for the count.

    Raises:
        InvalidSpecError: tiles of a key/value cache are asked about.
        UnsupportedSpecError: the target does not support the spec.
        ScheduleError: the schedule does not fit.
    """
    choice = choose(instance.spec, instance.target)
    plan = instance.plan()
    return Explanation(
        plan=plan,
        loops=loop_nest(plan),
        reasons=choice.reasons,
        changes=_changes(instance.schedule, choice.schedule),
        rejected=_rejected(instance, choice),
        row=choice.row,
        tiles=None if place is None else count_tiles(plan, place, params),
    )


def _changes(schedule: Schedule, default: Schedule) -> tuple[tuple[str, object, object], ...]:
    here, there = schedule.to_dict(defaults=True), default.to_dict(defaults=True)
    return tuple((name, here[name], there[name]) for name in here if here[name] != there[name])


def _rejected(instance: Instance, choice: Choice) -> tuple[tuple[Schedule, str], ...]:
    weighed = [(s, reason) for s, reason in choice.rejected if s != instance.schedule]
    if instance.schedule != choice.schedule:
        weighed.insert(0, (choice.schedule, "the default, not what was asked for"))
    return tuple(
        (schedule, _with_refusal(instance, instance.target, schedule, reason))
        for schedule, reason in weighed
    )


def _with_refusal(instance: Instance, target: Target, schedule: Schedule, reason: str) -> str:
    try:
        lower(instance.spec, schedule, target)
    except ScheduleError as error:
        return f"{reason} (it does not fit either: {error})"
    return reason


def _distinction(schedule: Schedule, chosen: Schedule) -> str:
    return ", ".join(f"{name}={value}" for name, value, _ in _changes(schedule, chosen))


def _block(*pairs: Any) -> str:
    lines = []
    for title, texts in zip(pairs[::2], pairs[1::2], strict=True):
        for text in texts:
            wrapped = textwrap.wrap(text, 90, break_long_words=False)
            lines.append(f"{title:<6}{wrapped[0]}")
            lines.extend(" " * 8 + line for line in wrapped[1:])
    return "\n".join(lines)


def _listed(title: str, sentences: tuple[str, ...]) -> str:
    lines = [
        textwrap.fill(text, 98, initial_indent="  - ", subsequent_indent="    ")
        for text in sentences
    ]
    return "\n".join([title, *lines])


def _shared_map(plan: Plan) -> str:
    limit = plan.target.shared_memory_per_block_bytes
    rows = [
        f"  {r.offset_bytes:>8} {r.size_bytes:>8}  {r.name:<9} {r.comment}" for r in plan.shared
    ]
    title = f"shared memory: {plan.shared_bytes} of {limit} bytes"
    return "\n".join([title, f"  {'offset':>8} {'bytes':>8}  name", *rows])
