"""The masks and scores of the library against their definitions, and against tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fmhagen
from fmhagen import masks, scores
from fmhagen.errors import InvalidSpecError
from fmhagen.explaining.key_runs import Place, key_runs, visible_keys
from fmhagen.expr.bands import bounds_of
from fmhagen.expr.evaluate import evaluate
from fmhagen.expr.mods import MaskMod
from fmhagen.spec import AttentionSpec

PLACE = Place(b=1, h=2, seqlen_q=70, seqlen_k=90)
M, N = np.arange(70)[:, None], np.arange(90)[None, :]
IDS = np.random.default_rng(0).integers(0, 4, 90).astype(np.int32)
DENSE = np.random.default_rng(1).integers(0, 2, (2, 1, 70, 90)).astype(bool)
OFFSETS = [0, 13, 13, 40, 90]
OF = np.searchsorted(OFFSETS, np.arange(90), "right")

MASKS: dict[str, tuple[MaskMod, Any, bool]] = {
    "causal": (masks.causal(), M >= N, True),
    "causal_bottom_right": (masks.causal("bottom_right"), M + 20 >= N, True),
    "window": (masks.sliding_window(9, 0), (N <= M) & (N >= M - 9), True),
    "window_left": (masks.sliding_window(9), N >= M - 9, True),
    "window_bottom_right": (
        masks.sliding_window(9, 3, "bottom_right"),
        (N <= M + 23) & (N >= M + 11),
        True,
    ),
    "sinks_and_window": (
        (masks.sink_tokens(3) | masks.sliding_window(9)) & masks.causal(),
        (N <= M) & ((N < 3) | (N >= M - 9)),
        True,
    ),
    "chunked": (masks.chunked(16), M // 16 == N // 16, True),
    "dilated": (masks.dilated(3), (M - N) % 3 == 0, False),
    "dilated_blocks": (masks.dilated_blocks(16, 2), (M // 16 - N // 16) % 2 == 0, True),
    "prefix": (masks.prefix_lm(11), (N < 11) | (N <= M), True),
    "prefixes": (masks.prefix_lm(np.array([3, 17], np.int32)), (N < 17) | (N <= M), True),
    "key_padding": (masks.key_padding([80, 55]), (N < 55) & (M >= 0), True),
    "document": (masks.document(IDS), IDS[M] == IDS[N], False),
    "documents_of_batches": (
        masks.document(np.stack([IDS, IDS[::-1]])),
        IDS[::-1][M] == IDS[::-1][N],
        False,
    ),
    "documents": (masks.documents(OFFSETS), OF[M] == OF[N], True),
    "causal_documents": (
        masks.documents(np.array(OFFSETS)) & masks.causal(),
        (OF[M] == OF[N]) & (N <= M),
        True,
    ),
    "dense": (masks.dense(DENSE), DENSE[1, 0], False),
    "not": (~masks.causal(), N > M, True),
    "and_of_functions": (
        masks.and_masks(masks.causal(), lambda b, h, q, k: k != 5),
        (N <= M) & (N != 5),
        True,
    ),
    "or_of_functions": (
        masks.or_masks(lambda b, h, q, k: k == 5, masks.chunked(16)),
        (N == 5) | (M // 16 == N // 16),
        False,
    ),
    "and_of_nothing": (masks.and_masks(), np.ones((70, 90), bool), True),
    "or_of_nothing": (masks.or_masks(), np.zeros((70, 90), bool), True),
}


@pytest.mark.parametrize("name", list(MASKS))
def test_masks_mean_what_they_say(name: str) -> None:
    mask, expected, _ = MASKS[name]
    spec = AttentionSpec(mask_mod=mask)
    np.testing.assert_array_equal(
        visible_keys(spec, PLACE, mask.bound), np.broadcast_to(expected, (70, 90))
    )
    assert MaskMod(str(mask)) == mask


@pytest.mark.parametrize("name", list(MASKS))
def test_tiles_of_masks(name: str) -> None:
    mask, expected, is_tight = MASKS[name]
    seen = np.broadcast_to(expected, (70, 90))
    for m_first in range(0, 70, 16):
        runs = key_runs(
            AttentionSpec(mask_mod=mask), PLACE, m_first, tile_m=16, tile_n=16, params=mask.bound
        )
        kinds = {tile: run.is_full for run in runs for tile in range(run.begin, run.end)}
        for tile in range(6):
            part = seen[m_first : m_first + 16, 16 * tile : 16 * tile + 16]
            if not is_tight:
                assert kinds.get(tile) is not True or part.all()
                assert tile in kinds or not part.any()
            elif part.shape[1] == 16:
                wanted = None if not part.any() else bool(part.all())
                assert kinds.get(tile) is wanted, (m_first, tile)


def test_documents_need_no_mask_inside_and_one_band() -> None:
    bounds = bounds_of((masks.documents(OFFSETS) & masks.causal()).node)
    assert bounds.exact


def score_of(mod: Any, score: Any) -> Any:
    leaves = {**PLACE.leaves, "q_idx": M, "kv_idx": N, "score": score}
    return evaluate(mod.node, leaves, mod.bound)


def test_scores_mean_what_they_say() -> None:
    generator = np.random.default_rng(2)
    score = generator.standard_normal((70, 90))
    slopes = np.array(scores.alibi_slopes(3))
    table = generator.standard_normal((3, 21))
    bias = generator.standard_normal((70, 90))
    np.testing.assert_allclose(score_of(scores.soft_cap(2), score), 2 * np.tanh(score / 2))
    np.testing.assert_allclose(score_of(scores.alibi(slopes), score), score + slopes[2] * (N - M))
    both = np.stack([slopes, 2 * slopes])
    np.testing.assert_allclose(score_of(scores.alibi(both), score), score + 2 * slopes[2] * (N - M))
    np.testing.assert_allclose(
        score_of(scores.relative_bias(table), score),
        score + table[2, np.clip(N - M, -10, 10) + 10],
    )
    np.testing.assert_allclose(score_of(scores.temperature(slopes), score), score * slopes[2])
    for shaped in (bias, bias[None], bias[None, None]):
        np.testing.assert_allclose(score_of(scores.additive(shaped), score), score + bias)
    chain = scores.soft_cap(2).then(scores.alibi(slopes))
    np.testing.assert_allclose(score_of(chain, score), 2 * np.tanh(score / 2) + slopes[2] * (N - M))


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (8, [2.0**-i for i in range(1, 9)]),
        (12, [2.0**-i for i in range(1, 9)] + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]),
        (3, [2**-4, 2**-8, 2**-2]),
    ],
)
def test_slopes_of_any_number_of_heads(heads: int, expected: list[float]) -> None:
    np.testing.assert_allclose(scores.alibi_slopes(heads), expected)
    assert len(scores.alibi_slopes(71)) == 71


def test_masks_within_functions() -> None:
    prefix = masks.prefix_lm(np.array([3, 17], np.int32))
    mod = MaskMod(lambda b, h, q, k: prefix(b, h, q, k + 1) & (k != 2))
    assert set(mod.bound) == {"prefix_length"}
    seen = visible_keys(AttentionSpec(mask_mod=mod), PLACE, mod.bound)
    np.testing.assert_array_equal(seen, ((N + 1 < 17) | (N + 1 <= M)) & (N != 2))


def test_two_tensors_need_two_names() -> None:
    one, other = np.zeros(90, np.int32), np.ones(90, np.int32)
    with pytest.raises(InvalidSpecError, match="two functions capture different tensors"):
        masks.document(one) & masks.document(other)
    both = masks.document(one) & masks.document(other, name="other")
    assert set(both.bound) == {"document_id", "other"}
    assert masks.document(one) & masks.document(one) == masks.document(one)


@pytest.mark.parametrize(
    "make",
    [
        lambda: masks.sliding_window(-1),
        lambda: masks.chunked(0),
        lambda: masks.causal("left"),
        lambda: masks.documents([1, 2]),
        lambda: masks.documents([0, 4, 2]),
        lambda: masks.dense(np.zeros((1, 1, 1, 2, 2), bool)),
        lambda: masks.document(np.zeros(3, np.complex64)),
        lambda: scores.soft_cap(0),
        lambda: scores.alibi_slopes(0),
        lambda: scores.relative_bias(np.zeros((2, 4))),
        lambda: scores.additive(np.zeros(4)),
    ],
)
def test_what_has_no_meaning_is_refused(make: Any) -> None:
    with pytest.raises(InvalidSpecError):
        make()


def test_they_are_public() -> None:
    assert fmhagen.masks.causal() == masks.causal()
    assert fmhagen.scores.soft_cap(3.0) == scores.soft_cap(3.0)
