"""Choice of a schedule: a pure function of spec and target that gives its reasons."""

from __future__ import annotations

import dataclasses

from fmhagen.choice import Choice, fits
from fmhagen.rules.split_kv import choose_split_kv
from fmhagen.rules.split_kv_waves import choose_split_kv_waves
from fmhagen.rules.warp_specialised import choose_warp_specialised
from fmhagen.rules.waves import choose_wave_pipelined
from fmhagen.schedule import Copy, MainLoop, Schedule
from fmhagen.schedules import Row, find_row, shipped_rows
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target
from fmhagen.validate import check_support

PREFILL_ROWS = 65
"""Query rows of a sequence from which on a cache is read by tiles of many rows.

Half a tile of 128 and one more. By arithmetic, not measured: a tile of split_kv has 16 rows, and
reads all keys from L2 for them.
"""


def choose(
    spec: AttentionSpec,
    target: Target,
    *,
    seqlen_hint: int | None = None,
    query_hint: int | None = None,
    rows: tuple[Row, ...] | None = None,
) -> Choice:
    """Return the default schedule of a spec on a target, with the reasons.

    A row of the table of measured schedules comes before the rules.

    Args:
        spec: what to compute.
        target: the chip.
        seqlen_hint: the most keys that a sequence will have, if the caller knows.
        query_hint: the same of query rows; decides between the main loops over a cache.
        rows: the table; None means the shipped one, () the rules alone.

    Raises:
        UnsupportedSpecError: the target does not support the spec.
    """
    by_rules = _choose_by_rules(spec, target, query_hint)
    table = shipped_rows() if rows is None else rows
    row = find_row(table, spec, target.name, seqlen_hint)
    if row is None or not fits(spec, row.schedule, target):
        return by_rules
    if spec.kv_cache and row.schedule.main_loop != by_rules.schedule.main_loop:
        # A row was measured with few query rows, or with many.
        return by_rules
    if row.schedule == by_rules.schedule:
        return Choice(
            schedule=row.schedule,
            reasons=(str(row), *by_rules.reasons),
            rejected=by_rules.rejected,
            row=row,
        )
    others = ((by_rules.schedule, "what the rules choose; measured slower"), *by_rules.rejected)
    return Choice(
        schedule=row.schedule,
        reasons=(str(row),),
        rejected=tuple((other, why) for other, why in others if other != row.schedule),
        row=row,
    )


def _choose_by_rules(spec: AttentionSpec, target: Target, query_hint: int | None) -> Choice:
    check_support(spec, target)
    table = {
        MainLoop.WARP_SPECIALISED: choose_warp_specialised,
        MainLoop.WAVE_PIPELINED: choose_wave_pipelined,
    }
    if spec.kv_cache and not is_prefill(spec, target, query_hint):
        is_direct = target.cache_copies == (Copy.DIRECT,)
        return (choose_split_kv_waves if is_direct else choose_split_kv)(spec, target)
    choice = table[MainLoop(target.main_loops[0])](spec, target)
    if not spec.kv_cache:
        return choice
    why = "packed queries over a cache" if spec.varlen else f"{PREFILL_ROWS} query rows or more"
    why = f"{why}: tiles of many rows, whose K and V are copied from the cache by a warp each"
    return dataclasses.replace(choice, reasons=(why, *choice.reasons))


def is_prefill(spec: AttentionSpec, target: Target, query_hint: int | None) -> bool:
    """Return whether a cache is read by the main loop for many query rows.

    It is where queries are packed, since the other one has none of that, and from PREFILL_ROWS on.
    """
    has_loop = MainLoop.WARP_SPECIALISED in target.main_loops and spec.kv_dtype is None
    return has_loop and (spec.varlen or (query_hint or 0) >= PREFILL_ROWS)


def default_schedule(
    spec: AttentionSpec,
    target: Target,
    *,
    seqlen_hint: int | None = None,
    query_hint: int | None = None,
) -> Schedule:
    """Return the schedule of `choose` alone."""
    return choose(spec, target, seqlen_hint=seqlen_hint, query_hint=query_hint).schedule


def candidates(spec: AttentionSpec, target: Target) -> tuple[Schedule, ...]:
    """Return every schedule that the target's lowering accepts for a spec, best first."""
    choice = choose(spec, target)
    return (choice.schedule, *(schedule for schedule, _ in choice.rejected))
