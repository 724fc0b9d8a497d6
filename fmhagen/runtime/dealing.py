"""Dealing: which tiles of a causal kernel a persistent block gets, so that all blocks end together.

The order itself is closed-form and stands in the emitted file (`next_tile`): within a section of
heads the longest tiles are dealt first, forwards and backwards in turn, and the blocks change
places from section to section. What is chosen here, once for each shape, are its two numbers: how
many heads a section has, and by how much the blocks move on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

TILE_OVERHEAD_STEPS = 2.0
"""What a tile costs besides its steps (load of Q, first softmax, store of O), in steps."""
MOST_SIMULATED = 2**22
MOST_SECTIONS = 256
GOOD_BALANCE = 0.985


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """The numbers of one dealing.

    Attributes:
        heads_per_section: heads whose tiles are dealt together; divides B * H.
        lane_shift: by how many places the blocks move on from one section to the next.
        balance: mean over largest work of a block, by the model; 1 is perfect.
    """

    heads_per_section: int
    lane_shift: int
    balance: float


def choose_deal(
    *, steps: tuple[int, ...], batch_heads: int, blocks: int, most_heads: int, l2_heads: int
) -> Deal:
    """Choose the section and the shift that balance the blocks best.

    Args:
        steps: key tiles of each query tile of one head, first rows first.
        batch_heads: B * H.
        blocks: blocks of the grid.
        most_heads: heads whose K and V may be in flight together, at least 1.
        l2_heads: heads whose K and V fit well in L2; larger sections are taken only for balance.

    Returns:
        The first deal, by size from `l2_heads` down and then up, that is balanced well, else the
        best.
    """
    best: Deal | None = None
    for heads in _sections(batch_heads, most_heads, l2_heads):
        tiles = heads * len(steps)
        if tiles > MOST_SIMULATED:
            return best or Deal(heads_per_section=heads, lane_shift=tiles % blocks, balance=1.0)
        work = _section_work(steps, heads, blocks)
        for shift in dict.fromkeys((tiles % blocks, round(blocks * 0.382), 1, blocks // 2)):
            balance = _balance(work, batch_heads // heads, shift % blocks)
            if best is None or balance > best.balance:
                best = Deal(heads_per_section=heads, lane_shift=shift % blocks, balance=balance)
        if best is not None and best.balance >= GOOD_BALANCE:
            return best
    assert best is not None  # there is always a section of one head
    return best


def _sections(batch_heads: int, most_heads: int, l2_heads: int) -> Iterator[int]:
    """Yield the divisors of B * H that may be a section, the preferred ones first."""
    small = [n for n in range(1, math.isqrt(batch_heads) + 1) if batch_heads % n == 0]
    divisors = sorted({*small, *(batch_heads // n for n in small)})
    fitting = [n for n in divisors if n <= max(1, l2_heads)]
    yield from fitting[-4:][::-1]
    yield from (n for n in divisors if max(1, l2_heads) < n <= max(1, most_heads))


def _section_work(steps: tuple[int, ...], heads: int, blocks: int) -> list[float]:
    """Return the work of each lane in one section."""
    work = [0.0] * blocks
    place = 0
    forwards = True
    for count in reversed(steps):
        cost = count + TILE_OVERHEAD_STEPS
        for _ in range(heads):
            work[place if forwards else blocks - 1 - place] += cost
            place += 1
            if place == blocks:
                place, forwards = 0, not forwards
    return work


def _balance(work: list[float], sections: int, shift: int) -> float:
    """Return mean over largest work, when block b has lane b + section * shift in each section."""
    blocks = len(work)
    total = [0.0] * blocks
    counted = min(sections, MOST_SECTIONS)
    lane = 0
    for _ in range(counted):
        turned = work[lane:] + work[:lane]
        total = [a + b for a, b in zip(total, turned, strict=True)]
        lane = (lane + shift) % blocks
    largest = max(total)
    return sum(total) / blocks / largest if largest else 1.0
