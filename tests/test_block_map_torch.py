"""Block maps of PyTorch's BlockMask, and maps beside tensors of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import TARGET_NAMES

from fmhagen import AttentionSpec, compile_kernel, masks
from fmhagen.errors import TensorError
from fmhagen.mapping.flex import map_of_block_mask
from fmhagen.runtime.block_map import FULLY, HIDDEN, PARTLY
from fmhagen.targets import find_target

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")
every_target = pytest.mark.parametrize("target", TARGET_NAMES)
DEPTH = {"sm90": 128, "gfx942": 128}  # whose tiles go into blocks of 128 x 128


def ids_of(length: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.sort(torch.randint(0, 5, (length,), generator=generator)).values.int()


def block_mask_of(ids: Any, sizes: tuple[int, int], block: Any = 128) -> Any:
    return flex.create_block_mask(
        lambda b, h, q, kv: ids[q] == ids[kv], None, None, *sizes, device="cpu", BLOCK_SIZE=block
    )


def dense_classes(block_mask: Any, tile: tuple[int, int], sizes: tuple[int, int]) -> Any:
    """Class of each tile by the lists, one by one."""
    q_block, kv_block = block_mask.BLOCK_SIZE
    shape = block_mask.kv_num_blocks.shape[:2]
    found = np.zeros((*shape, -(-sizes[0] // tile[0]), -(-sizes[1] // tile[1])), np.uint8)
    for counts, indices, kind in (
        (block_mask.kv_num_blocks, block_mask.kv_indices, PARTLY),
        (block_mask.full_kv_num_blocks, block_mask.full_kv_indices, FULLY),
    ):
        for b, h, i in np.ndindex(*counts.shape):
            for j in indices[b, h, i, : int(counts[b, h, i])].tolist():
                rows = slice(i * q_block // tile[0], (i + 1) * q_block // tile[0])
                keys = slice(j * kv_block // tile[1], (j + 1) * kv_block // tile[1])
                found[b, h, rows, keys] = kind
    return found


@pytest.mark.parametrize("tile", [(128, 128), (64, 32), (32, 64), (16, 16)])
@pytest.mark.parametrize("sizes", [(300, 500), (128, 128), (513, 4500)])
def test_lists_become_bits(tile: tuple[int, int], sizes: tuple[int, int]) -> None:
    block_mask = block_mask_of(ids_of(max(sizes)), sizes)
    width = block_mask.kv_indices.shape[-1]
    behind = torch.arange(width) >= block_mask.kv_num_blocks[..., None]
    block_mask.kv_indices.masked_fill_(behind, 2147480000)  # never read
    found = map_of_block_mask(block_mask, *tile, *sizes)
    np.testing.assert_array_equal(found.classes(), dense_classes(block_mask, tile, sizes))
    assert set(np.unique(found.classes())) <= {HIDDEN, PARTLY, FULLY}


def test_blocks_that_differ_by_batch_and_head() -> None:
    torch.manual_seed(0)
    shown = torch.rand(2, 3, 3, 5) < 0.5
    counts = shown.sum(-1).int()
    indices = torch.argsort(shown.int(), dim=-1, descending=True, stable=True).int()
    block_mask = flex.BlockMask.from_kv_blocks(
        counts, indices, BLOCK_SIZE=64, seq_lengths=(160, 300)
    )
    found = map_of_block_mask(block_mask, 32, 64, 160, 300)
    expected = np.repeat(shown.numpy().astype(np.uint8), 2, 2)[:, :, :5]
    np.testing.assert_array_equal(found.classes(), expected)


@every_target
def test_a_block_mask_stands_in_for_a_map(target: str) -> None:
    if "mask_mod" not in find_target(target).features:
        pytest.skip(f"{target} has no masks")
    ids = ids_of(400)
    spec = AttentionSpec(head_dim=DEPTH[target], mask_mod=masks.document(ids))
    kernel = compile_kernel(spec, device="emulator", target=target)
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, 400, 2, DEPTH[target]).bfloat16() for _ in range(3))
    block_mask = block_mask_of(ids, (400, 400))
    expected = kernel(q, k, v)
    prepared = kernel.prepare(q, k)
    assert prepared.tensor.dtype == torch.int32
    assert prepared.tensor.device == q.device
    assert torch.equal(kernel(q, k, v, block_map=prepared), expected)
    assert torch.equal(kernel(q, k, v, block_map=block_mask), expected)
    assert torch.equal(
        kernel(q, k, v, block_map=kernel.prepare(q, k, block_mask=block_mask)), expected
    )
    with pytest.raises(TensorError, match=r"block_mask=\(400, 300\).*call has \(400, 400\)"):
        kernel(q, k, v, block_map=block_mask_of(ids, (400, 300)))
    odd = block_mask_of(ids, (400, 400), block=48)
    with pytest.raises(TensorError, match=r"BLOCK_SIZE=\(48, 48\): must be multiples of the tiles"):
        kernel.prepare(q, k, block_mask=odd)
