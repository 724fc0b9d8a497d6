"""The printed C++ against NumPy: masks, scores, bands and classes of tiles, without warnings."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from language_cases import MASKS, SCORES, MaskCase
from language_cxx import Compiled, compile_specs

from fmhagen.explaining.key_runs import Place, visible_keys
from fmhagen.expr.evaluate import evaluate
from fmhagen.expr.tiles import tile_class
from fmhagen.formula import mask_of, score_of
from fmhagen.spec import AttentionSpec

PLACES = [
    Place(b=0, h=0, seqlen_q=100, seqlen_k=100),
    Place(b=1, h=2, seqlen_q=33, seqlen_k=130),
    Place(b=1, h=1, seqlen_q=130, seqlen_k=41),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compiled]:
    specs = {name: case.spec for name, case in {**MASKS, **SCORES}.items()}
    return compile_specs(specs, tmp_path_factory.mktemp("language"))


@pytest.mark.parametrize("name", list(MASKS))
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_masks_and_bands(compiled: dict[str, Compiled], name: str, place: Place) -> None:
    case, functions = MASKS[name], compiled[name]
    rows, keys = np.arange(place.seqlen_q), np.arange(place.seqlen_k)
    if mask_of(case.spec) is None:
        assert functions.language.mask is None
    else:
        got = functions.call("mask_mod", place, case.params, rows[:, None], keys[None, :])
        np.testing.assert_array_equal(got != 0, visible_keys(case.spec, place, case.params))
    bounds = functions.language.bounds
    for j, band in enumerate(bounds.bands):
        for what, node in (("first", band.first), ("end", band.end)):
            got = functions.call(f"{what}_key_{j}", place, case.params, rows)
            want = evaluate(node, {**place.leaves, "q_idx": rows}, case.params)
            np.testing.assert_array_equal(got, np.broadcast_to(want, rows.shape))


@pytest.mark.parametrize("name", [n for n, c in MASKS.items() if not c.tight])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_classes_of_tiles(compiled: dict[str, Compiled], name: str, place: Place) -> None:
    case, functions = MASKS[name], compiled[name]
    rest = functions.language.bounds.rest
    if rest is None:
        assert functions.language.rest is None
        return
    m_first, n_first = np.arange(0, place.seqlen_q, 16)[:, None], np.arange(0, place.seqlen_k, 24)
    m_last = np.minimum(m_first + 15, place.seqlen_q - 1)
    n_last = np.minimum(n_first + 23, place.seqlen_k - 1)
    tile = {"m_first": m_first, "m_last": m_last, "n_first": n_first, "n_last": n_last}
    got = functions.call("rest_of_tile", place, case.params, *tile.values())
    want = evaluate(tile_class(rest), {**place.leaves, **tile}, case.params)
    np.testing.assert_array_equal(got, np.broadcast_to(want, got.shape))


@pytest.mark.parametrize("name", list(SCORES))
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_scores(compiled: dict[str, Compiled], name: str, place: Place) -> None:
    case: MaskCase = SCORES[name]
    rows, keys = np.arange(place.seqlen_q)[:, None], np.arange(place.seqlen_k)[None, :]
    score = np.random.default_rng(1).standard_normal((place.seqlen_q, place.seqlen_k)) * 3
    score = score.astype(np.float32)
    got = compiled[name].call("score_mod", place, case.params, score, rows, keys)
    node = score_of(case.spec)
    assert node is not None
    leaves = {**place.leaves, "q_idx": rows, "kv_idx": keys, "score": score}
    want: Any = np.broadcast_to(evaluate(node, leaves, _exact(case.params)), got.shape)
    np.testing.assert_allclose(got, want, rtol=3e-5, atol=1e-5)


def _exact(params: dict[str, Any]) -> dict[str, Any]:
    return {
        name: np.asarray(value, np.float64)
        if np.asarray(value).dtype == ml_dtypes.bfloat16
        else value
        for name, value in params.items()
    }


def test_a_spec_with_nothing_prints_one_band() -> None:
    from fmhagen.lowering.language import lower_language

    language = lower_language(AttentionSpec())
    assert [function.name for function in language.functions] == ["first_key_0", "end_key_0"]
    assert language.right_only
    assert language.fields == ()
