"""Blocks of a kernel that one SM or CU holds at a time, and what limits them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fmhagen.compile.binary import Resources
from fmhagen.targets import Target
from fmhagen.targets.occupancy import compute_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """How a compute unit is filled.

    Attributes:
        unit: "SM" or "CU".
        blocks: blocks at a time.
        warps: warps (waves) of these blocks.
        max_warps: warps that the unit can hold.
        limits: (resource, blocks that it alone would allow), the tightest first.
    """

    unit: str
    blocks: int
    warps: int
    max_warps: int
    limits: tuple[tuple[str, int], ...]

    @property
    def limited_by(self) -> tuple[str, ...]:
        """Every resource that allows no more blocks than there are."""
        return tuple(name for name, blocks in self.limits if blocks == self.blocks)

    def to_dict(self) -> dict[str, Any]:
        """Return the occupancy as JSON-ready data."""
        data = asdict(self)
        limits = {"limits": dict(self.limits), "limited_by": list(self.limited_by)}
        return {**data, **limits, "text": str(self)}

    def __str__(self) -> str:
        """Return one sentence."""
        blocks = f"{self.blocks} block{'' if self.blocks == 1 else 's'}"
        by = " and ".join(self.limited_by)
        return f"{blocks} a {self.unit}, {self.warps} of {self.max_warps} warps, limited by {by}"


def occupancy(target: Target, resources: Resources, *, threads: int) -> Occupancy:
    """Return how many blocks of `threads` threads with these resources a compute unit holds."""
    unit = compute_unit(target.name)
    warps_per_block = -(-threads // target.lanes_per_warp)
    registers = _round_up(resources.registers * target.lanes_per_warp, unit.register_granule)
    warps_by_registers = unit.partitions * (
        unit.registers_per_partition // registers if registers else unit.max_warps_per_partition
    )
    max_warps = unit.partitions * unit.max_warps_per_partition
    shared = resources.static_shared_bytes + resources.dynamic_shared_bytes
    shared_per_block = _round_up(shared + unit.shared_reserved_bytes, unit.shared_granule_bytes)
    limits = {
        "registers": warps_by_registers // warps_per_block,
        "warps": max_warps // warps_per_block,
        "blocks": unit.max_blocks,
    }
    if shared_per_block:
        limits["shared memory"] = unit.shared_bytes // shared_per_block
    blocks = min(limits.values())
    return Occupancy(
        unit=unit.name,
        blocks=blocks,
        warps=blocks * warps_per_block,
        max_warps=max_warps,
        limits=tuple(sorted(limits.items(), key=lambda item: item[1])),
    )


def _round_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule
