"""Timing: shuffled rounds, and how many calls make a sample."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ASSUMED_FLOPS_PER_S = 600e12  # to size a sample before anything is timed
SHORTEST_CALL_S = 5e-6
MAX_CALLS = 301


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timed window.

    Attributes:
        milliseconds: of one call in it.
        clock_mhz: the chip's clock in it, or None.
        watts: the chip's power in it, or None.
    """

    milliseconds: float
    clock_mhz: float | None = None
    watts: float | None = None


def calls_per_sample(flops: float, window_ms: float, input_sets: int) -> int:
    """Return how many calls fill a window: a multiple of the input sets, and one.

    The last call then has the first set of inputs, whose result is compared with float64.
    """
    seconds = max(flops / ASSUMED_FLOPS_PER_S, SHORTEST_CALL_S)
    calls = min(int(window_ms * 1e-3 / seconds), MAX_CALLS)
    return max(calls // input_sets, 1) * input_sets + 1


def interleave(
    names: Sequence[str],
    sample: Callable[[str], Sample],
    *,
    rounds: int,
    seed: int = 0,
    tell: Callable[[str], None] = lambda name: None,
) -> dict[str, list[Sample]]:
    """Take one sample of each name a round, in a new order each round, after an untimed round.

    Args:
        names: who is timed.
        sample: times one window of one of them.
        rounds: samples of each.
        seed: of the orders.
        tell: is called with a name before it is timed.
    """
    order = list(names)
    shuffle = random.Random(seed).shuffle
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        shuffle(order)
        for name in order:
            tell(name)
            taken = sample(name)
            if turn:
                samples[name].append(taken)
    return samples
