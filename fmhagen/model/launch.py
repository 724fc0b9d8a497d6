"""A launch under the static model: tiles of different length, dealt to compute units in order."""

from __future__ import annotations

import heapq
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopClk:
    """Clocks of one key tile in the main loop.

    Attributes:
        matrix: of the matrix core, for one wave.
        together: of a turn of all waves of a SIMD, simulated.
        alone: of a turn of one wave that has the SIMD for itself, simulated.
    """

    matrix: float
    together: float
    alone: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a launch consists of.

    Attributes:
        waves: waves of a block.
        waves_per_simd: of these, on one SIMD.
        wave_rows: query rows of a wave.
        tile_n: keys of a key tile.
        before_clk, after_clk: clocks of a block before and after its main loop.
        mask_clk: clocks that masks add to a wave's rows, in all.
        compute_units, xcds: of the chip.
    """

    waves: int
    waves_per_simd: int
    wave_rows: int
    tile_n: int
    before_clk: float
    after_clk: float
    mask_clk: float
    compute_units: int
    xcds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A prediction.

    Attributes:
        clk: clocks of the launch.
        utilisation: share of all matrix cores' clocks that goes to key tiles a wave sees.
        useful: the same for visible scores alone: half of a causal tile on the diagonal is not.
    """

    clk: float
    utilisation: float
    useful: float


def predict_launch(
    loop: LoopClk,
    shape: Shape,
    *,
    heads: int,
    seqlen_q: int,
    seqlen_k: int,
    causal: bool,
) -> Launch:
    """Deal the tiles of `heads` heads and add up.

    Blocks go to the XCDs in turn and wait there for the first free compute unit. All tiles of a
    head go to one XCD: one head after another, or, if they differ in length, the longest tiles of
    all its heads first.
    """
    rows = shape.waves * shape.wave_rows
    tiles = -(-seqlen_q // rows)
    offset = seqlen_k - seqlen_q
    seen = 0
    scores = 0
    lengths = []
    for tile in reversed(range(tiles)):
        counts = []
        for wave in range(shape.waves):
            first = tile * rows + wave * shape.wave_rows
            last = min(first + shape.wave_rows, seqlen_q)
            if first >= seqlen_q:
                counts.append(0)
                continue
            keys = min(max(last + offset, 0), seqlen_k) if causal else seqlen_k
            counts.append(-(-keys // shape.tile_n))
            scores += sum(
                min(max(m + offset + 1, 0), seqlen_k) if causal else seqlen_k
                for m in range(first, last)
            )
        seen += sum(counts)
        lengths.append(_block_clk(loop, shape, counts, causal=causal))
    clk = _deal(lengths, heads, shape)
    simds = shape.waves // shape.waves_per_simd
    capacity = clk * shape.compute_units * simds
    per_score = loop.matrix / (shape.wave_rows * shape.tile_n)
    return Launch(
        clk=clk,
        utilisation=heads * seen * loop.matrix / capacity,
        useful=heads * scores * per_score / capacity,
    )


def _block_clk(loop: LoopClk, shape: Shape, counts: list[int], *, causal: bool) -> float:
    """Return a block's clocks: the SIMD whose waves have the most to do decides."""
    simds = shape.waves // shape.waves_per_simd
    longest = 0.0
    for simd in range(simds):
        mine = sorted(counts[simd::simds])
        # The waves run together until the shorter one is done.
        clk = mine[0] * loop.together
        if len(mine) > 1:
            clk += (mine[-1] - mine[0]) * loop.alone
        longest = max(longest, clk + (shape.mask_clk * len(mine) if causal else 0.0))
    return shape.before_clk + longest + shape.after_clk


def _deal(lengths: list[float], heads: int, shape: Shape) -> float:
    """Return when the last compute unit is done."""
    finish = 0.0
    units = shape.compute_units // shape.xcds
    for xcd in range(shape.xcds):
        free = [0.0] * units
        mine = len(range(xcd, heads, shape.xcds))
        for length in sorted(lengths * mine, reverse=True):
            heapq.heappush(free, heapq.heappop(free) + length)
        finish = max(finish, *free)
    return finish
