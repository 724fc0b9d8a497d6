"""Rules for caches of small pages in the warp-specialised loop: lanes copy their rows."""

from __future__ import annotations

import dataclasses

from fmhagen.schedule import Copy, Schedule
from fmhagen.select.choice import Choice
from fmhagen.spec import AttentionSpec

GATHER_ROWS = 16  # of a page's pieces, below which lanes copy

_REGISTERS = (72, 216)  # a thread, of the producer and of two consumers: no kernel of ours spills


def gathers(spec: AttentionSpec) -> bool:
    """Return whether pages have too small pieces in common with the tiles for the copy engine."""
    return spec.page_size is not None and spec.page_size % GATHER_ROWS != 0


def gathering(choice: Choice, page_size: int) -> Choice:
    """Return a choice whose lanes copy K and V, in a producer warpgroup that has the registers."""

    def of(schedule: Schedule) -> Schedule:
        producer, consumer = _REGISTERS
        return dataclasses.replace(
            schedule,
            copy=Copy.GATHER,
            producer_registers=producer,
            consumer_registers=consumer,
        )

    why = f"lanes gather K and V: for the copy engine pages of {page_size} keys are many copies"
    registers = "four warps that find addresses have registers that the others can spare"
    return dataclasses.replace(
        choice,
        schedule=of(choice.schedule),
        reasons=(*choice.reasons, why, registers),
        rejected=(
            (choice.schedule, "a copy for every few keys"),
            *((of(other), why) for other, why in choice.rejected if other.consumers == 2),
        ),
    )
