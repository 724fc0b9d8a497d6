"""Rules for caches in the warp-specialised loop whose rows lanes copy: small pages, 8 bits."""

from __future__ import annotations

import dataclasses

from fmhagen.schedule import Copy, Schedule
from fmhagen.select.choice import Choice
from fmhagen.spec import AttentionSpec

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


def widening(choice: Choice) -> Choice:
    """Return a choice whose lanes copy and widen K and V.

    A tile of K and V of 8 bits lies in shared memory beside those that are widened.
    """
    why = "lanes widen K and V of 8 bits on their way into the tiles of the matrix instructions"
    return dataclasses.replace(
        choice,
        schedule=_by_lanes(choice.schedule, _WIDENING_REGISTERS),
        reasons=(*choice.reasons, why, _SPARED),
        rejected=tuple(
            (_by_lanes(other, _WIDENING_REGISTERS), why)
            for other, why in choice.rejected
            if other.consumers == 2
        ),
    )


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
