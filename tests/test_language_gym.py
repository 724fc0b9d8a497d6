"""Every mask and score function of the public package attn-gym, unchanged, against PyTorch.

Skipped where that package or PyTorch is not installed. What cannot be traced is listed with the
reason, so that the list in the documents stays true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from language_cxx import Compiled, compile_specs
from language_gym import MASKS, SCORES
from language_runs import is_right, is_supported, run

from fmhagen.explaining.key_runs import Place, key_runs, visible_keys
from fmhagen.expr.evaluate import evaluate
from fmhagen.expr.mods import MaskMod, ScoreMod
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS, Target

torch = pytest.importorskip("torch")
pytest.importorskip("attn_gym")

B, H, S = 2, 4, 64
PLACE = Place(b=1, h=3, seqlen_q=S, seqlen_k=S)


def mapped(function: Callable[..., Any], *leading: Any) -> Any:
    """Apply a function of positions as FlexAttention does: one position at a time, by vmap."""
    rows, keys = torch.arange(S), torch.arange(S)
    over_keys = torch.vmap(function, in_dims=(*((0,) * len(leading)), None, None, None, 0))
    over_rows = torch.vmap(over_keys, in_dims=(*((0,) * len(leading)), None, None, 0, None))
    return over_rows(*leading, torch.tensor(PLACE.b), torch.tensor(PLACE.h), rows, keys)


def numpy_of(bound: Any) -> dict[str, Any]:
    return {name: np.asarray(tensor) for name, tensor in bound.items()}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compiled]:
    specs = {name: AttentionSpec(mask_mod=MaskMod(make())) for name, make in MASKS.items()}
    specs |= {name: AttentionSpec(score_mod=ScoreMod(make())) for name, make in SCORES.items()}
    return compile_specs(specs, tmp_path_factory.mktemp("gym"))


@pytest.mark.parametrize("name", list(MASKS))
def test_masks(compiled: dict[str, Compiled], name: str) -> None:
    function = MASKS[name]()
    mask = MaskMod(function)
    spec = AttentionSpec(mask_mod=mask)
    want = mapped(function).numpy()
    params = numpy_of(mask.bound)
    seen = visible_keys(spec, PLACE, params)
    np.testing.assert_array_equal(seen, want)
    for m_first in range(0, S, 16):
        runs = key_runs(spec, PLACE, m_first, tile_m=16, tile_n=8, params=params)
        kinds = {tile: run.is_full for run in runs for tile in range(run.begin, run.end)}
        for tile in range(S // 8):
            part = want[m_first : m_first + 16, 8 * tile : 8 * tile + 8]
            assert tile in kinds or not part.any()
            assert kinds.get(tile) is not True or part.all()
    rows, keys = np.arange(S)[:, None], np.arange(S)[None, :]
    got = compiled[name].call("mask_mod", PLACE, params, rows, keys)
    np.testing.assert_array_equal(got != 0, want)


@pytest.mark.parametrize("name", list(SCORES))
def test_scores(compiled: dict[str, Compiled], name: str) -> None:
    function = SCORES[name]()
    mod = ScoreMod(function)
    score = torch.from_numpy(np.random.default_rng(0).standard_normal((S, S)).astype(np.float32))
    want = mapped(function, score).numpy()
    params = numpy_of(mod.bound)
    rows, keys = np.arange(S)[:, None], np.arange(S)[None, :]
    leaves = {**PLACE.leaves, "q_idx": rows, "kv_idx": keys, "score": score.numpy()}
    np.testing.assert_allclose(evaluate(mod.node, leaves, params), want, rtol=2e-5, atol=1e-5)
    got = compiled[name].call("score_mod", PLACE, params, score.numpy(), rows, keys)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)


def test_sorted_offsets_give_bounds_in_closed_form() -> None:
    from attn_gym.masks.document_mask import generate_packed_causal_doc_mask_mod

    offsets = torch.tensor([0, 10, 30, S], dtype=torch.int32)
    function = generate_packed_causal_doc_mask_mod(offsets)
    mask = MaskMod(function, non_decreasing=("offsets", "document_id"))
    spec = AttentionSpec(mask_mod=mask)
    from fmhagen.lowering.language import lower_language

    assert lower_language(spec).exact
    seen = visible_keys(spec, PLACE, numpy_of(mask.bound))
    np.testing.assert_array_equal(seen, mapped(function).numpy())


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("name", [*MASKS, *SCORES])
def test_on_the_emulator(target: Target, name: str) -> None:
    if name in MASKS:
        spec = AttentionSpec(head_dim=64, mask_mod=MaskMod(MASKS[name]()))
    else:
        spec = AttentionSpec(head_dim=64, score_mod=ScoreMod(SCORES[name]()))
    if not is_supported(spec, target):
        pytest.skip(f"{target.name} has no kernels for this yet")
    mod = spec.mask_mod if name in MASKS else spec.score_mod
    found = run(spec, target, S, S, numpy_of(mod.bound), heads=H)
    assert is_right(found), found
