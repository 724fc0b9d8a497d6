"""Bounds in closed form against brute force: what tiles are visited, and which are masked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from language_cases import MASKS, MaskCase

from fmhagen.explaining.key_runs import Place, key_runs, visible_keys
from fmhagen.expr.bands import bounds_of
from fmhagen.expr.evaluate import evaluate
from fmhagen.formula import mask_of

PLACES = [
    Place(b=0, h=0, seqlen_q=100, seqlen_k=100),
    Place(b=1, h=2, seqlen_q=97, seqlen_k=97),
    Place(b=1, h=1, seqlen_q=33, seqlen_k=130),
    Place(b=0, h=1, seqlen_q=130, seqlen_k=41),
    Place(b=0, h=0, seqlen_q=1, seqlen_k=1),
    Place(b=1, h=0, seqlen_q=64, seqlen_k=128),
]
TILES = [(16, 16), (32, 16), (16, 32), (64, 24)]

every_mask = pytest.mark.parametrize("case", MASKS.values(), ids=list(MASKS))
every_place = pytest.mark.parametrize("place", PLACES, ids=str)


@every_mask
def test_has_the_expected_number_of_bands(case: MaskCase) -> None:
    bounds = bounds_of(mask_of(case.spec))
    assert len(bounds.bands) == case.bands
    if case.tight:
        assert bounds.rest is None


@every_mask
@every_place
def test_bounds_never_fall(case: MaskCase, place: Place) -> None:
    for band in bounds_of(mask_of(case.spec)).bands:
        for node in (band.first, band.end):
            leaves = {**place.leaves, "q_idx": np.arange(place.seqlen_q)}
            keys = np.broadcast_to(evaluate(node, leaves, case.params), (place.seqlen_q,))
            assert (np.diff(np.clip(keys, 0, place.seqlen_k)) >= 0).all()


@every_mask
@every_place
def test_bands_are_the_mask(case: MaskCase, place: Place) -> None:
    seen = visible_keys(case.spec, place, case.params)
    bounds = bounds_of(mask_of(case.spec))
    rows, keys = np.arange(place.seqlen_q)[:, None], np.arange(place.seqlen_k)[None, :]
    leaves = {**place.leaves, "q_idx": rows, "kv_idx": keys}
    union = np.zeros_like(seen)
    for band in bounds.bands:
        first = evaluate(band.first, leaves, case.params)
        end = evaluate(band.end, leaves, case.params)
        union |= (first <= keys) & (keys < end)
    assert (union >= seen).all()
    if bounds.rest is not None:
        union &= evaluate(bounds.rest, leaves, case.params)
    np.testing.assert_array_equal(union, seen)


@every_mask
@every_place
@pytest.mark.parametrize(("tile_m", "tile_n"), TILES)
def test_tiles_are_classified(case: MaskCase, place: Place, tile_m: int, tile_n: int) -> None:
    seen = visible_keys(case.spec, place, case.params)
    for m_first in range(0, place.seqlen_q, tile_m):
        runs = key_runs(case.spec, place, m_first, tile_m=tile_m, tile_n=tile_n, params=case.params)
        assert all(a.begin >= b.end for a, b in itertools.pairwise(runs))
        kinds = {tile: run.is_full for run in runs for tile in range(run.begin, run.end)}
        for tile in range(-(-place.seqlen_k // tile_n)):
            part = seen[m_first : m_first + tile_m, tile * tile_n : (tile + 1) * tile_n]
            is_whole = part.shape[1] == tile_n
            if tile not in kinds:
                assert not part.any(), (m_first, tile, "hidden")
            elif kinds[tile]:
                assert part.all(), (m_first, tile, "full")
                assert is_whole
            elif case.tight:
                assert part.any(), (m_first, tile, "visited though hidden")
                assert not (part.all() and is_whole), (m_first, tile, "masked though full")
