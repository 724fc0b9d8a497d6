"""Problems that users of attention kernels meet, by kind, each with its right answer.

Small and exact where it can be: with q = 0 and v[j] = j, O is the mean of the visible keys'
indices; with V = 1 it is a row of probabilities.
"""

import functools
import mmap
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from cases import Case, in_order, place
from emulated import TARGET_NAMES, emulate, plan_of

from fmhagen.api import Kernel, compile_kernel, reference
from fmhagen.errors import InvalidSpecError, TensorError, UnsupportedSpecError
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.runtime.checks import Problem, axes_of
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.runtime.launch_values import launch_values, operand
from fmhagen.runtime.tensors import MisalignedTensorWarning, view
from fmhagen.spec import AttentionSpec
from fmhagen.targets import find_target

BF16 = np.dtype(ml_dtypes.bfloat16)
FULL = AttentionSpec(head_dim=64)
CAUSAL = AttentionSpec(head_dim=64, causal=True)
TOP_LEFT = AttentionSpec(head_dim=64, causal=True, anchor="top_left")
WIDE = AttentionSpec(head_dim=128)

Array = npt.NDArray[Any]
pytestmark = pytest.mark.parametrize("target", TARGET_NAMES)


@functools.cache
def kernel_of(spec: AttentionSpec, target: str) -> Kernel:
    return compile_kernel(spec, device="emulator", target=target)


def normal(seed: int, *shape: int, dtype: Any = BF16) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def bits(array: Array) -> Array:
    return array.view(np.uint16 if array.itemsize == 2 else np.uint32)


def assert_same_bits(a: Array, b: Array) -> None:
    assert a.shape == b.shape
    assert np.array_equal(bits(np.ascontiguousarray(a)), bits(np.ascontiguousarray(b)))


def assert_right(spec: AttentionSpec, o: Array, lse: Array | None, q: Any, k: Any, v: Any) -> None:
    found = compare(o, lse, *reference(spec, q, k, v))
    assert found.within(tolerance_of(spec.dtype)), str(found)


def index_probe(spec: AttentionSpec, rows: int, keys: int) -> tuple[Array, Array, Array]:
    """Return q = 0, k random, v[j] = j: O is the mean of the visible indices."""
    q = np.zeros((1, rows, 1, spec.d), BF16)
    k = normal(0, 1, keys, 1, spec.d)
    v = np.broadcast_to(np.arange(keys, dtype=np.float32)[None, :, None, None], k.shape)
    return q, k, v.astype(BF16)


# ---- what a mask shows ----


@pytest.mark.parametrize("rows", [1, 5, 65, 130])
@pytest.mark.parametrize("keys", [1, 2, 64, 131, 200])
@pytest.mark.parametrize("spec", [FULL, CAUSAL, TOP_LEFT], ids=["full", "causal", "top_left"])
def test_mean_of_the_visible_indices(
    target: str, spec: AttentionSpec, rows: int, keys: int
) -> None:
    o, lse = kernel_of(spec, target)(*index_probe(spec, rows, keys), return_lse=True)
    off = 0 if spec.anchor == "top_left" else keys - rows
    for m in range(rows):
        seen = min(keys, max(0, m + off + 1)) if spec.causal else keys
        mean = (seen - 1) / 2 if seen else 0.0
        assert np.allclose(o[0, m, 0].astype(np.float32), mean, rtol=2**-7, atol=1e-3), m
        expected = np.log(seen) if seen else -np.inf
        assert lse[0, 0, m] == pytest.approx(expected, rel=1e-5, abs=1e-5), m


@pytest.mark.parametrize("spec", [FULL, CAUSAL, TOP_LEFT], ids=["full", "causal", "top_left"])
def test_one_hot_values_give_the_row_of_visible_keys(target: str, spec: AttentionSpec) -> None:
    rows, keys = 70, 64
    q, k, _ = index_probe(spec, rows, keys)
    v = np.eye(64, dtype=np.float32)[None, :, None].astype(BF16)
    o = kernel_of(spec, target)(q, k, v)[0, :, 0].astype(np.float32)
    off = 0 if spec.anchor == "top_left" else keys - rows
    m, n = np.arange(rows)[:, None], np.arange(keys)[None]
    visible = n <= m + off if spec.causal else np.ones((rows, keys), bool)
    assert np.array_equal(o > 0, visible)
    counts = np.maximum(1, visible.sum(1, keepdims=True))
    np.testing.assert_allclose(o, visible / counts, rtol=2**-8)


def test_more_queries_than_keys(target: str) -> None:
    o, lse = kernel_of(CAUSAL, target)(*index_probe(CAUSAL, 5, 2), return_lse=True)
    assert np.array_equal(o[0, :, 0, 0].astype(np.float32), [0, 0, 0, 0, 0.5])
    np.testing.assert_allclose(lse[0, 0], [-np.inf] * 3 + [0, np.log(2)], atol=1e-6)


def test_tiles_of_rows_that_see_nothing(target: str) -> None:
    """Whole tiles before the first visible key, as with a long prompt and a short cache."""
    q, k, v = normal(1, 1, 600, 2, 64), normal(2, 1, 3, 1, 64), normal(3, 1, 3, 1, 64)
    o, lse = kernel_of(CAUSAL, target)(q, k, v, return_lse=True)
    assert not o[:, :597].any()
    assert np.all(lse[:, :, :597] == -np.inf)
    assert_right(CAUSAL, o, lse, q, k, v)


def test_cross_attention_with_unrelated_lengths(target: str) -> None:
    q = np.ones((1, 64, 1, 64), BF16)
    k = np.ones((1, 128, 1, 64), BF16)
    v = index_probe(FULL, 64, 128)[2]
    o = kernel_of(FULL, target)(q, k[:, :32], v[:, :32])  # a quarter of the keys is valid
    assert np.all(o.astype(np.float32) == 15.5)


def test_an_unlimited_window_is_no_window(target: str) -> None:
    assert AttentionSpec(head_dim=64, window_left=-1, window_right=-1) == FULL
    assert AttentionSpec(head_dim=64, window_left=None, window_right=-1) == FULL
    q, k, v = normal(1, 1, 70, 2, 64), normal(2, 1, 133, 1, 64), normal(3, 1, 133, 1, 64)
    for field in ("window_left", "window_right"):
        for width in (0, 5):  # with -1 on the other side, which must not hide everything
            spec = AttentionSpec(
                head_dim=64, **{"window_left": -1, "window_right": -1, field: width}
            )
            assert spec == AttentionSpec(head_dim=64, **{field: width})
            o, lse = kernel_of(spec, target)(q, k, v, return_lse=True)
            assert_right(spec, o, lse, q, k, v)
        with pytest.raises(InvalidSpecError, match=field):
            AttentionSpec(head_dim=64, **{field: -2})


# ---- numbers ----


@pytest.mark.parametrize("rows", [64, 704])
def test_very_negative_logits_beside_hidden_columns(target: str, rows: int) -> None:
    """Columns past the end score 0, far above every real logit, and must not count."""
    q = np.zeros((1, rows, 1, 64), BF16)
    k = normal(0, 1, 704, 1, 64) * np.float32(0.01)
    k = k.astype(BF16)
    q[..., 0], k[..., 0] = 1, -120 * 8
    v = normal(1, 1, 704, 1, 64)
    for spec in (FULL, CAUSAL):
        o, lse = kernel_of(spec, target)(q, k, v, return_lse=True)
        assert_right(spec, o, lse, q, k, v)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("spec", [FULL, CAUSAL], ids=["full", "causal"])
def test_logits_that_rise_or_fall_along_the_keys(
    target: str, spec: AttentionSpec, sign: float
) -> None:
    """Every key tile moves the reference, or none does."""
    keys = 500
    q, k = np.zeros((1, 100, 1, 64), BF16), np.zeros((1, keys, 1, 64), BF16)
    q[..., 0] = 8
    k[0, :, 0, 0] = (sign * np.linspace(-100, 100, keys)).astype(BF16)
    v = normal(0, 1, keys, 1, 64)
    o, lse = kernel_of(spec, target)(q, k, v, return_lse=True)
    assert_right(spec, o, lse, q, k, v)


@pytest.mark.parametrize("length", [1, 2, 5, 17])
@pytest.mark.parametrize("causal", [False, True])
def test_short_sequences_of_large_fp16_numbers(target: str, length: int, causal: bool) -> None:
    spec = AttentionSpec(dtype="fp16", head_dim=64, causal=causal)
    q, k, v = (
        normal(seed, 2, length, 5, 64, dtype=np.float16) * np.float16(factor)
        for seed, factor in enumerate((5, 3, 3))
    )
    o, lse = kernel_of(spec, target)(q, k, v, return_lse=True)
    assert_right(spec, o, lse, q, k, v)


def test_fp16_products_beyond_the_range_of_fp16(target: str) -> None:
    """Products of 16-bit numbers do not overflow before the scale."""
    spec = AttentionSpec(dtype="fp16", head_dim=64, scale=1e-7)
    q, k = (np.full((1, 65, 1, 64), 2000, np.float16) for _ in range(2))
    k[:, ::2] = -2000
    v = normal(0, 1, 65, 1, 64, dtype=np.float16)
    o, lse = kernel_of(spec, target)(q, k, v, return_lse=True)
    assert_right(spec, o, lse, q, k, v)


def test_a_scale_of_zero_and_a_tiny_one(target: str) -> None:
    q, k, v = normal(0, 1, 130, 2, 64), normal(1, 1, 200, 2, 64), normal(2, 1, 200, 2, 64)
    for scale in (0.0, 1e-45, 1e-30):
        o, lse = kernel_of(CAUSAL, target)(q, k, v, scale=scale, return_lse=True)
        found = compare(o, lse, *reference(CAUSAL, q, k, v, scale=scale))
        assert found.within(tolerance_of("bf16")), str(found)
    for scale in (-1.0, float("nan"), float("inf"), 1e39):
        with pytest.raises(InvalidSpecError, match="scale"):
            kernel_of(CAUSAL, target)(q, k, v, scale=scale)


# ---- parts of a softmax ----


def merge(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Merge (O, LSE) of disjoint sets of keys."""
    lse = np.stack([part[1].astype(np.float64) for part in parts])
    total = np.logaddexp.reduce(lse, axis=0)
    weight = np.exp(lse - np.where(np.isfinite(total), total, 0))
    o = sum(
        w.transpose(0, 2, 1)[..., None] * part[0] for w, part in zip(weight, parts, strict=True)
    )
    return o, total


def test_a_part_without_keys_leaves_the_other_parts_unchanged(target: str) -> None:
    q, k, v = normal(0, 2, 3, 2, 64), normal(1, 2, 4, 1, 64), normal(2, 2, 4, 1, 64)
    kernel = kernel_of(FULL, target)
    part = kernel(q, k, v, return_lse=True)
    o, lse = kernel(q, k[:, :0], v[:, :0], return_lse=True)
    assert not o.any()
    assert np.all(lse == -np.inf)
    merged_o, merged_lse = merge([part, (o.astype(np.float64), lse)])
    assert np.array_equal(merged_o, part[0].astype(np.float64))
    np.testing.assert_allclose(merged_lse, part[1], rtol=1e-12)


@pytest.mark.parametrize("cut", [1, 64, 100, 257])
def test_chunks_of_keys_merge_to_the_whole(target: str, cut: int) -> None:
    q, k, v = normal(0, 1, 90, 4, 64), normal(1, 1, 300, 2, 64), normal(2, 1, 300, 2, 64)
    kernel = kernel_of(FULL, target)
    parts = [
        kernel(q, k[:, part], v[:, part], return_lse=True)
        for part in (slice(0, cut), slice(cut, 300))
    ]
    o, lse = merge([(part[0].astype(np.float64), part[1]) for part in parts])
    assert_right(FULL, o, lse, q, k, v)


# ---- empty tensors ----


@pytest.mark.parametrize("spec", [FULL, CAUSAL, TOP_LEFT, WIDE], ids=repr)
def test_no_keys(target: str, spec: AttentionSpec) -> None:
    for heads, heads_kv, rows in ((1, 1, 4), (4, 2, 130), (3, 1, 1)):
        q = normal(0, 2, rows, heads, spec.d)
        k, v = (np.zeros((2, 0, heads_kv, spec.d), BF16) for _ in range(2))
        out = np.full_like(q, np.nan)
        o, lse = kernel_of(spec, target)(q, k, v, out=out, return_lse=True)
        assert o is out
        assert not o.any()
        assert np.all(lse == -np.inf)


@pytest.mark.parametrize("spec", [FULL, CAUSAL], ids=["full", "causal"])
@pytest.mark.parametrize(("batch", "rows", "heads"), [(0, 4, 2), (2, 0, 2), (2, 4, 0), (0, 0, 2)])
def test_empty_in_empty_out(
    target: str, spec: AttentionSpec, batch: int, rows: int, heads: int
) -> None:
    q = np.zeros((batch, rows, heads, 64), BF16)
    k, v = (np.zeros((batch, 5, heads, 64), BF16) for _ in range(2))
    o, lse = kernel_of(spec, target)(q, k, v, return_lse=True)
    assert o.shape == q.shape
    assert lse.shape == (batch, heads, rows)


# ---- sizes ----


@pytest.mark.parametrize(("batch", "heads", "rows"), [(65536, 8, 4), (1, 71280, 3), (65537, 1, 1)])
def test_more_heads_in_all_than_a_grid_dimension_holds(
    target: str, batch: int, heads: int, rows: int
) -> None:
    """All tiles lie in the first dimension of the grid, which is long enough."""
    for spec in (FULL, CAUSAL):
        plan = plan_of(spec, target)
        problem = Problem(batch=batch, heads=heads, heads_kv=heads, seqlen_q=rows, seqlen_k=rows)
        chip = find_target(target)
        operands = tuple(
            operand(name, view(name, np.empty((batch, rows, heads, 64), BF16)), axes_of(spec))
            for name in "qkvo"
        )
        values = launch_values(plan, problem, operands, chip.compute_units)
        assert values.values["num_tiles"] == batch * heads
        assert 0 < values.blocks <= chip.max_blocks_x


def test_many_small_heads(target: str) -> None:
    q, k, v = (normal(seed, 33, 3, 8, 64) for seed in range(3))
    assert_right(FULL, kernel_of(FULL, target)(q, k, v), None, q, k, v)


@pytest.mark.parametrize("length", [3, 13, 296, 321, 1057])
def test_lengths_that_are_no_multiple_of_a_tile(target: str, length: int) -> None:
    q, k, v = normal(0, 1, 33, 2, 128), normal(1, 1, length, 1, 128), normal(2, 1, length, 1, 128)
    o, lse = kernel_of(WIDE, target)(q, k, v, return_lse=True)
    assert_right(WIDE, o, lse, q, k, v)


@pytest.mark.parametrize(("heads", "heads_kv"), [(21, 7), (9, 3), (5, 1), (16, 2)])
def test_groups_of_any_whole_size(target: str, heads: int, heads_kv: int) -> None:
    q = normal(0, 2, 5, heads, 64)
    k, v = normal(1, 2, 40, heads_kv, 64), normal(2, 2, 40, heads_kv, 64)
    o, lse = kernel_of(CAUSAL, target)(q, k, v, return_lse=True)
    assert_right(CAUSAL, o, lse, q, k, v)
    alone = kernel_of(CAUSAL, target)(q, *(np.repeat(x, heads // heads_kv, 2) for x in (k, v)))
    assert_same_bits(o, alone)


@pytest.mark.parametrize(("heads", "heads_kv"), [(3, 2), (33, 2), (2, 4), (4, 0)])
def test_groups_of_no_whole_size_are_refused(target: str, heads: int, heads_kv: int) -> None:
    q = normal(0, 1, 5, heads, 64)
    k, v = (np.zeros((1, 5, heads_kv, 64), BF16) for _ in range(2))
    with pytest.raises(TensorError, match="heads"):
        kernel_of(FULL, target)(q, k, v)


@pytest.mark.parametrize("head_dim", [3, 65, 1000])
def test_head_dims_without_a_kernel_are_refused_with_what_works(target: str, head_dim: int) -> None:
    chip = find_target(target)
    assert head_dim not in chip.head_dims
    with pytest.raises(UnsupportedSpecError, match=r"head_dim=.*head_dim=\d"):
        kernel_of(AttentionSpec(head_dim=head_dim), target)
    if not chip.head_dims_differ:
        with pytest.raises(UnsupportedSpecError, match="head_dim_v"):
            kernel_of(AttentionSpec(head_dim=128, head_dim_v=64), target)


def test_tensors_that_do_not_fit_the_spec_are_refused(target: str) -> None:
    q, k, v = (normal(seed, 1, 5, 2, 64) for seed in range(3))
    kernel = kernel_of(FULL, target)
    wrong = {
        "q": (q.astype(np.float32), k, v),
        "k": (q, k.astype(np.float16), v),
        "v": (q, k, v[:, :4]),
    }
    for name, tensors in wrong.items():
        with pytest.raises(TensorError, match=rf"^{name}\b"):
            kernel(*tensors)
    with pytest.raises(TensorError):
        kernel(q[..., :32], k, v)
    with pytest.raises(TensorError):
        kernel(q[0], k, v)


# ---- layouts ----


@pytest.mark.parametrize("spec", [CAUSAL, WIDE], ids=["causal", "wide"])
def test_equal_values_give_equal_bits_in_every_layout(target: str, spec: AttentionSpec) -> None:
    case = Case(spec=spec, batch=2, heads=4, heads_kv=2, rows=77, keys=150)
    kernel = kernel_of(spec, target)
    values = case.values()
    first = kernel(*(place(x, "bshd", "dense").numpy for x in values), return_lse=True)
    for layouts in (
        ("swapped",) * 3,
        ("sliced",) * 3,
        ("padded",) * 3,
        ("dense", "swapped", "sliced"),
        ("sliced", "padded", "swapped"),
    ):
        placed = (place(x, "bshd", how).numpy for x, how in zip(values, layouts, strict=True))
        again = kernel(*placed, return_lse=True)
        assert_same_bits(first[0], again[0])
        assert_same_bits(first[1], again[1])
    other = kernel_of(AttentionSpec(**{**spec.to_dict(), "layout": "bhsd"}), target)
    o, lse = other(*(in_order(x, "bhsd") for x in values), return_lse=True)
    assert_same_bits(first[0], o.transpose(0, 2, 1, 3))
    assert_same_bits(first[1], lse)


def test_slices_of_one_projection(target: str) -> None:
    """Q, K and V interleaved in one buffer of rows, as a fused projection leaves them."""
    heads, heads_kv, rows = 4, 2, 130
    fused = normal(0, 2, rows, heads + 2 * heads_kv, 64)
    q, k, v = fused[:, :, :4], fused[:, :, 4:6], fused[:, :, 6:]
    o = kernel_of(CAUSAL, target)(q, k, v)
    assert_same_bits(o, kernel_of(CAUSAL, target)(q.copy(), k.copy(), v.copy()))


@pytest.mark.parametrize("axis", [0, 2], ids=["batch", "heads"])
@pytest.mark.parametrize("which", ["k", "v", "kv"])
def test_expanded_keys_and_values(target: str, axis: int, which: str) -> None:
    keys = 1057 if axis == 2 and which == "kv" else 161
    q = normal(0, 2, 40, 6, 128)
    k, v = normal(1, 2, keys, 3, 128), normal(2, 2, keys, 3, 128)
    first = (slice(None),) * axis + (slice(0, 1),)
    k = np.broadcast_to(k[first], k.shape) if "k" in which else k
    v = np.broadcast_to(v[first], v.shape) if "v" in which else v
    kernel = kernel_of(WIDE, target)
    assert_same_bits(kernel(q, k, v), kernel(q, k.copy(), v.copy()))


def test_an_expanded_query(target: str) -> None:
    q = np.broadcast_to(normal(0, 1, 1, 1, 64), (2, 70, 4, 64))
    k, v = normal(1, 2, 90, 2, 64), normal(2, 2, 90, 2, 64)
    kernel = kernel_of(CAUSAL, target)
    assert_same_bits(kernel(q, k, v), kernel(q.copy(), k, v))


def test_a_last_dimension_without_unit_stride_is_refused(target: str) -> None:
    q, k, v = (normal(seed, 1, 64, 2, 64) for seed in range(3))
    kernel = kernel_of(FULL, target)
    for tensors, name in (
        ((q.transpose(0, 3, 2, 1), k, v), "q"),
        ((q, normal(0, 1, 64, 2, 128)[..., ::2], v), "k"),
        ((q, k, v[..., ::-1]), "v"),
        ((q, k[:, ::-1], v), "k"),
    ):
        with pytest.raises(TensorError, match=rf"^{name}\b.*strid"):
            kernel(*tensors)


def test_strides_of_single_elements_do_not_matter(target: str) -> None:
    """A dimension of size 1 may have any stride, also one that no kernel could take."""
    values = [normal(seed, 1, 3, 1, 64) for seed in range(3)]
    kernel = kernel_of(TOP_LEFT, target)
    expected = kernel(*(x[:, :1] for x in values[:1]), *values[1:], return_lse=True)
    odd = []
    for x, rows in zip(values, (1, 3, 3), strict=True):
        memory = np.full(3 * 64 + 7, np.nan, np.float32).astype(BF16)
        start = -memory.ctypes.data // 2 % 8
        memory[start : start + rows * 64] = x[0, :rows, 0].reshape(-1)
        strides = (3 * 2, 64 * 2 if rows > 1 else 14, 5 * 2, 2)
        odd.append(np.ndarray((1, rows, 1, 64), BF16, memory, start * 2, strides))
    o, lse = kernel(*odd, return_lse=True)
    assert_same_bits(o, expected[0])
    assert_same_bits(lse, expected[1])


def test_one_query_row_under_a_top_left_mask(target: str) -> None:
    """Rows that a tile has beyond the last one see more keys, and must not be stored over it."""
    for heads in (1, 3):
        q, k, v = (
            normal(0, 2, 1, heads, 64),
            normal(1, 2, 99, heads, 64),
            normal(2, 2, 99, heads, 64),
        )
        o, lse = kernel_of(TOP_LEFT, target)(q, k, v, return_lse=True)
        assert_same_bits(o[:, 0], v[:, 0])
        assert_right(TOP_LEFT, o, lse, q, k, v)


@pytest.mark.parametrize("kind", ["offset", "pitch"])
def test_misaligned_tensors_are_copied_with_a_warning(target: str, kind: str) -> None:
    values = [normal(seed, 1, 70, 2, 64) for seed in range(3)]
    odd = []
    for x in values:
        if kind == "offset":
            memory = np.empty(x.size + 1, BF16)
            view = memory[1:].reshape(x.shape)
        else:
            view = np.empty((*x.shape[:3], 65), BF16)[..., :64]
        view[...] = x
        odd.append(view)
    kernel = kernel_of(CAUSAL, target)
    with pytest.warns(MisalignedTensorWarning, match="is copied"):
        o = kernel(*odd)
    assert_same_bits(o, kernel(*values))


def far_apart(values: Array, strides: tuple[int, int, int], start: int) -> Array:
    """Return a view of lazily mapped memory whose rows, heads or batches lie far apart."""
    shape = values.shape
    last = sum((n - 1) * s for n, s in zip(shape[:3], strides, strict=True)) + shape[3]
    memory = mmap.mmap(
        -1,
        2 * (start + last),
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000),
    )
    view = np.ndarray(shape, BF16, memory, 2 * start, tuple(2 * s for s in (*strides, 1)))
    view[...] = values
    return view


@pytest.mark.parametrize(
    "strides",  # of batch, row and head
    [
        *((2**31 + 64, 128, 64), (64, 2**24 + 64, 64), (64, 2**26, 64), (64, 2**28 + 64, 64)),
        *((64, 2**31 + 64, 64), (64, 128, 2**27 + 64), (64, 64, 2**30)),
    ],
    ids=lambda strides: "x".join(map(str, strides)),
)
def test_offsets_beyond_31_bits(target: str, strides: tuple[int, int, int]) -> None:
    """Views of memory of which only a few pages are ever touched."""
    rows = 40
    batch, heads = (1, 3) if strides[0] == 64 else (2, 2)
    values = [normal(seed, batch, rows, heads, 64) for seed in range(3)]
    kernel = kernel_of(CAUSAL, target)
    expected = kernel(*values)
    tensors = [far_apart(x, strides, 0) for x in values]
    if target == "gfx942" and strides[1] >= 2**24:  # 4 GiB in a tile's rows: read from a copy
        with pytest.warns(MisalignedTensorWarning, match="rows"):
            o = kernel(*tensors)
        with pytest.raises(TensorError, match=r"out=.*rows"):
            kernel(*values, out=tensors[0])
    else:
        o = kernel(*tensors)
    assert_same_bits(o, expected)


# ---- garbage ----


@pytest.mark.parametrize("length", [1, 13, 64, 130])
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf], ids=str)
def test_garbage_beyond_the_keys(target: str, length: int, garbage: float) -> None:
    """A cache with room for more keys than it holds."""
    capacity = length + 67
    q = normal(0, 2, 3, 4, 64)
    k, v = (np.full((2, capacity, 2, 64), garbage, BF16) for _ in range(2))
    k[:, :length], v[:, :length] = normal(1, 2, length, 2, 64), normal(2, 2, length, 2, 64)
    kernel = kernel_of(CAUSAL, target)
    o, lse = kernel(q, k[:, :length], v[:, :length], return_lse=True)
    assert_right(CAUSAL, o, lse, q, k[:, :length], v[:, :length])
    assert_same_bits(o, kernel(q, k[:, :length].copy(), v[:, :length].copy()))


def test_garbage_in_keys_that_the_mask_hides(target: str) -> None:
    """Scores of hidden keys are replaced, not added to."""
    q, k, v = normal(0, 1, 64, 1, 64), normal(1, 1, 400, 1, 64), normal(2, 1, 400, 1, 64)
    k[:, 64:] = np.nan
    kernel = kernel_of(TOP_LEFT, target)
    o, lse = kernel(q, k, v, return_lse=True)
    assert_right(TOP_LEFT, o, lse, q, k[:, :64], v[:, :64])


def test_an_output_within_a_larger_buffer(target: str) -> None:
    """Neighbouring heads, rows and columns of O keep what they hold."""
    q, k, v = normal(0, 2, 70, 2, 64), normal(1, 2, 90, 2, 64), normal(2, 2, 90, 2, 64)
    plan = plan_of(FULL, target)
    buffer = np.full((2, 75, 4, 80), 7, BF16)
    inside = (slice(None), slice(2, 72), slice(1, 3), slice(8, 72))
    result = emulate(plan, (q, k, v), out=buffer[inside])
    assert_right(FULL, buffer[inside], result.lse, q, k, v)
    outside = np.ones(buffer.shape, bool)
    outside[inside] = False
    assert np.all(buffer[outside].astype(np.float32) == 7)
    # The emulator puts back what lies between the elements of an output, so count bytes, too.
    written = {use.name: use.written_bytes for use in result.report.buffers}
    assert written["out"] == q.size * 2


@pytest.mark.parametrize("want_lse", [False, True])
def test_every_output_byte_is_written_once(target: str, want_lse: bool) -> None:
    q, k, v = normal(0, 2, 131, 3, 64), normal(1, 2, 7, 1, 64), normal(2, 2, 7, 1, 64)
    for spec in (FULL, CAUSAL):
        result = emulate(plan_of(spec, target), (q, k, v), want_lse=want_lse)
        for use in result.report.buffers:
            if use.name in ("out", "lse"):
                assert use.unwritten_bytes == 0
        names = {use.name for use in result.report.buffers}
        assert ("lse" in names) == want_lse


# ---- call after call ----


def test_a_call_does_not_remember_the_one_before(target: str) -> None:
    """Equal shapes, and one thing changed: scale, LSE, a stride of 0, addresses, the mask."""
    q, k, v = normal(0, 1, 65, 4, 64), normal(1, 1, 65, 4, 64), normal(2, 1, 65, 4, 64)
    expanded = np.broadcast_to(k[:, :, :1], k.shape)
    for spec in (FULL, CAUSAL, TOP_LEFT):
        kernel = kernel_of(spec, target)
        first = kernel(q, k, v)
        for scale in (0.5, None, 0.01, None):
            for keys in (k, expanded, k.copy()):
                o, lse = kernel(q, keys, v, scale=scale, return_lse=True)
                found = compare(o, lse, *reference(spec, q, keys, v, scale=scale))
                assert found.within(tolerance_of("bf16")), str(found)
        assert_same_bits(first, kernel(q, k, v))


def test_the_scale_of_a_spec_and_of_a_call_mean_the_same(target: str) -> None:
    q, k, v = (normal(seed, 1, 65, 2, 64) for seed in range(3))
    baked = compile_kernel(AttentionSpec(head_dim=64, scale=0.3), device="emulator", target=target)
    assert_same_bits(baked(q, k, v), kernel_of(FULL, target)(q, k, v, scale=0.3))
    assert_same_bits(baked(q, k, v, scale=64**-0.5), kernel_of(FULL, target)(q, k, v))


@pytest.mark.parametrize("mates", [1, 7])
def test_a_sequence_does_not_depend_on_its_batch_mates(target: str, mates: int) -> None:
    q, k, v = (normal(seed, 1 + mates, 70, 2, 64) for seed in range(3))
    kernel = kernel_of(CAUSAL, target)
    together = kernel(q, k, v, return_lse=True)
    alone = kernel(*(x[:1] for x in (q, k, v)), return_lse=True)
    assert_same_bits(together[0][:1], alone[0])
    assert_same_bits(together[1][:1], alone[1])


def test_equal_calls_give_equal_bits(target: str) -> None:
    q, k, v = normal(0, 1, 200, 3, 64), normal(1, 1, 300, 3, 64), normal(2, 1, 300, 3, 64)
    plan = plan_of(CAUSAL, target)
    runs = [
        emulate(plan, (q, k, v), options=EmulatorOptions(seed=seed, compute_units=1 + seed % 3))
        for seed in range(10)
    ]
    for run in runs[1:]:
        assert_same_bits(runs[0].o, run.o)
        assert_same_bits(runs[0].lse, run.lse)
