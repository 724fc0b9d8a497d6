"""Packed sequences of the warp-specialised loop: the order of the sequences in shared memory."""

from __future__ import annotations

from fmhagen.errors import ScheduleError
from fmhagen.lowering.common import regions_of
from fmhagen.lowering.warp_specialised_shared import WORD_BYTES
from fmhagen.plan.attention import Constant, SharedRegion
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target

PACKED_ROWS = 2**30  # as the launcher encodes the maps
MOST_PLACES = 2048  # 16 KiB of shared memory; more sequences share a place
LEAST_PLACES = 64


def add_order(
    regions: tuple[SharedRegion, ...], used_bytes: int, target: Target
) -> tuple[tuple[SharedRegion, ...], int]:
    """Append the order of the sequences to a shared-memory map: as many places as there is room.

    Raises:
        ScheduleError: there is room for next to none.
    """
    places = MOST_PLACES
    while used_bytes + _order_bytes(places) > target.shared_memory_per_block_bytes:
        places //= 2
        if places < LEAST_PLACES:
            limit = (
                f"leaves no room for the order of packed sequences, {_order_bytes(LEAST_PLACES)}"
                f" bytes beside {used_bytes} of {target.shared_memory_per_block_bytes}"
            )
            raise ScheduleError("tile_n", "as it is", limit, "use a smaller tile_n or fewer stages")
    rows = (
        (
            "SMEM_ORDER",
            places * WORD_BYTES,
            "sequences, the longest first: steps << 16 | place",
        ),
        ("SMEM_UNITS", (places + 1) * WORD_BYTES, "units of work before each of them, and all"),
    )
    added, used_bytes = regions_of(rows, used_bytes)
    return (*regions, *added), used_bytes


def order_constants(
    spec: AttentionSpec, regions: tuple[SharedRegion, ...], l2_bytes: int
) -> tuple[Constant, ...]:
    """Return the constants of the order: its places, and the keys whose K and V L2 holds."""
    places = next(r.size_bytes // WORD_BYTES for r in regions if r.name == "SMEM_ORDER")
    keys = l2_bytes // ((spec.d + spec.dv) * 2)
    packed = Constant(
        ctype="u32",
        name="PACKED_ROWS",
        value=PACKED_ROWS,
        comment="rows of the tensor maps of packed rows",
    )
    return (
        *((packed,) if spec.varlen else ()),
        Constant(ctype="u32", name="ORDERED", value=places, comment="places of the order"),
        Constant(ctype="u32", name="SECTION_KEYS", value=keys, comment="K and V that L2 holds"),
    )


def _order_bytes(places: int) -> int:
    return (2 * places + 1) * WORD_BYTES
