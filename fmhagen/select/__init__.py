"""Choice of a schedule: a pure function of spec and target that gives its reasons."""

from __future__ import annotations

import dataclasses

from fmhagen.errors import UnsupportedSpecError
from fmhagen.schedule import Copy, MainLoop, Schedule
from fmhagen.schedules import Row, find_row, shipped_rows
from fmhagen.select.choice import Choice, fits
from fmhagen.select.rules.lengths import shares_keys, sharing
from fmhagen.select.rules.rows import (
    FEW_HEADS,
    SHARED_ROWS,
    cuts,
    cutting,
    packing,
    packs,
    shared_rows,
)
from fmhagen.select.rules.rows import PREFILL_ROWS as PREFILL_ROWS
from fmhagen.select.rules.split_kv import choose_split_kv, crowds_split_kv
from fmhagen.select.rules.split_kv_waves import choose_split_kv_waves
from fmhagen.select.rules.warp_specialised import choose_warp_specialised
from fmhagen.select.rules.waves import choose_wave_pipelined
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target
from fmhagen.validate import check_support


def choose(
    spec: AttentionSpec,
    target: Target,
    *,
    seqlen_hint: int | None = None,
    query_hint: int | None = None,
    group_hint: int | None = None,
    heads_hint: int | None = None,
    rows: tuple[Row, ...] | None = None,
) -> Choice:
    """Return the default schedule of a spec on a target, with the reasons.

    A row of the table of measured schedules comes before the rules.

    Args:
        spec: what to compute.
        target: the chip.
        seqlen_hint: the most keys that a sequence will have, if the caller knows.
        query_hint: the same of query rows; decides between the main loops over a cache.
        group_hint: query heads of a key/value head, if the caller knows; over a cache their queries
            may share tiles.
        heads_hint: query heads of all sequences of a call together, if the caller knows; over a
            cache the keys of few of them are cut into parts.
        rows: the table; None means the shipped one, () the rules alone.

    Raises:
        UnsupportedSpecError: the target does not support the spec.
    """
    by_rules = _choose_by_rules(spec, target, (query_hint, group_hint, heads_hint))
    if by_rules.schedule.main_loop == MainLoop.WARP_SPECIALISED and shares_keys(spec, seqlen_hint):
        by_rules = sharing(by_rules)
    table = shipped_rows() if rows is None else rows
    row = find_row(table, spec, target.name, seqlen_hint)
    if row is None or not fits(spec, row.schedule, target):
        return by_rules
    if spec.kv_cache and _kind(row.schedule) != _kind(by_rules.schedule):
        # A row was measured with few query rows, or with many, or so many that keys were not cut.
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


def _kind(schedule: Schedule) -> tuple[MainLoop, bool, bool]:
    """Return what the sizes of a call over a cache decide of its schedule."""
    return schedule.main_loop, schedule.pack_heads, schedule.split_keys


def _choose_by_rules(
    spec: AttentionSpec, target: Target, hints: tuple[int | None, int | None, int | None]
) -> Choice:
    query_hint, group_hint, _ = hints
    check_support(spec, target)
    table = {
        MainLoop.WARP_SPECIALISED: choose_warp_specialised,
        MainLoop.WAVE_PIPELINED: choose_wave_pipelined,
    }
    is_direct = target.cache_copies == (Copy.DIRECT,)
    splits = choose_split_kv_waves if is_direct else choose_split_kv
    if spec.kv_cache and not is_prefill(spec, target, query_hint, group_hint):
        few = splits(spec, target)
        if is_direct or not crowds_split_kv(spec, few.schedule):
            return few
        return _few_rows_by_tiles(spec, target, hints)
    try:
        choice = table[MainLoop(target.main_loops[0])](spec, target)
    except UnsupportedSpecError:
        if not spec.kv_cache or spec.varlen:
            raise
        return splits(spec, target)
    by_warps = choice.schedule.main_loop == MainLoop.WARP_SPECIALISED
    packed = packing(choice) if packs(spec, query_hint, group_hint) else choice
    if not spec.kv_cache:
        return packed
    if cuts(spec, *hints):
        packed = cutting(packed)
    why = "packed queries over a cache" if spec.varlen else "many query rows"
    who = "warps of their own copy" if by_warps else "all waves copy"
    why = f"{why}: tiles of many rows, whose K and V {who} from the cache"
    return dataclasses.replace(packed, reasons=(why, *packed.reasons))


def _few_rows_by_tiles(
    spec: AttentionSpec, target: Target, hints: tuple[int | None, int | None, int | None]
) -> Choice:
    """Return the loop for many rows for a few: heads share its tiles, and keys are cut."""
    query_hint, group_hint, heads_hint = hints[0] or 1, hints[1], hints[2] or FEW_HEADS
    choice = choose_warp_specialised(spec, target)
    if packs(spec, query_hint, group_hint):
        choice = packing(choice)
    if cuts(spec, query_hint, group_hint, heads_hint):
        choice = cutting(choice)
    why = "tiles of many rows for few: a warp of 16 rows has no registers left beside its O"
    return dataclasses.replace(choice, reasons=(why, *choice.reasons))


def is_prefill(
    spec: AttentionSpec,
    target: Target,
    query_hint: int | None,
    group_hint: int | None = None,
) -> bool:
    """Return whether a cache is read by the main loop for many query rows.

    It is where queries are packed, since the other one has none of that, and from SHARED_ROWS on,
    or from PREFILL_ROWS on where heads share no tiles of warps.
    """
    if spec.kv_dtype is not None and "kv_dtype_many" not in target.cache_features:
        return False
    if MainLoop.WARP_SPECIALISED not in target.main_loops:
        return spec.varlen or (query_hint or 0) >= PREFILL_ROWS
    return spec.varlen or shared_rows(spec, query_hint, group_hint) >= SHARED_ROWS


def default_schedule(
    spec: AttentionSpec,
    target: Target,
    *,
    seqlen_hint: int | None = None,
    query_hint: int | None = None,
    group_hint: int | None = None,
    heads_hint: int | None = None,
) -> Schedule:
    """Return the schedule of `choose` alone."""
    return choose(
        spec,
        target,
        seqlen_hint=seqlen_hint,
        query_hint=query_hint,
        group_hint=group_hint,
        heads_hint=heads_hint,
    ).schedule


def candidates(spec: AttentionSpec, target: Target) -> tuple[Schedule, ...]:
    """Return every schedule that the target's lowering accepts for a spec, best first."""
    choice = choose(spec, target)
    return (choice.schedule, *(schedule for schedule, _ in choice.rejected))
