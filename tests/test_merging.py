"""merge_states on both targets: parts of attention against float64, and against the whole."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from emulated import TARGET_NAMES

import fmhagen
from fmhagen import AttentionSpec, MergeSpec, compile_kernel, merge_states, reference
from fmhagen.errors import CaptureError, InvalidSpecError, TensorError
from fmhagen.merging import MAX_PARTS
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.runtime import small_kernels
from fmhagen.runtime.tensors import Memory, MisalignedTensorWarning

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {"bf16": BF16, "fp16": np.dtype(np.float16), "fp32": np.dtype(np.float32)}
STEP = {"bf16": 2**-8, "fp16": 2**-11, "fp32": 2**-21}  # of O, relative to its largest part
Array = npt.NDArray[Any]
pytestmark = pytest.mark.parametrize("target", TARGET_NAMES)


def parts_of(
    count: int, shape: tuple[int, ...], dtype: Any = BF16, seed: int = 0
) -> tuple[list[Array], list[Array]]:
    """Parts of O in the layout bshd (or thd), and LSE of a wide range with some rows empty."""
    generator = np.random.default_rng(seed)
    heads_first = (shape[-2], shape[0]) if len(shape) == 3 else (shape[0], shape[2], shape[1])
    os = [generator.standard_normal(shape, np.float32).astype(dtype) for _ in range(count)]
    lses = [(generator.standard_normal(heads_first) * 4).astype(np.float32) for _ in range(count)]
    for lse in lses:
        lse[generator.random(lse.shape) < 0.2] = -np.inf
    return os, lses


def float64(os: list[Array], lses: list[Array], base: float = np.e) -> tuple[Array, Array]:
    """Merge in float64; a part of -inf is nothing, whatever it holds."""
    scores = np.stack(lses).astype(np.float64) * np.log(base)
    largest = scores.max(0)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = weights.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(total > 0, weights / total, 0)
        lse = (np.log(total) + largest) / np.log(base)
    shares = np.moveaxis(shares, -1, -2)[..., None]  # heads behind rows, as in O
    values = np.where(shares > 0, np.stack(os).astype(np.float64), 0)
    return (shares * values).sum(0), np.where(total > 0, lse, -np.inf)


def assert_merged(
    found: tuple[Array, Array], os: list[Array], lses: list[Array], dtype: str, base: float = np.e
) -> None:
    o, lse = float64(os, lses, base)
    scale = np.abs(np.where(np.isfinite(o), o, 0)).max(initial=1)
    np.testing.assert_allclose(found[0].astype(np.float64), o, rtol=0, atol=STEP[dtype] * scale)
    assert found[1].dtype == np.float32
    np.testing.assert_allclose(found[1], lse, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("dtype", "depth", "count"),
    [
        *(("bf16", depth, 2) for depth in (16, 80, 128, 256)),
        *(("fp16", 64, 3), ("fp32", 16, 2), ("fp32", 96, 3)),
    ],
)
def test_against_float64(target: str, dtype: str, depth: int, count: int) -> None:
    os, lses = parts_of(count, (2, 7, 3, depth), DTYPES[dtype], seed=depth)
    assert_merged(merge_states(os, lses, target=target), os, lses, dtype)


@pytest.mark.parametrize("count", [1, 5, MAX_PARTS, MAX_PARTS + 1, 2 * MAX_PARTS + 3])
def test_any_number_of_parts(target: str, count: int) -> None:
    os, lses = parts_of(count, (1, 5, 2, 32), np.float32)
    assert_merged(merge_states(os, lses, target=target), os, lses, "fp32")


def test_one_tensor_of_parts_packed_rows_and_other_layouts(target: str) -> None:
    os, lses = parts_of(3, (11, 2, 64))
    stacked = merge_states(np.stack(os), np.stack(lses), target=target)
    assert_merged(stacked, os, lses, "bf16")
    os, lses = parts_of(2, (2, 9, 3, 64))
    turned = [o.transpose(0, 2, 1, 3) for o in os]
    dense = [np.ascontiguousarray(o) for o in turned]
    for given in (turned, dense):
        o, lse = merge_states(given, lses, layout="bhsd", target=target)
        assert_merged((o.transpose(0, 2, 1, 3), lse), os, lses, "bf16")
    wide = [np.repeat(lse, 2, axis=-1)[..., ::2] for lse in lses]  # strided LSE
    assert_merged(merge_states(os, wide, target=target), os, lses, "bf16")
    one = np.broadcast_to(os[0][:1], os[0].shape)  # a part that every sequence shares
    assert_merged(merge_states([one, os[1]], lses, target=target), [one, os[1]], lses, "bf16")


@pytest.mark.parametrize(("name", "base"), [("e", np.e), ("2", 2.0)])
def test_bases_of_the_logarithm(target: str, name: str, base: float) -> None:
    os, lses = parts_of(2, (1, 6, 2, 64))
    found = merge_states(os, lses, lse_base=name, target=target)
    assert_merged(found, os, lses, "bf16", base)


def test_a_part_that_saw_nothing_leaves_the_others_as_they_are(target: str) -> None:
    """To the bit, and whatever the empty part holds."""
    os, lses = parts_of(3, (2, 5, 2, 64))
    for empty in (0, 2):
        os[empty][:] = np.nan
        lses[empty][:] = -np.inf
    lses[1][:] = np.linspace(-300, 300, lses[1].size, dtype=np.float32).reshape(lses[1].shape)
    for base in ("e", "2"):
        o, lse = merge_states(os, lses, lse_base=base, target=target)
        assert np.array_equal(o.view(np.uint16), os[1].view(np.uint16))
        assert np.array_equal(lse, lses[1])


def test_if_no_part_saw_anything_the_result_is_nothing(target: str) -> None:
    os, lses = parts_of(2, (1, 3, 2, 64))
    for o in os:
        o[:] = np.nan
    lses = [np.full_like(lse, -np.inf) for lse in lses]
    o, lse = merge_states(os, lses, target=target)
    assert not o.astype(np.float32).any()
    assert np.all(lse == -np.inf)


def test_a_nan_is_not_lost(target: str) -> None:
    os, lses = parts_of(2, (1, 4, 1, 16))
    lses[0][:], lses[1][:] = 0, 0
    lses[1][0, 0, 2] = np.nan
    o, lse = merge_states(os, lses, target=target)
    assert np.isnan(o.astype(np.float32)[0, 2]).all()
    assert np.isnan(lse[0, 0, 2])
    assert np.isfinite(np.delete(o.astype(np.float32), 2, 1)).all()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("shape", [(2, 37, 3, 64), (1, 5, 2, 80), (3, 2, 1, 256)])
def test_in_place(target: str, which: int, shape: tuple[int, ...]) -> None:
    os, lses = parts_of(2, shape)
    expected = merge_states(os, lses, target=target)
    o, lse = os[which], lses[which]
    found = merge_states(os, lses, out=o, out_lse=lse, target=target)
    assert found[0] is o
    assert found[1] is lse
    assert np.array_equal(o.view(np.uint16), expected[0].view(np.uint16))
    assert np.array_equal(lse, expected[1])


def test_outputs_may_be_interleaved_with_parts_but_not_overlap(target: str) -> None:
    os, lses = parts_of(2, (1, 6, 4, 64))
    both = np.stack(os, 2)  # the parts lie row by row in one buffer
    wanted = merge_states(os, lses, target=target)
    o, _ = merge_states([both[:, :, 0], both[:, :, 1]], lses, out=both[:, :, 1], target=target)
    assert np.array_equal(np.ascontiguousarray(o).view(np.uint16), wanted[0].view(np.uint16))
    buffer = np.zeros((1, 7, 4, 64), BF16)
    with pytest.raises(TensorError, match=r"out=.*overlaps with os\[0\] without being it"):
        merge_states([buffer[:, :6], os[1]], lses, out=buffer[:, 1:], target=target)


def test_in_place_with_more_parts_than_a_kernel_takes(target: str) -> None:
    os, lses = parts_of(MAX_PARTS + 3, (1, 5, 2, 32), np.float32)
    wanted = float64(os, lses)
    merge_states(os, lses, out=os[0], out_lse=lses[0], target=target)
    np.testing.assert_allclose(os[0], wanted[0], atol=1e-6)
    np.testing.assert_allclose(lses[0], wanted[1], rtol=1e-6, atol=1e-6)


def test_merged_chunks_of_keys_are_the_whole(target: str) -> None:
    """Chunked prefill: one sequence runs out of prefix, so its later chunk has no key at all."""
    generator = np.random.default_rng(3)
    spec = AttentionSpec(head_dim=64)
    kernel = compile_kernel(spec, device="emulator", target=target)
    q, k, v = (
        generator.standard_normal((1, rows, heads, 64), np.float32).astype(BF16)
        for rows, heads in ((3, 4), (150, 2), (150, 2))
    )
    for cuts in ((0, 4, 150), (0, 70, 70, 150), (0, 1, 100, 150)):
        chunks = [
            kernel(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in itertools.pairwise(cuts)
        ]
        o, lse = merge_states(*zip(*chunks, strict=True), target=target)
        found = compare(o, lse, *reference(spec, q, k, v))
        assert found.within(tolerance_of("bf16")), str(found)
    empty = kernel(q, k[:, :0], v[:, :0], return_lse=True)
    whole = kernel(q, k, v, return_lse=True)
    o, lse = merge_states([empty[0], whole[0]], [empty[1], whole[1]], target=target)
    assert np.array_equal(o.view(np.uint16), whole[0].view(np.uint16))
    assert np.array_equal(lse, whole[1])


def test_misaligned_parts_are_copied_and_empty_ones_do_nothing(target: str) -> None:
    os, lses = parts_of(2, (1, 4, 2, 64))
    buffer = np.zeros(os[0].size + 1, BF16)
    buffer[1:] = os[0].ravel()
    odd = buffer[1:].reshape(os[0].shape)
    with pytest.warns(MisalignedTensorWarning, match=r"os\[0\] is copied"):
        found = merge_states([odd, os[1]], lses, target=target)
    assert_merged(found, os, lses, "bf16")
    o, lse = merge_states([os[0][:, :0]] * 2, [lses[0][..., :0]] * 2, target=target)
    assert (o.shape, lse.shape) == ((1, 0, 2, 64), (1, 2, 0))


def test_what_does_not_fit_is_refused_by_name(target: str) -> None:
    os, lses = parts_of(2, (2, 5, 3, 64))
    for bad_os, bad_lses, options, match in (
        (os, lses[:1], {}, "lses=1: must be as many as os, 2"),
        ([], [], {}, "at least 1"),
        ([os[0], os[1][:, :4]], lses, {}, r"os\[1\]=.*must have the shape \(2, 5, 3, 64\)"),
        (os, [lses[0], lses[1].transpose(0, 2, 1)], {}, r"lses\[1\].*the shape \(2, 3, 5\)"),
        (os, [lses[0], lses[1].astype(np.float64)], {}, "must have the element type fp32"),
        ([os[0], os[1].astype(np.float16)], lses, {}, r"os\[1\]='fp16'.*bf16"),
        ([o.astype(np.int32) for o in os], lses, {}, "element type of bf16, fp16, fp32"),
        (os, lses, {"out": os[0][:, :4]}, "out="),
        (os, lses, {"out": np.broadcast_to(os[0][:, :1], os[0].shape)}, "out="),
        (os, lses, {"out_lse": lses[0].astype(np.float16)}, "out_lse="),
        (os[0][0, 0], lses[0], {}, "needs a first axis of parts"),
        ([o[0, 0] for o in os], lses, {}, "must have four dimensions"),
    ):
        with pytest.raises(TensorError, match=match):
            merge_states(bad_os, bad_lses, target=target, **options)
    with pytest.raises(InvalidSpecError, match=r"lse_base='10': must be 'e' or '2'"):
        merge_states(os, lses, lse_base="10", target=target)
    with pytest.raises(InvalidSpecError, match="layout='sbhd'"):
        merge_states(os, lses, layout="sbhd", target=target)


def test_specs_print_as_their_constructor_and_refuse_what_no_kernel_does(target: str) -> None:
    spec = MergeSpec(dtype="fp16", head_dim_v=64, parts=3)  # type: ignore[arg-type]
    assert repr(spec) == "MergeSpec(dtype='fp16', head_dim_v=64, parts=3)"
    source = fmhagen.emit_merge(spec, target=target)
    assert source == fmhagen.emit_merge(spec, target=target)
    assert repr(spec) in source.text
    assert "#include" not in source.text
    for changes, match in (
        ({"parts": 0}, "parts=0: must be from 1 to 16"),
        ({"parts": 17}, "parts=17"),
        ({"head_dim_v": 12}, "must be a multiple of 8"),
        ({"dtype": "int8"}, "dtype='int8'"),
    ):
        with pytest.raises(InvalidSpecError, match=match):
            MergeSpec(**changes)


def test_a_kind_is_compiled_once(target: str) -> None:
    os, lses = parts_of(2, (1, 4, 2, 64))
    merge_states(os, lses, target=target)
    before = small_kernels.loaded.cache_info().misses
    merge_states([o[:, :2] for o in os], [lse[..., :2] for lse in lses], target=target)
    assert small_kernels.loaded.cache_info().misses == before


def test_a_cold_call_inside_a_capture_says_how_to_warm_up(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os, lses = parts_of(7, (1, 2, 1, 16), np.float32)  # a kind that nobody else uses
    backend = small_kernels.backend_of(Memory.HOST)
    with monkeypatch.context() as patch:
        patch.setattr(type(backend), "is_capturing", lambda *_: True)
        with pytest.raises(CaptureError, match="call merge_states once outside it"):
            merge_states(os, lses, target=target)
    merge_states(os, lses, target=target)
    monkeypatch.setattr(type(backend), "is_capturing", lambda *_: True)
    assert_merged(merge_states(os, lses, target=target), os, lses, "fp32")
