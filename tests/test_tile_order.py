"""The order of unequal tiles, as `next_tile` of the ordered kernels deals them, in Python."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from fmhagen.explaining.key_runs import Place, key_runs
from fmhagen.instance import Instance
from fmhagen.lowering.warp_specialised_order import DEALT_ROUNDS, MOST_ROUNDS
from fmhagen.masks import documents
from fmhagen.runtime.checks import Problem
from fmhagen.runtime.dealing import choose_deal
from fmhagen.runtime.key_tiles import band_tiles
from fmhagen.spec import AttentionSpec
from fmhagen.targets import find_target

Loads = npt.NDArray[np.int64]


def dealt(costs: Loads, heads: int, section: int, blocks: int, shift: int) -> list[tuple[int, int]]:
    """Return (block, tile) of one batch entry, tiles counted by heads within rows of tiles."""
    order = sorted(range(len(costs)), key=lambda m: (-min(costs[m], 1023), -m))
    per_section = section * len(costs)
    rounds = -(-per_section // blocks)
    total = heads // section * rounds
    first = max(0, total - DEALT_ROUNDS) if total <= MOST_ROUNDS else total
    got, lanes, found = np.zeros(blocks, np.int64), np.arange(blocks), []
    for i in range(total):
        turns = lanes if i % rounds % 2 == 0 else blocks - 1 - lanes
        if i >= first:
            turns = np.argsort(np.argsort(got, kind="stable"), kind="stable")
        for block in range(blocks):
            rest = i % rounds * blocks + int(turns[block])
            if rest < per_section:
                m = order[rest // section]
                got[block] += min(costs[m], 1023)
                found.append((block, m * heads + i // rounds * section + rest % section))
        if i % rounds == rounds - 1:
            lanes = (lanes + shift) % blocks
    return found


@given(
    costs=st.lists(st.integers(4, 2000), min_size=1, max_size=40),
    heads=st.integers(1, 12),
    blocks=st.integers(1, 40),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_every_tile_is_dealt_once(
    costs: list[int], heads: int, blocks: int, data: st.DataObject
) -> None:
    section = data.draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    blocks = min(blocks, heads * len(costs))
    found = dealt(np.array(costs), heads, section, blocks, data.draw(st.integers(0, blocks - 1)))
    assert sorted(tile for _, tile in found) == list(range(heads * len(costs)))


def test_documents_are_balanced() -> None:
    """Eight unequal documents, 16 heads, 132 blocks: before, blocks were a fifth apart."""
    offsets = np.array([0, 700, 1900, 2100, 5200, 9000, 9100, 13000, 16384], np.int32)
    for causal in (False, True):
        mask = documents(offsets)
        spec = AttentionSpec(causal=causal, mask_mod=mask)
        assert spec.mask_mod is not None
        place = Place(seqlen_q=16384, seqlen_k=16384)
        costs = []
        for m_first in range(0, 16384, 128):
            runs = key_runs(
                spec, place, m_first, tile_m=128, tile_n=128, params=spec.mask_mod.bound
            )
            costs.append(4 + sum((run.end - run.begin) * (2 if run.is_full else 3) for run in runs))
        cost = np.array(costs)
        deal = choose_deal(
            steps=tuple(range(1, 129)), batch_heads=16, blocks=132, most_heads=4, l2_heads=2
        )
        loads = np.zeros(132)
        for block, tile in dealt(cost, 16, deal.heads_per_section, 132, deal.lane_shift):
            loads[block] += cost[tile // 16]
        assert loads.mean() / loads.max() > 0.94


def test_the_host_counts_the_key_tiles_of_a_window() -> None:
    """As the walk does, so that an even mask is dealt by what its tiles take."""
    for fields in ({"window_left": 299, "causal": True}, {"window_left": 5, "window_right": 400}):
        spec = AttentionSpec(**fields)
        plan = Instance.of(spec, find_target("sm90")).plan()
        assert not plan.sorted_tiles
        place = Place(seqlen_q=1000, seqlen_k=900)
        problem = Problem(batch=1, heads=1, heads_kv=1, seqlen_q=1000, seqlen_k=900)
        walked = []
        for m_first in range(0, 1000, 128):
            runs = key_runs(spec, place, m_first, tile_m=128, tile_n=plan.schedule.tile_n)
            walked.append(max(1, sum(run.end - run.begin for run in runs)))
        assert band_tiles(plan, problem) == tuple(walked)
