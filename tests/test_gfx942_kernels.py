"""The gfx942 forward kernels, run lane by lane: numbers, bounds, races and bank conflicts."""

import itertools
import mmap

import ml_dtypes
import numpy as np
import pytest
from gfx942_runs import Sizes, emulate, plan_of, plans, small_plan

from fmhagen.runtime.emulator import Checks
from fmhagen.spec import AttentionSpec

SPECS = tuple(
    AttentionSpec(dtype=dtype, head_dim=head_dim, causal=causal)
    for dtype, head_dim, causal in itertools.product(("bf16", "fp16"), (64, 128), (False, True))
)
AWKWARD = (
    Sizes(seqlen_q=1, seqlen_k=1),
    Sizes(heads=2, seqlen_q=33, seqlen_k=0),
    Sizes(heads=3, heads_kv=3, seqlen_q=5, seqlen_k=257),
    Sizes(batch=2, heads=2, seqlen_q=257, seqlen_k=63),
    Sizes(heads=2, heads_kv=2, seqlen_q=128, seqlen_k=128),
)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_awkward_sizes(spec: AttentionSpec) -> None:
    for plan in plans(spec):
        for seed, sizes in enumerate(AWKWARD):
            outcome = emulate(plan, sizes, seed=seed)
            assert outcome.is_right, f"{plan.symbol} {sizes}: {outcome.worst}"
            assert outcome.report.extra_wavefronts == 0, outcome.report.banks


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("blocks", [1, 3, None])
def test_heads_and_tiles_are_each_computed_once(causal: bool, blocks: int | None) -> None:
    # 10 heads: one for each XCD, and two whose tiles are dealt to all.
    sizes = Sizes(batch=2, heads=5, heads_kv=1, seqlen_q=300, seqlen_k=70)
    plan = small_plan(AttentionSpec(head_dim=64, causal=causal))
    outcome = emulate(plan, sizes, blocks=blocks)
    assert outcome.is_right, outcome.worst


@pytest.mark.parametrize(("rows", "keys"), [(200, 90), (90, 200)])
def test_top_left_anchor(rows: int, keys: int) -> None:
    spec = AttentionSpec(head_dim=64, causal=True, anchor="top_left")
    outcome = emulate(small_plan(spec), Sizes(seqlen_q=rows, seqlen_k=keys))
    assert outcome.is_right, outcome.worst


@pytest.mark.parametrize("causal", [False, True])
def test_rows_that_see_nothing(causal: bool) -> None:
    keys = 40 if causal else 0
    spec = AttentionSpec(head_dim=64, causal=causal)
    outcome = emulate(small_plan(spec), Sizes(seqlen_q=170, seqlen_k=keys))
    assert outcome.is_right, outcome.worst
    assert np.all(outcome.lse[..., :130] == -np.inf)
    assert np.all(outcome.o[:, :130] == 0.0)


@pytest.mark.parametrize("magnitude", [0.01, 6.0])
@pytest.mark.parametrize("rescale", ["always", "on_growth"])
def test_references_move(magnitude: float, rescale: str) -> None:
    spec = AttentionSpec(dtype="fp16", head_dim=64)
    plan = plan_of(spec, tile_m=128, tile_n=64, consumers=4, rescale=rescale)
    outcome = emulate(plan, Sizes(seqlen_q=100, seqlen_k=500), magnitude=magnitude, scale=0.5)
    assert outcome.is_right, outcome.worst


def test_scale_of_zero_gives_the_mean() -> None:
    plan = small_plan(AttentionSpec(head_dim=64, causal=True))
    outcome = emulate(plan, Sizes(seqlen_q=70, seqlen_k=150), scale=0.0)
    assert outcome.is_right, outcome.worst


def test_lse_is_optional() -> None:
    plan = small_plan(AttentionSpec(head_dim=64))
    outcome = emulate(plan, Sizes(seqlen_q=70, seqlen_k=150), want_lse=False)
    assert outcome.is_right, outcome.worst


def test_expanded_keys_have_stride_zero() -> None:
    plan = small_plan(AttentionSpec(head_dim=64))
    rng = np.random.default_rng(0)
    q, row = (
        rng.standard_normal((1, length, 1, 64)).astype(ml_dtypes.bfloat16) for length in (40, 1)
    )
    k = np.broadcast_to(row, (1, 100, 1, 64))
    outcome = emulate(plan, Sizes(seqlen_q=40, seqlen_k=100), tensors=(q, k, k))
    assert outcome.is_right, outcome.worst


def test_offsets_beyond_32_bits() -> None:
    plan = small_plan(AttentionSpec(head_dim=64, causal=True))
    head_stride = 2**31 + 64  # elements
    no_reserve = 0x4000
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    memory = mmap.mmap(-1, 2 * (head_stride + 100 * 64), flags=flags)
    far = np.frombuffer(memory, np.uint16).view(ml_dtypes.bfloat16)
    k = np.lib.stride_tricks.as_strided(
        far, (1, 100, 2, 64), (0, 128, head_stride * 2, 2), writeable=True
    )
    rng = np.random.default_rng(1)
    k[...] = rng.standard_normal(k.shape).astype(k.dtype)
    q = rng.standard_normal((1, 60, 2, 64)).astype(k.dtype)
    v = rng.standard_normal((1, 100, 2, 64)).astype(k.dtype)
    sizes = Sizes(heads=2, heads_kv=2, seqlen_q=60, seqlen_k=100)
    outcome = emulate(plan, sizes, tensors=(q, k, v))
    assert outcome.is_right, outcome.worst


def test_the_seed_changes_nothing_but_the_order() -> None:
    plan = small_plan(AttentionSpec(head_dim=64, causal=True))
    sizes = Sizes(heads=2, seqlen_q=130, seqlen_k=200)
    rng = np.random.default_rng(2)
    tensors = tuple(
        rng.standard_normal((1, length, heads, 64)).astype(ml_dtypes.bfloat16)
        for length, heads in ((130, 2), (200, 1), (200, 1))
    )
    outcomes = [emulate(plan, sizes, seed=seed, tensors=tensors) for seed in range(20)]
    outcomes.append(emulate(plan, sizes, tensors=tensors, checks=Checks.NONE))
    for outcome in outcomes:
        assert outcome.is_right, outcome.worst
        assert np.array_equal(outcome.o, outcomes[0].o)
        assert np.array_equal(outcome.lse, outcomes[0].lse)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    plan = small_plan(AttentionSpec(head_dim=64))
    rng = np.random.default_rng(3)
    q, k, v = (
        rng.standard_normal((1, length, 1, 64)).astype(ml_dtypes.bfloat16) * factor
        for length, factor in ((64, 4), (300, 4), (300, 1))
    )
    q, k, v = (tensor.astype(ml_dtypes.bfloat16) for tensor in (q, k, v))
    whole = emulate(plan, Sizes(seqlen_q=64, seqlen_k=300), tensors=(q, k, v))
    alone = emulate(plan, Sizes(seqlen_q=1, seqlen_k=300), tensors=(q[:, 7:8].copy(), k, v))
    assert np.array_equal(whole.o[:, 7:8], alone.o)
