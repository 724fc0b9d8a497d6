"""Packed sequences and sinks in the gfx942 kernels, run lane by lane against float64."""

import dataclasses
import itertools

import numpy as np
import pytest
from gfx942_packed import Packed, emulate_packed

from fmhagen.emission import emit_source
from fmhagen.errors import EmulatorError
from fmhagen.lowering import lower
from fmhagen.plan.attention import Plan
from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import GFX942

LOOPS = ("wave_pipelined", "wave_ping_pong", "wave_interleaved")
MASKS = ({}, {"causal": True}, {"causal": True, "anchor": "top_left"})
UNEQUAL = Packed(heads=2, rows=(70, 0, 1, 200, 64, 3), keys=(70, 10, 0, 230, 100, 1))
HEADS = ((1, 1), (2, 1), (8, 2), (12, 3))  # of an XCD: an eighth, a quarter, one, one and a half


def packed_plan(loop: str, **fields: object) -> Plan:
    """Return an instance of two waves, the quickest to emulate, or of two groups of four."""
    spec = AttentionSpec(**{"head_dim": 64, "varlen": True, **fields})  # type: ignore[arg-type]
    waves, prefetch = {"wave_ping_pong": (8, 7), "wave_pipelined": (2, 7)}.get(loop, (2, 0))
    schedule = Schedule(
        main_loop=loop, tile_m=32 * waves, tile_n=64, consumers=waves, prefetch=prefetch
    )
    return lower(spec, schedule, GFX942)


@pytest.mark.parametrize("mask", MASKS, ids=("full", "causal", "top_left"))
@pytest.mark.parametrize("loop", LOOPS)
def test_unequal_sequences(loop: str, mask: dict[str, object]) -> None:
    for seed, (heads, unused) in enumerate(itertools.product(HEADS, (0, 5))):
        lengths = Packed(
            heads=heads[0],
            heads_kv=heads[1],
            rows=UNEQUAL.rows,
            keys=UNEQUAL.keys,
            unused=unused,
        )
        sink = seed % 2 == 1
        sinks = np.linspace(-3, 3, heads[0]).astype(np.float32) if sink else None
        plan = packed_plan(loop, sink=sink, **mask)
        outcome = emulate_packed(plan, lengths, sinks=sinks, seed=seed)
        assert outcome.is_right, f"{plan.symbol} {lengths}: {outcome.worst}"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("loop", LOOPS)
def test_more_sequences_than_lanes(loop: str, causal: bool) -> None:
    lengths = Packed(rows=tuple(range(1, 90)), keys=tuple(range(100, 11, -1)))
    outcome = emulate_packed(packed_plan(loop, causal=causal), lengths)
    assert outcome.is_right, outcome.worst


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_block_walks_over_tiles(loop: str, blocks: int) -> None:
    plan = packed_plan(loop, causal=True)
    for seed in range(4):
        outcome = emulate_packed(plan, UNEQUAL, blocks=blocks, seed=seed)
        assert outcome.is_right, outcome.worst


@pytest.mark.parametrize("loop", LOOPS)
def test_empty_batches(loop: str) -> None:
    plan = packed_plan(loop)
    for rows, keys in (((0, 0), (3, 0)), ((0, 70), (0, 0))):
        outcome = emulate_packed(plan, Packed(rows=rows, keys=keys), blocks=2)
        assert outcome.is_right, outcome.worst


@pytest.mark.parametrize("sink", [-np.inf, -1e30, -500.0, 0.0, 500.0, 1e30])
@pytest.mark.parametrize("loop", LOOPS)
def test_sinks_of_any_size(loop: str, sink: float) -> None:
    # Rows without a key have the sink alone; others may be far below it, or far above.
    plan = packed_plan(loop, sink=True, causal=True)
    lengths = Packed(rows=(100, 40), keys=(30, 150))
    outcome = emulate_packed(plan, lengths, sinks=np.array([sink], np.float32), magnitude=6.0)
    assert outcome.is_right, outcome.worst
    assert not np.isnan(outcome.o).any()


def test_a_row_too_many_is_found() -> None:
    # The bound of a sequence is that of its resource: one row more would meet the next sequence.
    plan = packed_plan("wave_pipelined")
    source = emit_source(plan)
    text = source.text.replace("tile.seqlen_k, HEAD_DIM", "tile.seqlen_k + 1, HEAD_DIM")
    assert text != source.text
    planted = dataclasses.replace(source, text=text)
    lengths = Packed(rows=(70, 64), keys=(65, 31), unused=4)
    for seed in range(4):
        try:
            found = not emulate_packed(plan, lengths, source=planted, seed=seed).is_right
        except EmulatorError as error:
            found = error.kind == "out_of_bounds"
        assert found
