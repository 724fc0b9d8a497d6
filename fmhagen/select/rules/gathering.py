"""Rules for caches in the warp-specialised loop whose rows lanes copy: small pages, 8 bits."""

from __future__ import annotations

import dataclasses

from fmhagen.expr.bands import bounds_of
from fmhagen.formula import mask_of, score_of
from fmhagen.schedule import Copy, Schedule
from fmhagen.select.choice import Choice
from fmhagen.spec import AttentionSpec, CacheScale

GATHER_ROWS = 16  # of a page's pieces, below which lanes copy

_SPARED = "four warps that find addresses have registers that the others can spare"

# A thread, of the producer and of two consumers: no kernel of ours spills.
_REGISTERS = (72, 216)
_WIDENING_REGISTERS = (88, 208)


def gathers(spec: AttentionSpec) -> bool:
    """Return whether pages have too small pieces in common with the tiles for the copy engine."""
    return spec.page_size is not None and spec.page_size % GATHER_ROWS != 0


def widens(spec: AttentionSpec) -> bool:
    """Return whether the numbers of a cache are widened on their way to the matrix instructions."""
    return spec.kv_dtype is not None


def widening(choice: Choice, spec: AttentionSpec) -> Choice:
    """Return a choice whose lanes copy and widen K and V.

    A tile of K and V of 8 bits lies in shared memory beside those that are widened.
    """
    wide_copies = max(spec.d, spec.dv) <= 192 or _has_factors(spec)
    registers = _WIDENING_REGISTERS if wide_copies else _REGISTERS
    why = "lanes widen K and V of 8 bits on their way into the tiles of the matrix instructions"
    return dataclasses.replace(
        choice,
        schedule=_by_lanes(choice.schedule, registers),
        reasons=(*choice.reasons, why, _SPARED),
        rejected=tuple(
            (_by_lanes(other, registers), why)
            for other, why in choice.rejected
            if other.consumers == 2
        ),
    )


def _has_factors(spec: AttentionSpec) -> bool:
    return spec.kv_scale == CacheScale.TOKEN


def less_keys_of_small(spec: AttentionSpec) -> int:
    """Return how many keys narrower a step of deep heads is than over a cache of 16 bits.

    A tile of 8 bits lies in shared memory beside those that are widened, and factors of keys, or
    what a row sees under a score function, take registers of the warps that compute.
    """
    score = score_of(spec)
    if max(spec.d, spec.dv) > 192:
        both_sides = not bounds_of(mask_of(spec)).right_only
        return 32 if _has_factors(spec) else 16 if both_sides and score is not None else 0
    by_place = score is not None and score.reads("q_idx", "kv_idx")
    return 32 if spec.dv <= 128 or (_has_factors(spec) and by_place) else 16


def gathering(choice: Choice, page_size: int) -> Choice:
    """Return a choice whose lanes copy K and V, in a producer warpgroup that has the registers."""

    why = f"lanes gather K and V: for the copy engine pages of {page_size} keys are many copies"
    return dataclasses.replace(
        choice,
        schedule=_by_lanes(choice.schedule),
        reasons=(*choice.reasons, why, _SPARED),
        rejected=(
            (choice.schedule, "a copy for every few keys"),
            *((_by_lanes(other), why) for other, why in choice.rejected if other.consumers == 2),
        ),
    )


def _by_lanes(schedule: Schedule, registers: tuple[int, int] = _REGISTERS) -> Schedule:
    producer, consumer = registers
    return dataclasses.replace(
        schedule,
        copy=Copy.GATHER,
        producer_registers=producer,
        consumer_registers=consumer,
    )
