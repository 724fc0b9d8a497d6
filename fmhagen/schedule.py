"""Schedule: how a spec is tiled and ordered, with no word of text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fmhagen.records import Record


class MainLoop(StrEnum):
    """Which main loop a kernel has; each is a template part of its own."""

    WARP_SPECIALISED = "warp_specialised"
    WAVE_INTERLEAVED = "wave_interleaved"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Schedule(Record):
    """How one attention kernel is tiled and ordered.

    Attributes:
        main_loop: warp_specialised (a producer warp and consumer warpgroups) or wave_interleaved
            (every wave loads and computes).
        tile_m: query rows of one tile.
        tile_n: key columns of one step of the main loop.
        consumers: warpgroups (warp_specialised) or waves (wave_interleaved) that compute; the
            rows of a tile are dealt evenly to them.
        stages: depth of the ring of K and V tiles in shared memory.
        q_stages: buffers for Q tiles; 2 lets the next tile's Q load under this tile's work.
        persistent: one block a compute unit walks over the tiles; else one block a tile.
        conditional_rescale: rescale O only when a row maximum grew by more than a factor 2^8.
        producer_registers: registers a thread of the producer warpgroup keeps; 0 where none is.
        consumer_registers: registers a thread of a consumer warpgroup gets; 0 where not dealt.
    """

    main_loop: MainLoop
    tile_m: int
    tile_n: int
    consumers: int
    stages: int = 2
    q_stages: int = 1
    persistent: bool = False
    conditional_rescale: bool = True
    producer_registers: int = 0
    consumer_registers: int = 0
