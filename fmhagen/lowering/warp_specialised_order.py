"""The order of a head's tiles in shared memory, where the mask makes them unequally long."""

from __future__ import annotations

from fmhagen.expr.linear import linear
from fmhagen.lowering.common import regions_of
from fmhagen.lowering.warp_specialised_shared import BARRIER_BYTES, WORD_BYTES
from fmhagen.plan.attention import Constant, SharedRegion
from fmhagen.plan.language import Language
from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target

PAIR_BYTES = 8  # numbers are read two at a time
MOST_PLACES = 2048  # of the order, as 11 bits of a number hold; 8 KiB of shared memory
LEAST_PLACES = 64
MOST_BLOCKS = 256
DEALERS = 15  # warpgroups have the first ones
DEALT_ROUNDS = 4  # the last ones
MOST_ROUNDS = 64  # beyond, blocks get so many tiles that they are even without


def sorts_tiles(
    spec: AttentionSpec, schedule: Schedule, language: Language, used_bytes: int, target: Target
) -> bool:
    """Return whether the blocks order the tiles of a head by how long they take.

    Not if all rows see as many keys, nor if tiles are longer the later they come.
    """
    if spec.varlen or not schedule.persistent or language.right_only or schedule.cluster > 1:
        return False
    room = target.shared_memory_per_block_bytes - used_bytes
    return not _is_even(language) and _bytes_of(LEAST_PLACES) <= room


def _is_even(language: Language) -> bool:
    """Return whether every row sees as many keys, but for the ends of the sequence."""
    bounds = language.bounds
    if language.mapped or bounds.rest is not None or len(bounds.bands) != 1:
        return False
    band = bounds.bands[0]
    width = linear(band.end).plus(linear(band.first), -1)
    return not any(term.reads("q_idx") for term in width.terms)


def add_tile_order(
    regions: tuple[SharedRegion, ...], used_bytes: int, target: Target
) -> tuple[tuple[SharedRegion, ...], int]:
    """Append the order of the tiles to a shared-memory map: as many places as there is room."""
    places = MOST_PLACES
    used_bytes = -(-used_bytes // PAIR_BYTES) * PAIR_BYTES
    while used_bytes + _bytes_of(places) > target.shared_memory_per_block_bytes:
        places //= 2
    rows = (
        ("SMEM_ORDER", places * WORD_BYTES, "tiles, the longest first: cost << 11 | tile"),
        (
            "SMEM_GOT",
            2 * MOST_BLOCKS * WORD_BYTES,
            "what each block has got, before a round and after [2]",
        ),
        ("SMEM_TURNS", DEALT_ROUNDS * WORD_BYTES, "this block's turns in the last rounds"),
        ("DEALT", DEALT_ROUNDS * BARRIER_BYTES, "and that they are there (1)"),
    )
    added, used_bytes = regions_of(rows, used_bytes)
    return (*regions, *added), used_bytes


def tile_order_constants(regions: tuple[SharedRegion, ...]) -> tuple[Constant, ...]:
    """Return the constants of the order."""
    places = next(r.size_bytes // WORD_BYTES for r in regions if r.name == "SMEM_ORDER")
    return tuple(
        Constant(ctype="u32", name=name, value=value, comment=comment)
        for name, value, comment in (
            ("ORDERED", places, "places of the order"),
            ("DEALERS", DEALERS, "the named barrier of the threads that deal the last rounds"),
            ("DEALT_ROUNDS", DEALT_ROUNDS, "the last ones, dealt by what blocks have got"),
            ("MOST_ROUNDS", MOST_ROUNDS, "beyond, none is dealt so: blocks are even without"),
            ("MOST_BLOCKS", MOST_BLOCKS, "beyond, none is dealt so: there is no room"),
        )
    )


def _bytes_of(places: int) -> int:
    words = places + 2 * MOST_BLOCKS + DEALT_ROUNDS
    return words * WORD_BYTES + DEALT_ROUNDS * BARRIER_BYTES
