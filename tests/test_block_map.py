"""Block maps on both targets: classifiers against brute force, and kernels that follow a map."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from emulated import TARGET_NAMES

import fmhagen
from fmhagen import AttentionSpec, BlockMap, MapSpec, MaskMod, compile_kernel, masks, reference
from fmhagen.errors import InvalidSpecError, TensorError
from fmhagen.explaining.key_runs import Place, key_runs, visible_keys
from fmhagen.formula import is_mapped
from fmhagen.mapping import lower_map
from fmhagen.mapping.plan import source_of
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.runtime.block_map import FULLY, HIDDEN, PARTLY
from fmhagen.targets import find_target

BF16 = np.dtype(ml_dtypes.bfloat16)
Array = npt.NDArray[Any]
every_target = pytest.mark.parametrize("target", TARGET_NAMES)


def kernel_of(target: str, mask: MaskMod, **fields: Any) -> fmhagen.Kernel:
    if "mask_mod" not in find_target(target).features:
        pytest.skip(f"{target} has no masks")
    spec = AttentionSpec(**{"head_dim": 64, "mask_mod": mask, **fields})
    return compile_kernel(spec, device="emulator", target=target)


def tensors_of(
    seed: int, batch: int, heads: tuple[int, int], rows: tuple[int, int], d: int = 64
) -> tuple[Array, Array, Array]:
    generator = np.random.default_rng(seed)
    shapes = ((batch, rows[0], heads[0], d), *[(batch, rows[1], heads[1], d)] * 2)
    q, k, v = (generator.standard_normal(shape, np.float32).astype(BF16) for shape in shapes)
    return q, k, v


def ids_of(seed: int, length: int, documents: int, *, shuffled: bool = False) -> Array:
    """Documents of unequal lengths, one behind another or spread."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(0, documents, length).astype(np.int32)
    return ids if shuffled else np.sort(ids)


def brute_force(visible: Array, tile_m: int, tile_n: int) -> Array:
    """Class of every tile of a (..., Sq, Sk) mask."""
    rows, keys = visible.shape[-2:]
    found = np.zeros((*visible.shape[:-2], -(-rows // tile_m), -(-keys // tile_n)), np.uint8)
    for i in range(found.shape[-2]):
        for j in range(found.shape[-1]):
            tile = visible[..., i * tile_m : (i + 1) * tile_m, j * tile_n : (j + 1) * tile_n]
            some, every = tile.any((-2, -1)), tile.all((-2, -1))
            found[..., i, j] = np.where(every, FULLY, np.where(some, PARTLY, HIDDEN))
    return found


def shown(
    spec: AttentionSpec,
    sizes: tuple[int, int],
    lengths: tuple[int, int],
    params: dict[str, Any] | None = None,
) -> Array:
    """What a mask shows, (B, H, Sq, Sk), by NumPy."""
    bound = dict(spec.mask_mod.bound) if spec.mask_mod else {}
    rows = []
    for b in range(sizes[0]):
        for h in range(sizes[1]):
            place = Place(b=b, h=h, seqlen_q=lengths[0], seqlen_k=lengths[1])
            rows.append(visible_keys(spec, place, {**bound, **(params or {})}))
    return np.stack(rows).reshape(*sizes, *lengths)


def assert_map(found: BlockMap, visible: Array) -> None:
    classes = brute_force(visible, found.tile_m, found.tile_n)
    given = found.classes()
    shape = (*classes.shape[:2], *given.shape[2:])
    np.testing.assert_array_equal(np.broadcast_to(given, shape), classes)
    words = np.asarray(found.tensor).view(np.uint32)
    beyond = -(-visible.shape[-1] // found.tile_n) % 32
    if beyond and words.size:
        assert not (words[..., -1, :] >> beyond).any(), "tiles past the last are nothing"


@every_target
@pytest.mark.parametrize(
    "lengths", [(1, 1), (64, 64), (300, 300), (129, 517), (517, 130), (40, 4500)]
)
def test_a_map_says_what_brute_force_says(target: str, lengths: tuple[int, int]) -> None:
    ids = ids_of(1, max(lengths), 5)
    for mask in (masks.document(ids), masks.document(ids) & masks.causal("bottom_right")):
        kernel = kernel_of(target, mask)
        q, k, _ = tensors_of(0, 2, (4, 2), lengths)
        found = kernel.prepare(q, k)
        assert found.tensor.shape[:2] == (1, 1), "a mask of every head and batch entry is one map"
        assert_map(found, shown(kernel.spec, (1, 1), lengths))


@every_target
@pytest.mark.parametrize("rows", [1, 129])
def test_calls_without_keys(target: str, rows: int) -> None:
    kernel = kernel_of(target, masks.document(ids_of(1, 300, 5)))
    q, k, v = tensors_of(0, 2, (4, 2), (rows, 0))
    for block_map in (None, kernel.prepare(q, k)):
        o, lse = kernel(q, k, v, return_lse=True, block_map=block_map)
        assert (o == 0).all()
        assert (lse == -np.inf).all()


@every_target
@pytest.mark.parametrize("seed", range(3))
def test_dense_masks_by_batch_and_head(target: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    lengths = (int(generator.integers(1, 300)), int(generator.integers(1, 400)))
    cells = generator.random((2, 3, -(-lengths[0] // 37), -(-lengths[1] // 53)))
    blocks = np.repeat(np.repeat(cells, 37, 2), 53, 3)[..., : lengths[0], : lengths[1]]
    noise = generator.random((2, 3, *lengths)) < 0.001
    whole = (blocks < 0.4) ^ noise
    for mask in (whole, whole[:, :1], whole[:1], whole[0, 0]):
        kernel = kernel_of(target, masks.dense(mask))
        q, k, _ = tensors_of(seed, 2, (3, 3), lengths)
        found = kernel.prepare(q, k)
        four = mask if mask.ndim == 4 else mask[None, None]
        assert_map(found, np.broadcast_to(four, (2, 3, *lengths)))


@every_target
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("causal", [False, True])
def test_documents_against_float64(target: str, seed: int, *, causal: bool) -> None:
    generator = np.random.default_rng(seed)
    rows = int(generator.integers(1, 500))
    lengths = (rows, rows if seed % 2 else int(generator.integers(1, 700)))
    ids = ids_of(seed, max(lengths), 6, shuffled=seed == 3)
    mask = masks.document(ids) & masks.causal() if causal else masks.document(ids)
    d = (64, 128)[seed % 2]
    kernel = kernel_of(target, mask, head_dim=d)
    q, k, v = tensors_of(seed, 2, (2, 1), lengths, d)
    o, lse = kernel(q, k, v, return_lse=True)
    found = compare(o, lse, *reference(kernel.spec, q, k, v))
    assert found.within(tolerance_of("bf16")), str(found)


@every_target
@pytest.mark.parametrize("seed", range(4))
def test_random_masks_against_float64(target: str, seed: int) -> None:
    """Sparse ones leave whole tiles, rows and queries with nothing; keys past the last are NaN."""
    generator = np.random.default_rng(seed)
    lengths = (int(generator.integers(1, 400)), int(generator.integers(1, 600)))
    cells = generator.random((1, 2, -(-lengths[0] // 64), -(-lengths[1] // 64)))
    blocks = np.repeat(np.repeat(cells, 64, 2), 64, 3)[..., : lengths[0], : lengths[1]]
    mask = (blocks < 0.3) ^ (generator.random((2, 2, *lengths)) < (0.0005, 0.3)[seed % 2])
    kernel = kernel_of(target, masks.dense(mask), soft_cap=20.0 if seed == 2 else None)
    q, k, v = tensors_of(seed, 2, (2, 2), lengths)
    tails = [np.full((2, lengths[1] + 70, 2, 64), np.nan, BF16) for _ in range(2)]
    for tail, tensor in zip(tails, (k, v), strict=True):
        tail[:, : lengths[1]] = tensor
    k, v = (tail[:, : lengths[1]] for tail in tails)
    o, lse = kernel(q, k, v, return_lse=True)
    found = compare(o, lse, *reference(kernel.spec, q, k, v))
    assert found.within(tolerance_of("bf16")), str(found)


@every_target
def test_a_prepared_map_gives_the_same_bits_and_serves_many_calls(target: str) -> None:
    ids = ids_of(2, 330, 4)
    kernel = kernel_of(target, masks.document(ids))
    q, k, v = tensors_of(0, 1, (2, 2), (330, 330))
    found = kernel.prepare(q, k)
    for _ in range(2):
        q, k, v = (tensor[::-1].copy() for tensor in (q, k, v))
        o = kernel(q, k, v, block_map=found)
        assert np.array_equal(o.view(np.uint16), kernel(q, k, v).view(np.uint16))


@every_target
def test_what_the_map_hides_is_not_read(target: str) -> None:
    """A key tile that no query sees may hold NaN in K and V, which a hidden score cannot undo."""
    kernel = kernel_of(target, masks.dense(np.ones((1, 1), bool), name="shown"))
    rows, keys = 200, 900
    q, k, v = tensors_of(0, 1, (1, 1), (rows, keys))
    mask = np.ones((rows, keys), bool)
    mask[:, 256:640] = False
    params = {"shown": mask}
    expected = kernel(q, k, v, params=params)
    k[:, 256:640] = np.nan
    v[:, 256:640] = np.nan
    o = kernel(q, k, v, params=params)
    assert np.array_equal(o.view(np.uint16), expected.view(np.uint16))


@every_target
def test_eight_unequal_documents_visit_no_hidden_tile_and_mask_no_full_one(target: str) -> None:
    lengths = (37, 300, 411, 128, 5, 520, 256, 391)
    ids = np.repeat(np.arange(8, dtype=np.int32), lengths)
    size = len(ids)
    for mask in (masks.document(ids), masks.document(ids) & masks.causal()):
        kernel = kernel_of(target, mask)
        spec = kernel.spec
        plan = kernel.plan
        q, k, _ = tensors_of(0, 1, (1, 1), (size, size))
        classes = kernel.prepare(q, k).classes()[0, 0]
        visible = shown(spec, (1, 1), (size, size))
        np.testing.assert_array_equal(
            classes, brute_force(visible, plan.map_rows, plan.map_keys)[0, 0]
        )
        place = Place(seqlen_q=size, seqlen_k=size)
        for row, found in enumerate(classes):
            runs = key_runs(
                spec,
                place,
                row * plan.map_rows,
                tile_m=plan.map_rows,
                tile_n=plan.map_keys,
                params=dict(mask.bound),
            )
            walked = np.zeros_like(found)
            for run in runs:
                walked[run.begin : run.end] = FULLY if run.is_full else PARTLY
            # The tile with the end of the keys is masked, whatever the map says.
            if size % plan.map_keys and found[-1] == FULLY:
                found[-1] = PARTLY
            np.testing.assert_array_equal(walked, found)


@every_target
def test_maps_of_other_lengths_tiles_masks_and_sizes_are_refused(target: str) -> None:
    ids = ids_of(0, 4096, 4)
    kernel = kernel_of(target, masks.document(ids))
    q, k, v = tensors_of(0, 1, (2, 2), (100, 100))
    long_q = np.zeros((1, 4096, 2, 64), BF16)
    for other, match in (
        (kernel.prepare(long_q, k), r"\(Sq, Sk\) = \(4096, 100\).*the call has \(100, 100\)"),
        (
            kernel_of(target, masks.document(ids) & masks.causal()).prepare(q, k),
            "block_map=.*was made of it; the mask is",
        ),
        (kernel_of(target, masks.document(ids), head_dim=256), "tiles of"),
    ):
        given = other
        if not isinstance(other, BlockMap):
            wide = np.zeros((1, 100, 2, 256), BF16)
            given = other.prepare(wide, wide)
        with pytest.raises(TensorError, match=match):
            kernel(q, k, v, block_map=given)
    by_head = kernel_of(target, masks.dense(np.ones((1, 3, 100, 100), bool), name="document_id"))
    three = np.zeros((1, 100, 3, 64), BF16)
    import dataclasses

    found = dataclasses.replace(by_head.prepare(three, three), mask="")
    with pytest.raises(TensorError, match=r"H=3.*must have 1, or those of the call, B=1, H=2"):
        kernel(q, k, v, block_map=found)
    with pytest.raises(TensorError, match="block_map='int': must be a BlockMap"):
        kernel(q, k, v, block_map=3)


@every_target
def test_kernels_of_known_bounds_need_no_map(target: str) -> None:
    q, k, v = tensors_of(0, 1, (1, 1), (10, 10))
    kernel = kernel_of(target, masks.sliding_window(5))
    with pytest.raises(InvalidSpecError, match="has no block map"):
        kernel.prepare(q, k)
    with pytest.raises(TensorError, match=r"block_map=.*takes no such argument.*by position"):
        kernel(q, k, v, block_map=3)


def test_which_masks_need_a_map() -> None:
    ids = np.zeros(8, np.int32)
    sorted_ids = MaskMod(
        "ids: i32[1, non_decreasing]; ids[q_idx] == ids[kv_idx]", bound={"ids": ids}
    )
    for mask, expected in (
        (masks.document(ids), True),
        (masks.dense(np.ones((8, 8), bool)), True),
        (masks.document(ids) & masks.causal(), True),
        (masks.documents([0, 3, 8]), False),
        (masks.causal() | masks.sink_tokens(3), False),
        (masks.key_padding(ids), False),
        (sorted_ids, False),
    ):
        assert is_mapped(AttentionSpec(mask_mod=mask)) == expected, str(mask)
        assert not is_mapped(AttentionSpec(mask_mod=mask, varlen=True))


@every_target
@pytest.mark.parametrize("tile", [(128, 128), (64, 96), (192, 80), (32, 32), (33, 48)])
def test_any_tile_is_classified(target: str, tile: tuple[int, int]) -> None:
    """Classifiers of tiles that no kernel here asks for, by the emitted file alone."""
    mask = MaskMod("m: bool[2]; m[q_idx, kv_idx]")
    spec = MapSpec(mask=mask, tile_m=tile[0], tile_n=tile[1])
    plan = lower_map(spec, find_target(target))
    text = source_of(plan).text
    assert text == fmhagen.emit_map(spec, target=target).text
    assert repr(spec).removeprefix("MapSpec(")[:12] in text
    assert "#include" not in text
    lanes = find_target(target).lanes_per_warp
    numbers = {constant.name: constant.value for constant in plan.constants}
    assert numbers["LANE_KEYS"] * numbers["LANE_ROWS"] == lanes
    assert tile[1] % int(numbers["LANE_KEYS"]) == 0 or tile[1] > lanes


def test_specs_of_maps_refuse_what_no_kernel_does() -> None:
    mask = MaskMod("m: bool[2]; m[q_idx, kv_idx]")
    for sizes, match in (((0, 64), "tile_m=0"), ((64, 20), "tile_n=20: must be a multiple of 16")):
        with pytest.raises(InvalidSpecError, match=match):
            MapSpec(mask=mask, tile_m=sizes[0], tile_n=sizes[1])


@every_target
def test_packed_sequences_have_no_map_and_say_so(target: str) -> None:
    spec = AttentionSpec(head_dim=64, varlen=True, mask_mod="d: i32[1]; d[q_idx] == d[kv_idx]")
    kernel = compile_kernel(spec, target=target)
    q = np.zeros((10, 1, 64), np.float16)
    with pytest.raises(InvalidSpecError, match="its sequences are packed"):
        kernel.prepare(q, q)
    offsets = np.array([0, 10], np.int32)
    extras = {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets, "params": {"d": offsets}}
    with pytest.raises(TensorError, match="unless sequences are packed"):
        kernel(q, q, q, block_map=object(), **extras)
