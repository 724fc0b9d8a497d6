"""Choice of a schedule: a pure function of spec and target that gives its reasons."""

from __future__ import annotations

import dataclasses

from fmhagen.choice import Choice, fits
from fmhagen.lowering.warp_specialised_cache import may_pack
from fmhagen.rules.split_kv import choose_split_kv
from fmhagen.rules.split_kv_waves import choose_split_kv_waves
from fmhagen.rules.warp_specialised import choose_warp_specialised
from fmhagen.rules.waves import choose_wave_pipelined
from fmhagen.schedule import Copy, MainLoop, Schedule, shared_heads
from fmhagen.schedules import Row, find_row, shipped_rows
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target
from fmhagen.validate import check_support

PREFILL_ROWS = 65
"""Query rows of a sequence from which on a cache is read by tiles of many rows, whatever else.

Half a tile of 128 and one more.
"""

SHARED_ROWS = 32
"""The same of warp-specialised tiles: queries of heads that share them.

Measured on one H200, 32 sequences of 4096 keys, 32/8 heads: 32 rows a tile took 184 TFLOP/s to the
158 of tiles of 16 rows, 16 rows 92 to 155.
"""

PACKED_QUERIES = 512
"""Query rows from which on heads do not share tiles: there are whole tiles of each."""

FULL_ROWS = 128
"""Rows of a tile of head_dim 128."""

LEAST_TILES = 33
"""Tiles of work below which a few rows are left to split_kv, which cuts the keys among all units.

A quarter of the units of an H200, as a unit does four times as much with full tiles.
"""


def choose(
    spec: AttentionSpec,
    target: Target,
    *,
    seqlen_hint: int | None = None,
    query_hint: int | None = None,
    group_hint: int | None = None,
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
        rows: the table; None means the shipped one, () the rules alone.

    Raises:
        UnsupportedSpecError: the target does not support the spec.
    """
    by_rules = _choose_by_rules(spec, target, query_hint, group_hint)
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


def _choose_by_rules(
    spec: AttentionSpec, target: Target, query_hint: int | None, group_hint: int | None
) -> Choice:
    check_support(spec, target)
    table = {
        MainLoop.WARP_SPECIALISED: choose_warp_specialised,
        MainLoop.WAVE_PIPELINED: choose_wave_pipelined,
    }
    if spec.kv_cache and not is_prefill(spec, target, query_hint, group_hint):
        is_direct = target.cache_copies == (Copy.DIRECT,)
        return (choose_split_kv_waves if is_direct else choose_split_kv)(spec, target)
    choice = table[MainLoop(target.main_loops[0])](spec, target)
    if not spec.kv_cache:
        return choice
    by_warps = choice.schedule.main_loop == MainLoop.WARP_SPECIALISED
    why = "packed queries over a cache" if spec.varlen else "many query rows"
    who = "warps of their own copy" if by_warps else "all waves copy"
    why = f"{why}: tiles of many rows, whose K and V {who} from the cache"
    choice = dataclasses.replace(choice, reasons=(why, *choice.reasons))
    return _packed(choice) if by_warps and _packs(spec, query_hint, group_hint) else choice


def _packs(spec: AttentionSpec, query_hint: int | None, group_hint: int | None) -> bool:
    """Return whether heads of a group share tiles, so that a few queries fill one."""
    few = query_hint is not None and query_hint < PACKED_QUERIES
    return few and group_hint != 1 and may_pack(spec)


def _packed(choice: Choice) -> Choice:
    def pack(schedule: Schedule) -> Schedule:
        return dataclasses.replace(schedule, pack_heads=True)

    why = f"heads of a group share tiles: fewer than {PACKED_QUERIES} query rows leave some empty"
    return dataclasses.replace(
        choice,
        schedule=pack(choice.schedule),
        reasons=(*choice.reasons, why),
        rejected=(
            (choice.schedule, "tiles of one head, which a few queries do not fill"),
            *((pack(other), reason) for other, reason in choice.rejected),
        ),
    )


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
    if spec.kv_dtype is not None:
        return False
    if MainLoop.WARP_SPECIALISED not in target.main_loops:
        return spec.varlen or (query_hint or 0) >= PREFILL_ROWS
    shared = shared_heads(group_hint or 1) if may_pack(spec) else 1
    return spec.varlen or (query_hint or 0) * shared >= SHARED_ROWS


def class_of_rows(rows: int, group: int, heads: int) -> int | None:
    """Return the query_hint of a call with query rows: one of a few, so that calls share kernels.

    Args:
        rows: the most query rows of a sequence.
        group: query heads of a key/value head that may share tiles.
        heads: query heads of all sequences together.
    """
    for least in (PACKED_QUERIES, PREFILL_ROWS):
        if rows >= least:
            return least
    shared = shared_heads(group)
    tiles = heads // shared * -(-rows * shared // FULL_ROWS)
    return SHARED_ROWS if rows * shared >= SHARED_ROWS and tiles >= LEAST_TILES else None


def default_schedule(
    spec: AttentionSpec,
    target: Target,
    *,
    seqlen_hint: int | None = None,
    query_hint: int | None = None,
    group_hint: int | None = None,
) -> Schedule:
    """Return the schedule of `choose` alone."""
    return choose(
        spec, target, seqlen_hint=seqlen_hint, query_hint=query_hint, group_hint=group_hint
    ).schedule


def candidates(spec: AttentionSpec, target: Target) -> tuple[Schedule, ...]:
    """Return every schedule that the target's lowering accepts for a spec, best first."""
    choice = choose(spec, target)
    return (choice.schedule, *(schedule for schedule, _ in choice.rejected))
