"""BlockMap: which tiles a mask hides and shows, on the device; made once, shared by many calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fmhagen.errors import TensorError
from fmhagen.runtime.checks import Problem
from fmhagen.runtime.launch_values import Value
from fmhagen.runtime.tensors import TensorView, contiguous_strides, view

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

WORD_TILES = 32  # key tiles of a word
HIDDEN, PARTLY, FULLY = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockMap:
    """What a mask shows in each tile of query rows and keys; made by `Kernel.prepare`.

    It holds for the lengths and for the values of the mask's tensors of the time when it was made.

    Attributes:
        tensor: (B or 1, H or 1, ceil(Sq / tile_m), ceil(Sk / (32 * tile_n)), 2) int32 on the device
            of the calls: bit i of word w is key tile 32 * w + i. The first word of a pair says
            whether some query sees some key of a tile, the second whether all see all.
        tile_m: query rows of a tile.
        tile_n: keys of a tile.
        seqlen_q: Sq.
        seqlen_k: Sk.
        mask: text of the mask that it was made of; "" if that is not known.
    """

    tensor: Any
    tile_m: int
    tile_n: int
    seqlen_q: int
    seqlen_k: int
    mask: str = ""

    @property
    def layout(self) -> tuple[Any, ...]:
        """All but the address: what a call that has seen such a map need not check again."""
        return (self.tile_m, self.tile_n, self.seqlen_q, self.seqlen_k, self.mask)

    def classes(self) -> npt.NDArray[np.uint8]:
        """Return 0 (hidden), 1 (partly) or 2 (fully visible) of every tile, from the device.

        Returns:
            (B or 1, H or 1, ceil(Sq / tile_m), ceil(Sk / tile_n)) uint8.
        """
        import numpy as np

        tensor = self.tensor.cpu() if hasattr(self.tensor, "cpu") else self.tensor
        tensor = tensor.get() if hasattr(tensor, "get") else tensor
        words = np.asarray(tensor).astype(np.uint32)[..., None]
        bits = (words >> np.arange(WORD_TILES, dtype=np.uint32) & 1).astype(np.uint8)
        both = bits[..., 0, :] + bits[..., 1, :]
        flat = both.reshape(*both.shape[:3], -1)
        return flat[..., : -(-self.seqlen_k // self.tile_n)]

    def viewed(self, q: TensorView) -> TensorView:
        """Return the tensor as a kernel reads it.

        Raises:
            TensorError: it lies elsewhere, or is not what a map holds.
        """
        tensor = view("block_map", self.tensor)
        if tensor.place != q.place:
            limit = f"must lie on the device of q, {q.place}"
            raise TensorError("block_map", tensor.place, limit, "prepare it there")
        if tensor.dtype not in ("int32", "uint32"):
            raise TensorError("block_map", tensor.dtype, "must hold int32")
        rows, words = map_size(self.tile_m, self.tile_n, self.seqlen_q, self.seqlen_k)
        if len(tensor.shape) != 5 or tensor.shape[2:] != (rows, words, 2):
            limit = f"must have the shape (B or 1, H or 1, {rows}, {words}, 2)"
            raise TensorError("block_map", tensor.shape, limit)
        steps = contiguous_strides(tensor.shape)
        pairs = zip(tensor.shape[2:], tensor.strides[2:], steps[2:], strict=True)
        if any(size > 1 and stride != step for size, stride, step in pairs):
            raise TensorError("block_map", tensor.strides, "must be dense but for batch and head")
        return tensor

    def values(self, tensor: TensorView) -> dict[str, Value]:
        """Return the values of the parameter fields that follow from the layout."""
        strides = [0 if n == 1 else s for n, s in zip(tensor.shape, tensor.strides, strict=True)]
        return {
            "block_map_stride_b": strides[0],
            "block_map_stride_h": strides[1],
            "block_map_words": tensor.shape[3],
        }

    def check(self, problem: Problem, tile_m: int, tile_n: int, mask: str) -> None:
        """Refuse a map that was made for another kernel or other sizes.

        Args:
            problem: the sizes of the call.
            tile_m: query rows of the tiles that the kernel asks for.
            tile_n: keys of them.
            mask: text of the kernel's mask.

        Raises:
            TensorError: says what it was made for, and what the call has.
        """
        hint = "make one by kernel.prepare(q, k) of this kernel"
        lengths = (problem.seqlen_q, problem.seqlen_k)
        if (self.seqlen_q, self.seqlen_k) != lengths:
            found = f"(Sq, Sk) = {(self.seqlen_q, self.seqlen_k)}"
            raise TensorError("block_map", found, f"was made for it; the call has {lengths}", hint)
        if (self.tile_m, self.tile_n) != (tile_m, tile_n):
            found = f"tiles of {self.tile_m} rows and {self.tile_n} keys"
            limit = f"was made of them; this kernel asks for {tile_m} and {tile_n}"
            raise TensorError("block_map", found, limit, hint)
        if self.mask not in ("", mask):
            raise TensorError("block_map", self.mask, f"was made of it; the mask is {mask}", hint)
        batch, heads = self.tensor.shape[:2]
        if batch not in (1, problem.batch) or heads not in (1, problem.heads):
            found = f"B={batch}, H={heads}"
            limit = f"must have 1, or those of the call, B={problem.batch}, H={problem.heads}"
            raise TensorError("block_map", found, limit, hint)


def map_size(tile_m: int, tile_n: int, seqlen_q: int, seqlen_k: int) -> tuple[int, int]:
    """Return the rows of tiles of a map, and the words of one bitmap of a row.

    NOTE: there is a word where there are no keys: kernels read the first before they ask for more.
    """
    return -(-seqlen_q // tile_m), max(1, -(-seqlen_k // (tile_n * WORD_TILES)))
