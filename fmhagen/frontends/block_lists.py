"""What the lists of a BlockMask say besides its function.

FlexAttention computes the blocks that are listed, and asks the function in those of them that are
not listed as full. `create_block_mask` lists what the function shows, so that the function is the
whole mask; lists that were made otherwise, `BlockMask.from_kv_blocks`, may choose blocks (the best
ones of each query, pages), and then they are a part of the mask.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from fmhagen.explaining.key_runs import Place, key_runs
from fmhagen.expr import build
from fmhagen.expr.capture import declared
from fmhagen.expr.mods import MaskMod
from fmhagen.mapping.flex import blocks_of, is_block_mask
from fmhagen.spec import AttentionSpec

_MOST_ASKED = 1 << 30
"""Most pairs of a query and a key of which a function that reads tensors is asked to compare."""

_KNOWN: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def whole_mask(block_mask: Any) -> Any:
    """Return the mask of a BlockMask: its function where the lists say no more, else both.

    The lists are read once for each BlockMask, which waits for its device. In a compiled region
    nothing waits, and the lists are a part of every mask.

    Raises:
        TraceError: the function does what no kernel can.
    """
    import torch

    function = block_mask.mask_mod
    if not is_block_mask(block_mask):
        return function
    is_listed_alone = getattr(function, "__name__", "") == "noop_mask"
    if torch.compiler.is_compiling():
        classes = _classes(*blocks_of(block_mask))
        return _listed(block_mask, None if is_listed_alone else function, classes)
    if block_mask not in _KNOWN:
        partly, fully = blocks_of(block_mask)
        mask = MaskMod(build.TRUE) if is_listed_alone else MaskMod(function)
        same = _says_the_same(block_mask, mask, partly, fully)
        _KNOWN[block_mask] = function if same else _together(block_mask, mask, partly, fully)
    return _KNOWN[block_mask]


def _says_the_same(block_mask: Any, mask: MaskMod, partly: Any, fully: Any) -> bool:
    """Return whether a function shows the listed blocks, and all of the full ones."""
    seqlen_q, seqlen_k = map(int, block_mask.seq_lengths)
    batch, heads = partly.shape[:2]
    if mask.parameters:
        from torch.nn.attention.flex_attention import create_block_mask

        if batch * heads * seqlen_q * seqlen_k > _MOST_ASKED:
            return False
        asked = create_block_mask(
            block_mask.mask_mod,
            *(batch, heads, seqlen_q, seqlen_k),
            device=partly.device,
            BLOCK_SIZE=tuple(block_mask.BLOCK_SIZE),
        )
        shown_partly, shown_fully = blocks_of(asked)
        is_same = ((partly | fully) == (shown_partly | shown_fully)).all()
        return bool((is_same & ~(fully & ~shown_fully).any()).item())
    spec = AttentionSpec(mask_mod=mask)
    tile_m, tile_n = map(int, block_mask.BLOCK_SIZE)
    listed, whole = (partly | fully).cpu().numpy(), fully.cpu().numpy()
    for b in range(batch):
        for h in range(heads):
            place = Place(b=b, h=h, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
            for row, m_first in enumerate(range(0, seqlen_q, tile_m)):
                runs = key_runs(spec, place, m_first, tile_m=tile_m, tile_n=tile_n)
                seen = {tile: run.is_full for run in runs for tile in range(run.begin, run.end)}
                if set(listed[b, h, row].nonzero()[0].tolist()) != set(seen):
                    return False
                if not all(seen[tile] for tile in whole[b, h, row].nonzero()[0].tolist()):
                    return False
    return True


def _together(block_mask: Any, mask: MaskMod, partly: Any, fully: Any) -> MaskMod:
    """Return the mask that shows full blocks, and of the partly visible ones what another does."""
    classes = _classes(partly, fully)
    listed = declared("listed_blocks", classes)
    whole = _listed(block_mask, mask, listed)
    return MaskMod(whole, bound={**mask.bound, "listed_blocks": classes})


def _classes(partly: Any, fully: Any) -> Any:
    """Return 0, 1 or 2 of each block: hidden, partly or fully visible."""
    return partly.byte() + 2 * (fully & ~partly).byte()


def _listed(block_mask: Any, mask: Callable[..., Any] | None, classes: Any) -> Callable[..., Any]:
    """Return the function that shows what classes of blocks say, and a mask within them."""
    rows, keys = map(int, block_mask.BLOCK_SIZE)

    def whole(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        kind: Any = classes[b, h, q_idx // rows, kv_idx // keys]
        if mask is None:
            return kind != 0
        return (kind == 2) | ((kind == 1) & mask(b, h, q_idx, kv_idx))

    return whole
