"""Schedule: how a spec is tiled and ordered, with no word of text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from fmhagen.records import Record

COMBINE_THREADS = 256  # of a block that adds up the parts of `Schedule.split_keys`, a warp a row


class MainLoop(StrEnum):
    """Which main loop a kernel has; each is a template part of its own."""

    WARP_SPECIALISED = "warp_specialised"
    WAVE_INTERLEAVED = "wave_interleaved"
    WAVE_PIPELINED = "wave_pipelined"
    WAVE_PING_PONG = "wave_ping_pong"
    SPLIT_KV = "split_kv"


class Rescale(StrEnum):
    """When the running reference of the softmax moves, and O and l with it.

    `always`: to the row maximum in every step (the textbook form). `on_growth`: only when a row
    maximum is more than a factor 2^8 above it, so P stays below 2^8. `on_overflow`: no maximum is
    taken at all after a row's first key tile; the row sum of P tells when P grows too large, and
    a step whose P overflowed is computed again with its exact maximum.
    """

    ALWAYS = "always"
    ON_GROWTH = "on_growth"
    ON_OVERFLOW = "on_overflow"


class Copy(StrEnum):
    """How K and V of a cache reach the loop.

    Into shared memory in `bulk`, by the copy engine, or as a `gather` by lanes; or `direct`ly into
    the registers that matrix instructions read (split_kv alone).
    """

    BULK = "bulk"
    GATHER = "gather"
    DIRECT = "direct"


class Store(StrEnum):
    """How O leaves a block: `staged` through shared memory, or `direct` from registers."""

    STAGED = "staged"
    DIRECT = "direct"


class Matrix(StrEnum):
    """Matrix instruction of the loops of free waves, by its shape."""

    WIDE = "32x32x8"
    NARROW = "16x16x16"


def shared_heads(group: int) -> int:
    """Return how many of a group's heads share tiles where they may (`Schedule.pack_heads`).

    A power of two, so that a kernel shifts in place of dividing, and no more than the 64 rows of a
    warpgroup.
    """
    return math.gcd(group, 64)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Schedule(Record):
    """How one attention kernel is tiled and ordered.

    Attributes:
        main_loop: warp_specialised (a producer warp and consumer warpgroups), wave_interleaved
            (every wave loads and computes), wave_pipelined (the same, with the softmax of one
            unit of keys between the matrix instructions of the next, in an order that is fixed),
            wave_ping_pong (two groups of waves, one at its products while the other is at its
            softmax) or split_kv (for a key/value cache: the keys are cut among blocks, and among
            the warps of a block, each with a ring of its own).
        tile_m: query rows of one tile.
        tile_n: key columns of one step of the main loop.
        consumers: warpgroups (warp_specialised) or waves (the others) that compute; the
            rows of a tile are dealt evenly to them.
        stages: depth of the ring of K and V tiles in shared memory.
        q_stages: buffers for Q tiles; 2 lets the next tile's Q load under this tile's work.
        persistent: one block a compute unit walks over the tiles; else one block a tile.
        store: staged leaves through the tile's Q buffer by the copy engine; direct frees that
            buffer as soon as S is complete, so that one Q buffer is enough.
        skip_hidden: a consumer leaves out the key tiles that a causal mask hides from all its rows.
        ping_pong: consumer warpgroups take turns on the tensor cores, so that each computes its
            softmax under the products of the others; waves of a wave_pipelined loop by priority.
        p_buffers: buffers for P in registers; 2 lets S of the next key tile be issued while
            O += P V of this one still runs.
        cluster: blocks that work on neighbouring tiles of one head in step, each loading a share of
            every K and V tile for all of them.
        split_q: each consumer's rows of Q have buffers and barriers of their own, so that they
            are loaded as soon as that consumer is done with the last ones.
        pack_heads: query heads of a group share tiles of a warp_specialised kernel over a cache or
            of packed sequences, query by query, so that a few queries fill one.
        split_keys: the keys of a sequence are cut into parts, as many as a call says, for the tiles
            of a warp_specialised kernel over a cache; a second kernel adds the parts up.
        overlap_tiles: the first S of a tile is issued before the last O += P V of the tile before.
        rescale: when O is rescaled to a new reference of the softmax.
        prefetch: operands that wave_pipelined and wave_ping_pong read from shared memory ahead of
            their use.
        matrix: matrix instruction of a wave_pipelined or wave_ping_pong loop. Both compute at the
            same rate; narrow ones (16x16x16) draw less power, and hide less vector work each.
        producer_registers: registers a thread of the producer warpgroup keeps; 0 where none is.
        consumer_registers: registers a thread of a consumer warpgroup gets; 0 where not dealt.
        copy: how K and V of a cache are copied.
        blocks_per_unit: blocks of a split_kv loop that a compute unit holds at once.
    """

    main_loop: MainLoop
    tile_m: int
    tile_n: int
    consumers: int
    stages: int = 2
    q_stages: int = 1
    persistent: bool = False
    store: Store = Store.STAGED
    skip_hidden: bool = False
    ping_pong: bool = False
    p_buffers: int = 1
    cluster: int = 1
    split_q: bool = False
    pack_heads: bool = False
    split_keys: bool = False
    overlap_tiles: bool = True
    rescale: Rescale = Rescale.ON_GROWTH
    prefetch: int = 0
    matrix: Matrix = Matrix.WIDE
    producer_registers: int = 0
    consumer_registers: int = 0
    copy: Copy = Copy.BULK
    blocks_per_unit: int = 1

    @property
    def conditional_rescale(self) -> bool:
        """Whether the common path of a step leaves O as it is."""
        return self.rescale != Rescale.ALWAYS
