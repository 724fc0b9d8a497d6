"""Rules for query rows: how many are many, when heads share tiles of them, when keys are cut.

Figures are of one H200: 32 sequences of 4096 keys, 32 query and 8 key/value heads, pages of 16.
Tiles of 16 rows (split_kv) took 109 to 167 TFLOP/s whatever the rows, full tiles 646, those that
heads share 609.
"""

from __future__ import annotations

import dataclasses

from fmhagen.lowering.warp_specialised_cache import may_pack, may_split
from fmhagen.schedule import MainLoop, Schedule, shared_heads
from fmhagen.select.choice import Choice
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS

PREFILL_ROWS = 65
"""Query rows of a sequence from which on a cache is read by tiles of many rows, whatever else.

Half a tile of 128 and one more.
"""

SHARED_ROWS = 32
"""The same of queries of all heads that share a tile; 16 took 62 TFLOP/s to 65, 32 123 to 109."""

PARTS_ROWS = 64
"""The same where the keys of few tiles are cut into parts, so that all units have work.

One sequence of 16384 keys: 16 rows 28 us, tiles of 16 rows 37; of 2048 keys 12 to 13.
"""

FEW_HEADS = 1
"""The heads_hint of a call whose tiles leave units without work."""

PACKED_QUERIES = 512
"""Query rows from which on heads share no tiles; a hint of so many is one of whole tiles."""

MOST_PACKED_QUERIES = 1024  # beyond, tiles that are not full are few
FULL_ROWS = 128  # of a tile of head_dim 128
UNITS = TARGETS[0].compute_units
PACKED_RATE = 0.94  # of a shared tile to another
FULL_SHARE = 0.8  # of the units that tiles keep busy, from which on a cut gains nothing
SPLIT_RATE = 0.22  # of split_kv to full tiles on all units


def packs(spec: AttentionSpec, query_hint: int | None, group_hint: int | None) -> bool:
    """Return whether the heads of a group share tiles, so that a few queries fill one."""
    if query_hint is None or group_hint == 1 or not may_pack(spec):
        return False
    if spec.varlen:  # sequences of all lengths up to the hint
        return query_hint < PACKED_QUERIES
    packed = 1.0 if group_hint is None else _fill(query_hint * shared_heads(group_hint))
    return query_hint < MOST_PACKED_QUERIES and PACKED_RATE * packed > _fill(query_hint)


def packing(choice: Choice) -> Choice:
    """Return a choice whose heads share tiles, if its main loop can."""
    if choice.schedule.main_loop != MainLoop.WARP_SPECIALISED:
        return choice

    def pack(schedule: Schedule) -> Schedule:
        return dataclasses.replace(schedule, pack_heads=True)

    return dataclasses.replace(
        choice,
        schedule=pack(choice.schedule),
        reasons=(*choice.reasons, "heads of a group share tiles, which a few queries of each fill"),
        rejected=(
            (choice.schedule, "tiles of one head, which a few queries do not fill"),
            *((pack(other), reason) for other, reason in choice.rejected),
        ),
    )


def cuts(
    spec: AttentionSpec,
    query_hint: int | None,
    group_hint: int | None,
    heads_hint: int | None,
) -> bool:
    """Return whether keys are cut into parts, since there are few tiles; all hints must say so."""
    if query_hint is None or heads_hint is None or not may_split(spec):
        return False
    shared = shared_heads(group_hint or 1) if packs(spec, query_hint, group_hint) else 1
    return _leaves_units(_tiles(query_hint * shared) * max(1, heads_hint // shared))


def cutting(choice: Choice) -> Choice:
    """Return a choice whose keys are cut into parts, if its main loop can."""
    if choice.schedule.main_loop != MainLoop.WARP_SPECIALISED:
        return choice
    schedule = dataclasses.replace(choice.schedule, split_keys=True)
    why = "keys are cut into parts, which a second kernel adds up: there are few tiles"
    return dataclasses.replace(
        choice,
        schedule=schedule,
        reasons=(*choice.reasons, why),
        rejected=((choice.schedule, "tiles leave units without work"), *choice.rejected),
    )


def shared_rows(spec: AttentionSpec, query_hint: int | None, group_hint: int | None) -> int:
    """Return the rows of all heads that may share a tile."""
    shared = shared_heads(group_hint or 1) if may_pack(spec) else 1
    return (query_hint or 0) * shared


def class_of_rows(rows: int, group: int, heads: int) -> int | None:
    """Return the query_hint of a call over a cache: one of a few, so that calls share kernels.

    Args:
        rows: query rows of each sequence.
        group: query heads of a key/value head that may share tiles.
        heads: query heads of all sequences together.
    """
    shared = shared_heads(group)
    if rows * shared >= PARTS_ROWS and class_of_heads(rows, group, heads) is not None:
        if rows < PREFILL_ROWS:
            return SHARED_ROWS
        return PREFILL_ROWS if rows < MOST_PACKED_QUERIES else PACKED_QUERIES
    packed = PACKED_RATE * _fill(rows * shared) * _share(heads // shared * _tiles(rows * shared))
    if rows < PREFILL_ROWS:
        many = rows * shared >= SHARED_ROWS and packed > SPLIT_RATE * _fill(rows * group, 16)
        return SHARED_ROWS if many else None
    # Tiles of one head are dealt in pairs, since later ones may see more keys.
    alone = _fill(rows) * _share(heads * -(-_tiles(rows) // 2))
    return PREFILL_ROWS if rows < MOST_PACKED_QUERIES and packed > alone else PACKED_QUERIES


def class_of_heads(rows: int, group: int, heads: int) -> int | None:
    """Return the heads_hint of the same call; None where its tiles keep all units busy."""
    shared = shared_heads(group)
    tiles = heads // shared * _tiles(rows * shared)
    return FEW_HEADS if _leaves_units(tiles) else None


def class_of_packed_rows(most_rows: int | None) -> int | None:
    """Return the same of packed sequences, of the most rows of one; None where it is unknown."""
    if most_rows is None:
        return None
    return PREFILL_ROWS if most_rows < PACKED_QUERIES else PACKED_QUERIES


def _leaves_units(tiles: int) -> bool:
    """Return whether units are left without work for so long that a cut of the keys gains."""
    rounds = -(-tiles // UNITS)
    return 0 < tiles < 2 * UNITS and tiles < FULL_SHARE * rounds * UNITS


def _tiles(rows: int) -> int:
    return -(-rows // FULL_ROWS)


def _fill(rows: int, tile: int = FULL_ROWS) -> float:
    """Return how full tiles of so many rows are."""
    return rows / (-(-max(rows, 1) // tile) * tile)


def _share(units: int) -> float:
    """Return the share of the chip's units that have work."""
    return min(1.0, units / UNITS)
