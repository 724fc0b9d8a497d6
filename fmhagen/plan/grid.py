"""Grid: how many blocks a launch has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFormula:
    """Blocks of one launch, all in the first grid dimension.

    Attributes:
        tile_m: query rows of a tile of work; tiles = ceil(Sq / tile_m) * H * B.
        max_blocks: most blocks; a block walks over tiles with the grid as its stride.
        per_compute_unit: blocks a compute unit for a persistent grid; 0 for one block a tile.
        cluster: blocks that share a tile of work.
    """

    tile_m: int
    max_blocks: int
    per_compute_unit: int
    cluster: int = 1

    def tiles(self, *, seqlen_q: int, heads: int, batch: int) -> int:
        """Return the number of tiles of one launch."""
        return -(-seqlen_q // self.tile_m) * heads * batch

    def blocks(self, tiles: int, compute_units: int) -> int:
        """Return the number of blocks that a launch over `tiles` tiles uses on a device."""
        limit = self.per_compute_unit * compute_units or self.max_blocks
        clusters = min(limit, self.max_blocks) // self.cluster
        return min(tiles, max(1, clusters)) * self.cluster

    def __str__(self) -> str:
        """Return the formula as text."""
        tiles = f"ceil(Sq / {self.tile_m}) * H * B"
        most = str(self.max_blocks)
        if self.per_compute_unit:
            most = f"{self.per_compute_unit} * compute units"
        if self.cluster == 1:
            return f"min({tiles}, {most})"
        return f"{self.cluster} * min({tiles}, floor({most} / {self.cluster}))"
