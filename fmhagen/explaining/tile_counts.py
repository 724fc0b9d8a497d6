"""Tile counts: how many key tiles of a head are hidden, full and partly visible at some lengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fmhagen.errors import InvalidSpecError
from fmhagen.explaining.key_runs import Place, key_runs
from fmhagen.plan.attention import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class TileCounts:
    """How the key tiles of one head are visited.

    Attributes:
        place: the head, and the lengths.
        rows: query rows of a tile.
        keys: keys of a tile.
        hidden: tiles that are not visited.
        full: tiles without a mask.
        partly: tiles in which the mask is applied; the ends of sequences among them.
    """

    place: Place
    rows: int
    keys: int
    hidden: int
    full: int
    partly: int

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON-ready data."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """Return the counts as text, a line a kind."""
        whole = self.hidden + self.full + self.partly
        kinds = (
            (self.hidden, "hidden: not visited"),
            (self.full, "full: no mask"),
            (self.partly, "partly visible: masked"),
        )
        shares = (f"  {n:>8} ({100 * n / max(1, whole):.1f}%) {what}" for n, what in kinds)
        place = self.place
        title = (
            f"key tiles of head {place.h} at Sq = {place.seqlen_q}, Sk = {place.seqlen_k}:"
            f" {whole} of {self.rows} rows x {self.keys} keys"
        )
        return "\n".join((title, *shares))


def count_tiles(plan: Plan, place: Place, params: Mapping[str, Any] | None = None) -> TileCounts:
    """Count the tiles of one head, in the tiles that a kernel masks or leaves out as a whole.

    Args:
        plan: the kernel.
        place: the head, and the lengths; of packed sequences, of one of them.
        params: what the mask reads at run time.

    Raises:
        InvalidSpecError: the kernel is over a cache, whose tiles follow from how it is cut.
    """
    spec, schedule = plan.spec, plan.schedule
    if spec.kv_cache:
        limit = "tiles are not counted for a key/value cache: its keys are cut at run time"
        raise InvalidSpecError("seqlen_k", place.seqlen_k, limit, "leave the lengths out")
    in_waves = plan.slot_table is not None  # NOTE: each wave masks units of its own
    rows = schedule.tile_m // schedule.consumers if in_waves else schedule.tile_m
    keys = schedule.tile_n // 2 if in_waves else schedule.tile_n
    full = partly = 0
    for m_first in range(0, place.seqlen_q, rows):
        for run in key_runs(spec, place, m_first, tile_m=rows, tile_n=keys, params=params):
            tiles = run.end - run.begin
            full, partly = (full + tiles, partly) if run.is_full else (full, partly + tiles)
    whole = -(-place.seqlen_q // rows) * -(-place.seqlen_k // keys)
    return TileCounts(
        place=place,
        rows=rows,
        keys=keys,
        hidden=whole - full - partly,
        full=full,
        partly=partly,
    )
