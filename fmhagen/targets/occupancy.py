"""How many blocks fit a compute unit: the facts of each chip that decide it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeUnit:
    """What one SM or CU can hold at a time.

    Attributes:
        name: what the vendor calls it.
        partitions: parts (SIMDs) that warps are dealt to; registers belong to a part.
        registers_per_partition: 32-bit registers of a part.
        register_granule: registers that a warp's share is rounded up to.
        max_warps_per_partition: most warps resident on a part.
        max_blocks: most blocks resident.
        shared_bytes: shared memory (LDS) for all blocks together.
        shared_granule_bytes: what a block's share is rounded up to.
        shared_reserved_bytes: taken by the system from each block.
        source: where these are stated.
    """

    name: str
    partitions: int
    registers_per_partition: int
    register_granule: int
    max_warps_per_partition: int
    max_blocks: int
    shared_bytes: int
    shared_granule_bytes: int
    shared_reserved_bytes: int
    source: str


_COMPUTE_UNITS = {
    "sm90": ComputeUnit(
        name="SM",
        partitions=4,
        registers_per_partition=16384,
        register_granule=256,
        max_warps_per_partition=16,
        max_blocks=32,
        shared_bytes=233472,
        shared_granule_bytes=128,
        shared_reserved_bytes=1024,
        source="CUDA C++ Programming Guide, 'Compute Capability 9.x'; CUDA occupancy calculator",
    ),
    "gfx942": ComputeUnit(
        name="CU",
        partitions=4,
        registers_per_partition=512 * 64,
        register_granule=8 * 64,
        max_warps_per_partition=8,
        max_blocks=16,
        shared_bytes=65536,
        shared_granule_bytes=512,
        shared_reserved_bytes=0,
        source="CDNA 3 ISA guide; LLVM, 'User Guide for AMDGPU Backend' (AMDGPUBaseInfo)",
    ),
}


def compute_unit(target_name: str) -> ComputeUnit:
    """Return the compute unit of a target by its canonical name."""
    return _COMPUTE_UNITS[target_name]
