"""Variants: other schedules than the default one, named by what differs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from fmhagen.bench.contest import OURS, Entry
from fmhagen.bench.hints import hints_of
from fmhagen.bench.workloads import Workload
from fmhagen.emission import emit_source
from fmhagen.errors import InvalidSpecError, ScheduleError, UnsupportedSpecError
from fmhagen.lowering import lower
from fmhagen.records import closest
from fmhagen.schedule import MainLoop, Schedule
from fmhagen.select import choose
from fmhagen.targets import Target

# What says where work lies rather than how it is hidden; tuning varies it, an ablation does not.
TILING = ("main_loop", "tile_m", "tile_n", "consumers", "producer_registers", "consumer_registers")


def parse_changes(text: str) -> dict[str, Any]:
    """Read "ping_pong=false,stages=3" into fields of a schedule.

    Raises:
        InvalidSpecError: a part is no assignment to a field.
    """
    names = tuple(field.name for field in dataclasses.fields(Schedule))
    changes: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise InvalidSpecError("variant", part, "must be FIELD=VALUE", "as ping_pong=false")
        name = name.strip().replace("-", "_")
        if name not in names:
            limit = "Schedule has no such field"
            raise InvalidSpecError("variant", name, limit, closest(name, names))
        changes[name] = _value(value.strip())
    return changes


def _value(text: str) -> Any:
    try:
        return json.loads(text.lower())
    except json.JSONDecodeError:
        return text


def changed(schedule: Schedule, changes: Mapping[str, Any], target: Target) -> Schedule:
    """Return a schedule with changes; the rows and registers of new consumers follow from them."""
    made = dict(changes)
    consumers = made.get("consumers", schedule.consumers)
    if consumers != schedule.consumers:
        made.setdefault("tile_m", schedule.tile_m // schedule.consumers * consumers)
        if schedule.main_loop == MainLoop.WARP_SPECIALISED:
            from fmhagen.tune.candidates import register_split

            split = register_split(consumers, target)
            made.setdefault("producer_registers", split[0])
            made.setdefault("consumer_registers", split[1])
    return Schedule.from_dict({**schedule.to_dict(defaults=True), **made})


def variant(text: str, workload: Workload, target: Target) -> Entry:
    """Return the entry of a variant of a workload's default schedule, given as text."""
    changes = parse_changes(text)
    try:
        default = choose(workload.spec, target, **hints_of(workload)).schedule
        schedule: Schedule | None = changed(default, changes, target)
    except UnsupportedSpecError:
        schedule = None  # the contest refuses it with the reason
    return Entry(name=f"{OURS} {text}", schedule=schedule)


def ablations(workload: Workload, target: Target) -> tuple[Entry, ...]:
    """Return the default schedule with one optimisation off, or one knob a step off, each.

    What the lowering refuses is left out, and what changes no line of the kernel.
    """
    spec = workload.spec
    try:
        default = choose(spec, target, **hints_of(workload)).schedule
    except UnsupportedSpecError:
        return ()
    entries = []
    seen = {emit_source(lower(spec, default, target)).digest}
    for changes in single_changes(default):
        schedule = Schedule.from_dict({**default.to_dict(defaults=True), **changes})
        try:
            digest = emit_source(lower(spec, schedule, target)).digest
        except ScheduleError:
            continue
        if digest in seen:
            continue
        seen.add(digest)
        label = ",".join(f"{name}={value}" for name, value in changes.items())
        entries.append(Entry(name=f"{OURS} {label}", schedule=schedule))
    return tuple(entries)


def single_changes(default: Schedule) -> list[dict[str, Any]]:
    """Return the changes of a schedule that move one field by a step; not those of its tiling."""
    found: list[dict[str, Any]] = []
    for field in dataclasses.fields(Schedule):
        if field.name in TILING:
            continue
        value = getattr(default, field.name)
        if isinstance(value, bool):
            found.append({field.name: not value})
        elif isinstance(value, StrEnum):
            found.extend({field.name: str(other)} for other in type(value) if other != value)
        elif isinstance(value, int):
            found.extend({field.name: near} for near in (value - 1, value + 1) if near >= 1)
    if default.persistent and default.q_stages > 1:
        found.append({"persistent": False, "q_stages": 1})
    return found
