"""Key runs: which key tiles a tile of work visits, and how; what the kernels compute in registers.

This is the walk of the emitted kernels in Python, over the same bounds, for tests, explanations
and pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fmhagen.expr.bands import Bounds, bounds_of
from fmhagen.expr.evaluate import evaluate
from fmhagen.expr.nodes import Node
from fmhagen.expr.tiles import FULLY, HIDDEN, PARTLY, tile_class
from fmhagen.formula import is_mapped, mask_of
from fmhagen.spec import AttentionSpec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tile of work lies.

    Attributes:
        b: batch.
        h: query head.
        seqlen_q: query rows of its sequence.
        seqlen_k: keys of its sequence.
    """

    b: int = 0
    h: int = 0
    seqlen_q: int
    seqlen_k: int

    @property
    def leaves(self) -> dict[str, int]:
        """The same by the names that expressions have for them."""
        return {
            "b": self.b,
            "h": self.h,
            "seqlen_q": self.seqlen_q,
            "seqlen_k": self.seqlen_k,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Key tiles [begin, end) that are visited in one way.

    Attributes:
        begin: the first.
        end: one past the last.
        is_full: every key of them is visible to every row.
    """

    begin: int
    end: int
    is_full: bool


def key_runs(
    spec: AttentionSpec,
    place: Place,
    m_first: int,
    *,
    tile_m: int,
    tile_n: int,
    params: Mapping[str, Any] | None = None,
) -> tuple[Run, ...]:
    """Return the key tiles that a tile of work visits, from the right to the left.

    Args:
        spec: the mask.
        place: where the tile lies.
        m_first: its first query row; below seqlen_q.
        tile_m: query rows of a tile.
        tile_n: keys of a key tile.
        params: what the mask reads at run time.
    """
    m_last = min(m_first + tile_m, place.seqlen_q) - 1
    mask = mask_of(spec)
    if is_mapped(spec):
        walk = Walk(bounds_of(None), place, tile_n, params or {}, asked=mask)
    else:
        walk = Walk(bounds_of(mask), place, tile_n, params or {})
    return tuple(walk.runs(m_first, m_last))


def visible_keys(
    spec: AttentionSpec, place: Place, params: Mapping[str, Any] | None = None
) -> npt.NDArray[np.bool_]:
    """Return which key each query row sees, as a (seqlen_q, seqlen_k) array.

    Args:
        spec: the mask.
        place: the head and the lengths.
        params: what the mask function reads, by name.
    """
    import numpy as np

    mask = mask_of(spec)
    shape = (place.seqlen_q, place.seqlen_k)
    if mask is None:
        return np.ones(shape, bool)
    rows, keys = np.arange(place.seqlen_q)[:, None], np.arange(place.seqlen_k)[None, :]
    leaves = {**place.leaves, "q_idx": rows, "kv_idx": keys}
    return np.array(np.broadcast_to(evaluate(mask, leaves, params), shape))


class Walk:
    """The walk over key tiles of one place."""

    def __init__(
        self,
        bounds: Bounds,
        place: Place,
        tile_n: int,
        params: Mapping[str, Any],
        *,
        asked: Node | None = None,
    ) -> None:
        """Take the bounds of a mask at a place, or a mask that is asked about all of each tile."""
        self._asked = asked
        self._bounds = bounds
        self._place = place
        self._tile_n = tile_n
        self._params = params
        self._leaves = place.leaves
        self._rest = None if bounds.rest is None else tile_class(bounds.rest)

    def _at(self, node: Any, row: int) -> int:
        key = int(evaluate(node, {**self._leaves, "q_idx": row}, self._params))
        return min(max(key, 0), self._place.seqlen_k)

    def _class(self, m_first: int, m_last: int, tile: int) -> int:
        """Return what the rest of the mask says of a tile."""
        n_first = tile * self._tile_n
        n_last = min(n_first + self._tile_n, self._place.seqlen_k) - 1
        if self._asked is not None:
            return self._answer(self._asked, (m_first, m_last), (n_first, n_last))
        if self._rest is None:
            return FULLY
        leaves = {"m_first": m_first, "m_last": m_last, "n_first": n_first, "n_last": n_last}
        return int(evaluate(self._rest, {**self._leaves, **leaves}, self._params))

    def _answer(self, mask: Node, rows: tuple[int, int], keys: tuple[int, int]) -> int:
        """Return the class of a tile by what its queries see, as a block map has it."""
        import numpy as np

        at = {
            "q_idx": np.arange(rows[0], rows[1] + 1)[:, None],
            "kv_idx": np.arange(keys[0], keys[1] + 1)[None, :],
        }
        visible = np.asarray(evaluate(mask, {**self._leaves, **at}, self._params))
        return FULLY if visible.all() else PARTLY if visible.any() else HIDDEN

    def _extents(self, m_first: int, m_last: int) -> list[tuple[int, int, int, int]]:
        """Return (a, z, fa, fz) of each band: it touches tiles [a, z) and fills [fa, fz)."""
        extents = []
        size, keys = self._tile_n, self._place.seqlen_k
        for band in self._bounds.bands:
            first, end = self._at(band.first, m_first), self._at(band.end, m_last)
            inner, stop = self._at(band.first, m_last), self._at(band.end, m_first)
            touched = (first // size, -(-end // size)) if first < end else (0, 0)
            # A tile that holds the end of the keys is never full: what is beyond must be hidden.
            filled = (-(-inner // size), min(stop, keys) // size)
            extents.append((*touched, *(filled if filled[0] < filled[1] else (0, 0))))
        return extents

    def runs(self, m_first: int, m_last: int) -> list[Run]:
        """Return the runs of the rows m_first..m_last, from the right to the left."""
        extents = self._extents(m_first, m_last)
        runs: list[Run] = []
        end = -(-self._place.seqlen_k // self._tile_n)
        while True:
            below = [min(z, end) - 1 for a, z, _, _ in extents if min(z, end) > a]
            if not below:
                return runs
            last = max(below)
            begin = max(edge for extent in extents for edge in (0, *extent) if edge <= last)
            is_full = any(fa <= last < fz for _, _, fa, fz in extents)
            self._add(runs, m_first, m_last, begin, last + 1, is_full=is_full)
            end = begin

    def _add(
        self, runs: list[Run], m_first: int, m_last: int, begin: int, end: int, *, is_full: bool
    ) -> None:
        """Add a run, in parts where the rest of the mask differs from tile to tile."""
        for tile in reversed(range(begin, end)):
            kind = self._class(m_first, m_last, tile)
            if kind == HIDDEN:
                continue
            full = is_full and kind != PARTLY
            if runs and runs[-1].begin == tile + 1 and runs[-1].is_full == full:
                runs[-1] = Run(begin=tile, end=runs[-1].end, is_full=full)
            else:
                runs.append(Run(begin=tile, end=tile + 1, is_full=full))


__all__ = ["FULLY", "HIDDEN", "PARTLY", "Place", "Run", "Walk", "key_runs", "visible_keys"]
