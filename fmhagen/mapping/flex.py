"""BlockMap of what PyTorch calls a BlockMask: lists of key blocks, partly and fully visible."""

from __future__ import annotations

from typing import Any

from fmhagen.errors import TensorError
from fmhagen.runtime.block_map import WORD_TILES, BlockMap, map_size


def is_block_mask(value: Any) -> bool:
    """Return whether a value has the lists of a `torch.nn.attention.flex_attention.BlockMask`."""
    return all(hasattr(value, name) for name in ("kv_num_blocks", "kv_indices", "BLOCK_SIZE"))


def map_of_block_mask(
    block_mask: Any, tile_m: int, tile_n: int, seqlen_q: int, seqlen_k: int
) -> BlockMap:
    """Return the map that a block mask says, by operations of PyTorch on its device.

    Blocks of `kv_indices` are partly visible, those of `full_kv_indices` fully, all others hidden.
    Nothing is waited for.

    Args:
        block_mask: the lists; what lies in them behind the counts is not read.
        tile_m, tile_n: the tiles that the kernel asks for.
        seqlen_q, seqlen_k: the lengths of the calls.

    Raises:
        TensorError: it was made for other lengths, or a tile does not lie in one of its blocks.
    """
    import torch

    lengths = tuple(map(int, block_mask.seq_lengths))
    if lengths != (seqlen_q, seqlen_k):
        limit = f"was made for (Sq, Sk) = {lengths}; the call has {(seqlen_q, seqlen_k)}"
        raise TensorError("block_mask", lengths, limit, "make one for the call")
    q_block, kv_block = map(int, block_mask.BLOCK_SIZE)
    if q_block % tile_m or kv_block % tile_n:
        limit = f"must be multiples of the tiles of this kernel, {tile_m} rows and {tile_n} keys"
        hint = "use BLOCK_SIZE of such multiples, or let fmhagen ask the mask: leave it out"
        raise TensorError("block_mask.BLOCK_SIZE", (q_block, kv_block), limit, hint)
    partly, fully = blocks_of(block_mask)
    words = torch.stack(
        [
            _words(blocks, (q_block // tile_m, kv_block // tile_n), (tile_m, tile_n), lengths)
            for blocks in (partly | fully, fully)
        ],
        dim=-1,
    )
    return BlockMap(
        tensor=words, tile_m=tile_m, tile_n=tile_n, seqlen_q=seqlen_q, seqlen_k=seqlen_k
    )


def blocks_of(block_mask: Any) -> tuple[Any, Any]:
    """Return which blocks are partly visible, and which fully: (B, H, rows, columns) of bools."""
    import torch

    partly = _blocks(block_mask.kv_num_blocks, block_mask.kv_indices)
    if block_mask.full_kv_num_blocks is None:
        return partly, torch.zeros_like(partly)
    return partly, _blocks(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)


def _blocks(counts: Any, indices: Any) -> Any:
    """Return lists as a (B, H, query blocks, key blocks) tensor of bools."""
    import torch

    width = indices.shape[-1]
    listed = torch.arange(width, device=indices.device) < counts[..., None]
    # NOTE: what lies behind the count goes to a column that is cut off.
    columns = torch.where(listed, indices, width).long()
    found = torch.zeros((*indices.shape[:-1], width + 1), dtype=torch.bool, device=indices.device)
    return found.scatter_(-1, columns, True)[..., :width]


def _words(
    blocks: Any, repeats: tuple[int, int], tile: tuple[int, int], lengths: tuple[int, ...]
) -> Any:
    """Return (B, H, rows of tiles, words) int32: blocks cut into tiles, a bit each."""
    import torch

    rows, words = map_size(*tile, *lengths)
    tiles = blocks.repeat_interleave(repeats[0], -2)[..., :rows, :]
    columns = -(-lengths[1] // tile[1])
    tiles = tiles.repeat_interleave(repeats[1], -1)[..., :columns]
    tiles = torch.nn.functional.pad(tiles, (0, words * WORD_TILES - columns))
    bits = torch.arange(WORD_TILES, device=tiles.device)
    packed = (tiles.unflatten(-1, (words, WORD_TILES)).long() << bits).sum(-1)
    return packed.to(torch.int32)
