"""MapSpec: what one classifier kernel decides."""

from __future__ import annotations

from dataclasses import dataclass

from fmhagen.errors import InvalidSpecError
from fmhagen.expr.mods import MaskMod
from fmhagen.formula import mask_of
from fmhagen.records import Record
from fmhagen.spec import AttentionSpec

WORD_TILES = 32  # key tiles of a word of the map: a bit each


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MapSpec(Record):
    """What one classifier kernel decides: what a mask shows in each tile.

    Attributes:
        mask: the whole mask, but for the end of the keys.
        tile_m: query rows of a tile.
        tile_n: keys of a tile.

    Raises:
        InvalidSpecError: a value means nothing.
    """

    mask: MaskMod
    tile_m: int
    tile_n: int

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        Record.__post_init__(self)
        object.__setattr__(self, "mask", MaskMod.of(self.mask))
        if self.tile_m < 1:
            raise InvalidSpecError("tile_m", self.tile_m, "must be at least 1")
        if self.tile_n < 16 or self.tile_n % 16:
            raise InvalidSpecError("tile_n", self.tile_n, "must be a multiple of 16")

    @classmethod
    def of(cls, spec: AttentionSpec, tile_m: int, tile_n: int) -> MapSpec:
        """Return the classifier of an attention spec's whole mask; its captures are left out."""
        mask = mask_of(spec)
        assert mask is not None
        return cls(mask=MaskMod(mask), tile_m=tile_m, tile_n=tile_n)

    @property
    def per_batch(self) -> bool:
        """Whether the mask differs from one batch entry to another."""
        return self.mask.node.reads("b")

    @property
    def per_head(self) -> bool:
        """Whether the mask differs from one query head to another."""
        return self.mask.node.reads("h")
