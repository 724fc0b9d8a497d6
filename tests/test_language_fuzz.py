"""Random masks and expressions: bounds are sound, the text form and the C++ mean the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fmhagen.explaining.key_runs import Place, Walk
from fmhagen.expr import build
from fmhagen.expr.bands import MOST_BANDS, bounds_of
from fmhagen.expr.evaluate import evaluate
from fmhagen.expr.mods import MaskMod
from fmhagen.expr.nodes import Node, Parameter
from fmhagen.expr.text import from_text, to_text

SORTED = Parameter(name="sorted", dtype="i32", ndim=1, non_decreasing=True)
ANY = Parameter(name="any", dtype="i32", ndim=1)
PARAMS: dict[str, Any] = {
    "sorted": np.sort(np.random.default_rng(0).integers(0, 50, 60)),
    "any": np.random.default_rng(1).integers(-5, 60, 60),
}
CHECKS = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def numbers() -> st.SearchStrategy[Node]:
    q_idx, kv_idx = build.leaf("q_idx"), build.leaf("kv_idx")
    leaves = st.sampled_from(
        [
            q_idx,
            kv_idx,
            kv_idx,
            build.sub(q_idx, kv_idx),
            build.add(q_idx, kv_idx),
            build.leaf("h"),
            build.leaf("seqlen_k"),
            build.sub(build.leaf("seqlen_k"), build.leaf("seqlen_q")),
            build.load(SORTED, q_idx),
            build.load(SORTED, kv_idx),
            build.load(ANY, q_idx),
            build.load(ANY, build.leaf("b")),
        ]
    ) | st.integers(-20, 60).map(build.const)
    divisor = st.integers(1, 24).map(build.const)

    def more(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        return st.one_of(
            st.builds(build.add, inner, inner),
            st.builds(build.sub, inner, inner),
            st.builds(build.mul, inner, st.integers(-3, 3).map(build.const)),
            st.builds(build.floor_div, inner, divisor),
            st.builds(build.floor_mod, inner, divisor),
            st.builds(build.minimum, inner, inner),
            st.builds(build.maximum, inner, inner),
            st.builds(build.absolute, inner),
            st.builds(build.shr, inner, st.integers(0, 4).map(build.const)),
        )

    return st.recursive(leaves, more, max_leaves=4)


def conditions() -> st.SearchStrategy[Node]:
    number = numbers()
    atoms = st.one_of(
        st.builds(build.le, number, number),
        st.builds(build.lt, number, number),
        st.builds(build.eq, number, number),
        st.builds(build.ne, number, number),
        st.builds(build.le, st.just(build.leaf("kv_idx")), number),
        st.builds(build.le, number, st.just(build.leaf("kv_idx"))),
    )

    def more(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        return st.one_of(
            st.builds(build.and_, inner, inner),
            st.builds(build.or_, inner, inner),
            st.builds(build.not_, inner),
            st.builds(build.xor, inner, inner),
            st.builds(build.where, inner, inner, inner),
        )

    return st.recursive(atoms, more, max_leaves=5)


def seen_by(mask: Node, place: Place) -> Any:
    rows, keys = np.arange(place.seqlen_q)[:, None], np.arange(place.seqlen_k)[None, :]
    shown = evaluate(mask, {**place.leaves, "q_idx": rows, "kv_idx": keys}, PARAMS)
    return np.broadcast_to(shown, (place.seqlen_q, place.seqlen_k))


@CHECKS
@given(
    mask=conditions(),
    seqlen_q=st.integers(1, 40),
    seqlen_k=st.integers(1, 56),
    h=st.integers(0, 3),
    tile_m=st.sampled_from([1, 4, 16]),
    tile_n=st.sampled_from([4, 8, 16]),
)
def test_bounds_are_sound(
    mask: Node, seqlen_q: int, seqlen_k: int, h: int, tile_m: int, tile_n: int
) -> None:
    place = Place(b=1, h=h, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
    seen = seen_by(mask, place)
    bounds = bounds_of(mask)
    assert 1 <= len(bounds.bands) <= MOST_BANDS
    rows, keys = np.arange(seqlen_q)[:, None], np.arange(seqlen_k)[None, :]
    leaves = {**place.leaves, "q_idx": rows, "kv_idx": keys}
    union = np.zeros_like(seen)
    for band in bounds.bands:
        first, end = (
            np.broadcast_to(evaluate(node, leaves, PARAMS), (seqlen_q, 1))
            for node in (band.first, band.end)
        )
        for bound in (first, end):
            assert (np.diff(np.clip(bound[:, 0], 0, seqlen_k)) >= 0).all()
        union |= (first <= keys) & (keys < end)
    assert (union | ~seen).all(), "a visible key lies outside the bands"
    if bounds.rest is not None:
        union &= seen_by(bounds.rest, place)
    np.testing.assert_array_equal(union, seen)
    walk = Walk(bounds, place, tile_n, PARAMS)
    for m_first in range(0, seqlen_q, tile_m):
        m_last = min(m_first + tile_m, seqlen_q) - 1
        kinds = {
            tile: run.is_full
            for run in walk.runs(m_first, m_last)
            for tile in range(run.begin, run.end)
        }
        for tile in range(-(-seqlen_k // tile_n)):
            part = seen[m_first : m_last + 1, tile * tile_n : (tile + 1) * tile_n]
            if tile not in kinds:
                assert not part.any()
            elif kinds[tile]:
                assert part.all()
                assert part.shape[1] == tile_n


@CHECKS
@given(mask=conditions())
def test_text_reads_back_as_the_same_object(mask: Node) -> None:
    assert from_text(to_text(mask)) is mask
    assert MaskMod(mask) == MaskMod(str(MaskMod(mask)))
