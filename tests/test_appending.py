"""append_kv on both targets: every byte of the cache against rows placed one by one in float64."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from cache_cases import DTYPES, FNUZ, HUGE_PAGE, aligned
from emulated import TARGET_NAMES

import fmhagen
from fmhagen import AppendSpec, append_kv
from fmhagen.appending import calls, launch
from fmhagen.appending.plan import source_of
from fmhagen.errors import (
    CaptureError,
    EmulatorError,
    InvalidSpecError,
    TensorError,
)
from fmhagen.runtime import small_kernels
from fmhagen.runtime.emulator_backend import LoadedEmulator
from fmhagen.runtime.tensors import Memory

BF16 = np.dtype(ml_dtypes.bfloat16)
Array = npt.NDArray[Any]
every_target = pytest.mark.parametrize("target", TARGET_NAMES)
STEP = {"bf16": 2**-8, "fp16": 2**-11, "e4m3": 2**-4, "e5m2": 2**-3, "int8": 0}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call."""

    lengths: tuple[int, ...]
    new: int = 1
    rows_q: int = 1
    heads: int = 3
    heads_kv: int = 1
    depth: int = 64
    depth_v: int = 64
    page: int | None = None
    room: int = 7  # slots of a contiguous cache behind its longest sequence
    layout: str = "nhd"
    dtype: str = "bf16"
    cache: str | None = None
    rotary: int = 0
    interleaved: bool = True
    angles: str = "fp32"
    advances: bool = True
    scaled: bool = False
    skip: int = 0  # elements between what would be aligned and where rows begin


def shown(case: Case) -> str:
    """Return what differs from the default, as the name of a test."""
    fields = dataclasses.fields(Case)
    changed = (f for f in fields if getattr(case, f.name) != f.default)
    return "-".join(f"{f.name}={getattr(case, f.name)}" for f in changed).replace(" ", "")


def bits(array: Array) -> Array:
    """Return the elements as integers, so that NaN is like NaN."""
    return array.view(f"u{array.dtype.itemsize}")


def shifted(array: Array, skip: int) -> Array:
    """Return a copy that begins `skip` elements behind a multiple of 128 bytes."""
    raw = aligned(np.zeros(array.size + skip, array.dtype))
    copy = raw[skip:].reshape(array.shape)
    copy[...] = array
    return copy


def turned(x: Array, positions: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rotate rows (n, heads, d) in float64."""
    out = x.astype(np.float64)
    half = cos.shape[1]
    one = np.arange(half) * 2 if interleaved else np.arange(half)
    other = one + 1 if interleaved else one + half
    at = np.clip(positions, 0, len(cos) - 1)
    c, s = (t.astype(np.float64)[at][:, None] for t in (cos, sin))
    a, b = out[..., one], out[..., other]
    out[..., one], out[..., other] = a * c - b * s, a * s + b * c
    return out


def assert_rows(found: Array, wanted: Array, dtype: str, *, exact: bool) -> None:
    """Compare rows with float64: to the bit, or one rounding (with fp32 in between) away."""
    if exact:
        assert np.array_equal(bits(found), bits(wanted.astype(found.dtype)))
        return
    step = STEP[dtype]
    limit = np.abs(wanted) * step * 1.01 + 1e-5
    is_fnuz = found.dtype in map(np.dtype, FNUZ.values())
    if dtype == "int8":
        limit = 0.501
    elif dtype in ("e4m3", "e5m2"):
        limit += {"e4m3": 2**-10, "e5m2": 2**-17}[dtype]  # half a step of subnormal numbers
    largest = {"e4m3": 240.0 if is_fnuz else 448.0, "e5m2": 57344.0, "int8": 127.0}.get(
        dtype, np.inf
    )
    wanted = np.clip(wanted, -128.0 if dtype == "int8" else -largest, largest)
    assert (np.abs(found.astype(np.float64) - wanted) <= limit).all()


def check(case: Case, target: str, seed: int = 0) -> None:
    """Make a call, and find every byte of the cache as it should be."""
    rng = np.random.default_rng(seed)
    batch = len(case.lengths)
    dtype = DTYPES[case.dtype]
    cache_name = case.cache or case.dtype
    shape = {"k": case.depth, "v": case.depth_v}
    rows = {
        name: (
            rng.standard_normal((batch, case.new, case.heads_kv, depth))
            * (100 if case.scaled else 3)
        ).astype(dtype)
        for name, depth in shape.items()
    }
    q = rng.standard_normal((batch, case.rows_q, case.heads, case.depth)).astype(dtype)
    most = max(1, *case.lengths)
    size = case.page or most + case.room
    width = -(-(most + case.room) // size)
    pages = batch * width + 2 if case.page else batch
    table = None
    if case.page:
        table = rng.permutation(pages)[: batch * width].reshape(batch, width).astype(np.int32)
        for b, length in enumerate(case.lengths):
            table[b, -(-(length + case.new) // size) :] = HUGE_PAGE  # slots that no row reaches
    poison = 99 if cache_name == "int8" else np.nan
    caches = {}
    for name, depth in shape.items():
        kinds = DTYPES | FNUZ if target == "gfx942" and case.cache else DTYPES
        full = np.full((pages, size, case.heads_kv, depth), poison, kinds[cache_name])
        if case.layout == "hnd":
            full = shifted(full.transpose(0, 2, 1, 3).copy(), case.skip).transpose(0, 2, 1, 3)
        else:
            full = shifted(full, case.skip)
        caches[name] = full
    wanted = {name: np.full(c.shape, np.nan) for name, c in caches.items()}
    options: dict[str, Any] = {}
    cos = sin = np.zeros((1, 0))
    if case.rotary:
        angles = rng.uniform(-3, 3, (most + case.new, case.rotary // 2))
        kind = {"fp32": np.float32, **DTYPES}[case.angles]
        cos, sin = (shifted(f(angles).astype(kind), case.skip) for f in (np.cos, np.sin))
        options = {"rotary_cos": cos, "rotary_sin": sin, "advances": case.advances}
        options["rotary_interleaved"] = case.interleaved
    scales = {name: np.ones((batch, case.heads_kv), np.float32) for name in shape}
    if case.scaled:
        scales = {
            name: rng.uniform(0.1, 2, s.shape).astype(np.float32) for name, s in scales.items()
        }
        options |= {f"{name}_scale": s for name, s in scales.items()}
    lengths = np.array(case.lengths, np.int32)
    new_q = q.astype(np.float64)
    for b, length in enumerate(case.lengths):
        if case.rotary:
            at = length + np.arange(case.rows_q) * case.advances
            new_q[b] = turned(q[b], at, cos, sin, case.interleaved)
        for name in shape:
            own = rows[name][b].astype(np.float64)
            if name == "k" and case.rotary:
                positions = length + np.arange(case.new)
                own = turned(rows[name][b], positions, cos, sin, case.interleaved)
            own = own / scales[name][b].astype(np.float64)[None, :, None]
            for n in range(case.new):
                page, slot = divmod(length + n, size)
                if length < 0 or page >= (1 if table is None else width):
                    continue
                entry = b if table is None else table[b, page]
                if 0 <= entry < pages:
                    wanted[name][entry, slot] = own[n]
    before = {name: bits(c).copy() for name, c in caches.items()}
    given = {name: shifted(r, case.skip) for name, r in rows.items()}
    own_q = shifted(q, case.skip)
    found = append_kv(
        *(caches["k"], caches["v"], given["k"], given["v"]),
        cache_seqlens=lengths,
        block_table=table,
        q=own_q,
        target=target,
        **options,
    )
    assert found.cache_seqlens.tolist() == [n + case.new for n in case.lengths]
    assert lengths.tolist() == list(case.lengths)
    assert np.array_equal(bits(own_q), bits(q))
    if case.rotary:
        assert_rows(found.q, new_q, case.dtype, exact=False)
        rest = slice(case.rotary, None)
        assert np.array_equal(bits(found.q[..., rest].copy()), bits(q[..., rest].copy()))
    else:
        assert found.q is own_q
    for name, cache in caches.items():
        written = ~np.isnan(wanted[name])
        assert written.any() == any(0 <= n < size * width for n in case.lengths) * (case.new > 0)
        assert np.array_equal(bits(cache)[~written], before[name][~written]), "outside the new rows"
        exact = case.cache is None and not (name == "k" and case.rotary)
        assert_rows(cache[written], wanted[name][written], cache_name, exact=exact)


@every_target
@pytest.mark.parametrize(
    "case",
    [
        Case(lengths=(0, 5, 31), depth=16, depth_v=256, new=2, heads_kv=2),
        Case(lengths=(0, 5, 31), page=1, new=3, rotary=64, rows_q=3),
        Case(lengths=(0, 4, 17, 16), page=16, new=5, rotary=32, depth=128, rows_q=5, layout="hnd"),
        Case(
            lengths=(2, 0, 9), page=3, new=5, rotary=64, interleaved=False, advances=False, rows_q=2
        ),
        Case(lengths=(7, 1), depth=80, rotary=20, interleaved=False, dtype="fp16", angles="fp16"),
        Case(lengths=(7, 1), page=16, depth=256, depth_v=48, rotary=256, angles="bf16", new=2),
        Case(lengths=(3, 8), page=3, depth=48, depth_v=24, rotary=10, new=4, heads_kv=3),
        Case(lengths=(3,), depth=96, rotary=96, skip=1, new=2, interleaved=False, page=3),
        Case(lengths=(3, 0), depth=32, depth_v=32, rotary=8, skip=2, angles="bf16"),
        Case(
            lengths=(3, 0), depth=32, depth_v=64, rotary=32, skip=4, interleaved=False, rows_q=130
        ),
        Case(lengths=(6, 0), dtype="e4m3", depth=64, depth_v=32, page=3, new=4),
        Case(lengths=(6, 0), dtype="e5m2", depth=48, skip=1),
    ],
    ids=shown,
)
def test_every_byte(case: Case, target: str) -> None:
    check(case, target)


def drawn(seed: int) -> Case:
    """Draw all that is a number of a call, so that few kernels serve."""
    rng = np.random.default_rng(seed)

    def number(low: int, high: int) -> int:
        return int(rng.integers(low, high + 1))

    return Case(
        lengths=tuple(number(0, 40) * number(0, 3) // 3 for _ in range(number(1, 5))),
        new=number(0, 5),
        rows_q=number(0, 4),
        heads=number(1, 5),
        heads_kv=number(1, 3),
        depth=32,
        depth_v=16,
        page=(None, 1, 3, number(2, 40))[number(0, 3)],
        room=number(0, 9),
        layout=("nhd", "hnd")[number(0, 1)],
        rotary=16,
        interleaved=False,
        advances=number(0, 1) == 1,
    )


@every_target
def test_drawn_calls(target: str) -> None:
    for seed in range(30):
        check(drawn(seed), target, seed)


@every_target
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    "case",
    [
        Case(lengths=(2, 0, 9), page=3, new=3, rotary=64, cache="e4m3"),
        Case(lengths=(2, 5), page=16, rotary=10, interleaved=False, cache="e5m2", heads_kv=2),
        Case(lengths=(0, 3), new=4, cache="int8", dtype="fp16", depth=16, layout="hnd"),
        Case(lengths=(1,), new=2, cache="e4m3", rotary=32, skip=1, layout="hnd"),
    ],
    ids=shown,
)
def test_rows_are_rounded_to_8_bits(case: Case, scaled: bool, target: str) -> None:
    check(dataclasses.replace(case, scaled=scaled), target)


@every_target
def test_what_8_bits_cannot_hold(target: str) -> None:
    """The largest number for what is larger, NaN for NaN (0 of whole numbers), ties to even."""
    values = [np.inf, -1e9, np.nan, 464.0, 1.0625, 1.1875, 2**-10, 3 * 2**-10, -0.0, 2.5, 3.5, -200]
    k = np.zeros((1, 1, 1, 16), np.float16)
    with np.errstate(over="ignore"):
        k[0, 0, 0, : len(values)] = values
    wanted = {
        "e4m3": [448, -448, np.nan, 448, 1, 1.25, 0, 2**-8, -0.0, 2.5, 3.5, -192],
        "e5m2": [57344, -57344, np.nan, 448, 1, 1.25, 2**-10, 3 * 2**-10, -0.0, 2.5, 3.5, -192],
        "int8": [127, -128, 0, 127, 1, 1, 0, 0, 0, 2, 4, -128],
    }
    kinds = DTYPES
    if target == "gfx942":
        kinds = DTYPES | FNUZ
        wanted["e4m3"] = [240, -240, np.nan, 240, 1, 1.25, 2**-10, 3 * 2**-10, 0, 2.5, 3.5, -192]
    for name, right in wanted.items():
        caches = [np.full((1, 1, 1, 16), 1, kinds[name]) for _ in range(2)]
        append_kv(*caches, k, k, cache_seqlens=np.zeros(1, np.int32), target=target)
        for cache in caches:
            found = cache[0, 0, 0, : len(values)].astype(np.float64)
            np.testing.assert_array_equal(found, right, err_msg=name)


@every_target
def test_rows_without_a_place_are_dropped(target: str) -> None:
    """Beyond the capacity, in pages that are not there, of lengths that mean nothing."""
    new, size, pages = 4, 3, 5
    k = np.ones((6, new, 1, 16), BF16)
    table = np.array([[0, 9], [1, -1], [HUGE_PAGE, 2], [-(2**31), 5], [3, 4], [3, 4]], np.int32)
    lengths = np.array([1, 2, 1, 0, 6, -3], np.int32)
    caches = [np.full((pages, size, 1, 16), np.nan, BF16) for _ in range(2)]
    found = append_kv(*caches, k, k, cache_seqlens=lengths, block_table=table, target=target)
    assert (found.cache_seqlens == lengths + new).all()
    for cache in caches:
        written = ~np.isnan(cache[..., 0, 0].astype(np.float32))
        right = [[0, 1, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0], [0, 0, 0]]
        assert written.astype(int).tolist() == right
    caches = [np.full((2, 3, 1, 16), np.nan, BF16) for _ in range(2)]
    append_kv(*caches, k[:2], k[:2], cache_seqlens=np.array([2, 3], np.int32), target=target)
    written = ~np.isnan(caches[0][..., 0, 0].astype(np.float32))
    assert written.astype(int).tolist() == [[0, 0, 1], [0, 0, 0]]


@every_target
def test_nothing_to_append(target: str) -> None:
    rng = np.random.default_rng(2)
    cache = np.full((2, 4, 1, 16), np.nan, BF16)
    lengths = np.array([3, 1], np.int32)
    empty = np.zeros((2, 0, 1, 16), BF16)
    found = append_kv(cache, cache.copy(), empty, empty, cache_seqlens=lengths, target=target)
    assert found.q is None
    assert found.cache_seqlens.tolist() == [3, 1]
    q = rng.standard_normal((2, 3, 2, 16)).astype(BF16)
    angles = rng.uniform(-3, 3, (4, 8)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    found = append_kv(
        *(cache, cache.copy()),
        q=q,
        cache_seqlens=lengths,
        rotary_cos=cos,
        rotary_sin=sin,
        target=target,
    )
    for b in range(2):  # positions past the last row of cos are taken as that row
        right = turned(q[b], lengths[b] + np.arange(3), cos, sin, True)
        assert_rows(found.q[b], right, "bf16", exact=False)
    assert np.isnan(cache.astype(np.float32)).all()
    none = append_kv(
        *(cache[:0], cache[:0], empty[:0], empty[:0]), cache_seqlens=lengths[:0], target=target
    )
    assert none.cache_seqlens.shape == (0,)


@every_target
def test_k_and_v_in_one_tensor_and_strided_rows(target: str) -> None:
    """As engines have them: pages (pages, 2, page_size, Hk, D), rows cut from one projection."""
    rng = np.random.default_rng(3)
    both = aligned(np.full((5, 2, 4, 2, 32), np.nan, BF16))
    packed = aligned(
        rng.standard_normal((2, 3, 8, 32)).astype(BF16)
    )  # 4 query heads, 2 of K, 2 of V
    k, v = packed[:, :, 4:6], packed[:, :, 6:]
    table = np.array([[4, 1], [3, 0]], np.int64)  # converted: int32 is what kernels read
    append_kv(
        *(both[:, 0], both[:, 1], k, v),
        cache_seqlens=np.array([2, 4], np.int64),
        block_table=table,
        target=target,
    )
    right = np.full(both.shape, np.nan, BF16)
    for b, length in enumerate((2, 4)):
        for n in range(3):
            page, slot = divmod(length + n, 4)
            right[table[b, page], 0, slot] = k[b, n]
            right[table[b, page], 1, slot] = v[b, n]
    assert np.array_equal(bits(both), bits(right))


@every_target
def test_torch_tensors_and_a_layout_that_is_known(target: str) -> None:
    torch = pytest.importorskip("torch")
    k = torch.randn(2, 1, 2, 32, dtype=torch.float32).to(torch.bfloat16)
    caches = [torch.zeros(2, 8, 2, 32, dtype=torch.bfloat16) for _ in range(2)]
    lengths = torch.tensor([3, 0], dtype=torch.int32)
    before = small_kernels.loaded.cache_info().misses
    for _ in range(3):
        lengths = append_kv(*caches, k, -k, cache_seqlens=lengths, target=target).cache_seqlens
    assert small_kernels.loaded.cache_info().misses <= before + 1
    assert lengths.dtype == torch.int32
    assert lengths.tolist() == [6, 3]
    assert (caches[0][0, 3:6] == k[0]).all()
    assert (caches[1][1, :3] == -k[1]).all()
    assert not caches[0][0, :3].any()
    assert not caches[1][1, 3:].any()


def test_a_known_layout_gives_the_kernel_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick path of a GPU, with the emulator's launches recorded instead of run."""
    torch = pytest.importorskip("torch")
    recorded: list[tuple[dict[str, Any], int]] = []
    bind = LoadedEmulator.bind

    def record(self: Any, values: list[Any], blocks: int, stream: int, memories: Any) -> Any:
        names = [field.name for field in self._plan.params]
        recorded.append((dict(zip(names, values, strict=True)), blocks))
        if memories.outputs:
            return bind(self, values, blocks, stream, memories)
        return lambda: None

    monkeypatch.setattr(LoadedEmulator, "bind", record)
    monkeypatch.setattr(calls, "quick_stream", lambda _: lambda _: 0)

    def half(*shape: int) -> Any:
        return torch.randn(*shape).to(torch.bfloat16)

    caches, k, q = [half(9, 4, 2, 32) for _ in range(2)], half(2, 3, 2, 32), half(2, 3, 6, 32)
    lengths = torch.tensor([5, 0], dtype=torch.int32)
    table = torch.arange(8, dtype=torch.int32).reshape(2, 4)
    cos, sin = torch.rand(16, 8), torch.rand(16, 8)

    def call(rows: Any, rotates: bool) -> Any:
        options = {"rotary_cos": cos, "rotary_sin": sin} if rotates else {}
        given = {"cache_seqlens": lengths, "block_table": table, "target": "sm90"}
        return append_kv(*caches, rows, -rows, q=q, **options, **given)

    for rotates in (True, False):
        recorded.clear()
        found = [call(k, rotates) for _ in range(3)]
        assert len(recorded) == 3  # the second and third are bound anew, to new outputs
        for (values, blocks), result in zip(recorded[1:], found[1:], strict=True):
            assert blocks == recorded[0][1]
            outputs = {"new_seqlens": result.cache_seqlens.data_ptr()}
            if rotates:
                outputs["rotated_q"] = result.q.data_ptr()
            inputs = {"v"}  # -rows is a new tensor in each call
            first = {n: x for n, x in recorded[0][0].items() if n not in {*outputs, *inputs}}
            assert {n: values[n] for n in first} == first
            assert {n: values[n] for n in outputs} == outputs
            assert result.q is q or rotates
    odd = half(2 * 3 * 2 * 32 + 1)[1:].reshape(k.shape)  # the same layout at another alignment
    call(odd, True)
    assert recorded[-1][0]["k"] == odd.data_ptr()
    assert (caches[0][table[1, 0], 0, :, 16:] == odd[1, 0, :, 16:]).all()


@every_target
def test_what_does_not_fit_is_refused_by_name(target: str) -> None:
    cache = np.zeros((2, 8, 2, 32), BF16)
    k = np.zeros((2, 1, 2, 32), BF16)
    lengths, table = np.zeros(2, np.int32), np.zeros((2, 3), np.int32)
    cos = np.zeros((8, 16), np.float32)
    small = cache.astype(ml_dtypes.float8_e4m3fn)
    for changes, match in (
        ({"v": None}, "v=None: k and v must be given together"),
        ({"k": None, "v": None}, "there must be rows to append"),
        ({"k": k[:, :, :1]}, r"k=.*must have the shape \(2, 1, 2, 32\)"),
        ({"v": k.astype(np.float16)}, "v='fp16'.*element type of bf16"),
        ({"k": k.astype(np.float32), "v": k.astype(np.float32)}, "k='fp32'.*cache's type, bf16"),
        ({"v_cache": cache[:1]}, "v_cache=.*must have pages, slots, heads"),
        ({"k_cache": np.lib.stride_tricks.as_strided(cache, strides=(0, 128, 64, 2))}, "overlap"),
        ({"cache_seqlens": lengths[:1]}, "cache_seqlens="),
        ({"cache_seqlens": 3}, "cache_seqlens="),
        ({"block_table": table[:1]}, r"block_table=.*\(2, max_pages\)"),
        ({"block_table": table.astype(np.float32)}, "block_table='fp32"),
        ({"k_cache": cache[:1], "v_cache": cache[:1]}, "k_cache=.*must be of 2 sequences"),
        ({"rotary_cos": cos}, "rotary_sin=None"),
        ({"rotary_cos": cos, "rotary_sin": cos[:4]}, "rotary_sin=.*shape and element type"),
        ({"rotary_cos": np.zeros((8, 17), np.float32)} | {"rotary_sin": cos}, "rotary_"),
        ({"k_scale": np.ones(2, np.float32)}, "k_scale=.*not rounded to 8 bits"),
        (
            {name: small for name in ("k_cache", "v_cache")}
            | {name: k.astype(small.dtype) for name in "kv"}
            | {"rotary_cos": cos, "rotary_sin": cos},
            "k='e4m3'.*cannot be rotated",
        ),
    ):
        given: dict[str, Any] = {"k_cache": cache, "v_cache": cache.copy(), "k": k, "v": k}
        with pytest.raises(TensorError, match=match):
            append_kv(**{**given, "cache_seqlens": lengths, "target": target, **changes})
    read_only = cache.copy()
    read_only.flags.writeable = False
    with pytest.raises(TensorError, match="must be writable"):
        append_kv(read_only, cache, k, k, cache_seqlens=lengths, target=target)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("place.has_place && page < params.num_pages", "place.has_place"),
        ("length >= 0 && place.position < params.capacity", "length >= 0"),
        ("static_cast<u32>(length) + static_cast<u32>(place.n)", "static_cast<u32>(length)"),
        ("if (item.second < depth)", "if (true)"),
        ("place.slot = place.position % params.page_size", "place.slot = place.position"),
        ("place.b * params.table_stride +", ""),
    ],
)
def test_planted_faults_are_found(right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the emulator, or by the bytes that change."""

    def faulty(plan: Any) -> Any:
        source = source_of(plan)
        assert right in source.text
        return dataclasses.replace(source, text=source.text.replace(right, wrong))

    new, size, depth = 3, 3, 40  # the last vector of a row is the first of an item
    k = np.ones((2, new, 1, depth), BF16)
    table = np.array([[0, HUGE_PAGE], [2, 1]], np.int32)
    lengths = np.array([2, 4], np.int32)
    wanted = [[0, 0, 1], [0, 1, 1], [0, 0, 0], [0, 0, 0]]

    def is_right() -> bool:
        caches = [np.full((4, size, 1, depth), np.nan, BF16) for _ in range(2)]
        append_kv(*caches, k, k, cache_seqlens=lengths, block_table=table, target="sm90")
        written = [~np.isnan(cache[:, :, 0].astype(np.float32)) for cache in caches]
        return all((w == np.array(wanted, bool)[..., None]).all() for w in written)

    assert is_right()
    monkeypatch.setattr(launch, "source_of", faulty)
    with contextlib.suppress(EmulatorError):
        assert not is_right()


@every_target
def test_specs_print_as_their_constructor_and_refuse_what_no_kernel_does(target: str) -> None:
    spec = AppendSpec(dtype="fp16", head_dim=64, rotary_dim=32)  # type: ignore[arg-type]
    assert repr(spec) == "AppendSpec(dtype='fp16', head_dim=64, rotary_dim=32)"
    source = fmhagen.emit_append(spec, target=target)
    assert source == fmhagen.emit_append(spec, target=target)
    assert repr(spec) in source.text
    assert "#include" not in source.text
    for changes, match in (
        ({"head_dim": 12}, "head_dim=12: must be a multiple of vector=8"),
        ({"rotary_dim": 8}, "its half must be a multiple of vector=8"),
        ({"rotary_dim": 144}, "from 0 to head_dim=128"),
        ({"vector": 16}, "vector=16"),
        ({"dtype": "byte", "rotary_dim": 16}, "copied as they are"),
        ({"dtype": "int8"}, "dtype='int8'"),
    ):
        with pytest.raises(InvalidSpecError, match=match):
            AppendSpec(**changes)


@every_target
def test_a_cold_call_inside_a_capture_says_how_to_warm_up(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, k = np.zeros((1, 8, 1, 112), BF16), np.ones((1, 1, 1, 112), BF16)  # nobody else's depth
    lengths = np.zeros(1, np.int32)
    backend = small_kernels.backend_of(Memory.HOST)
    with monkeypatch.context() as patch:
        patch.setattr(type(backend), "is_capturing", lambda *_: True)
        with pytest.raises(CaptureError, match="make the same call once outside it"):
            append_kv(cache, cache.copy(), k, k, cache_seqlens=lengths, target=target)
    append_kv(cache, cache.copy(), k, k, cache_seqlens=lengths, target=target)
    monkeypatch.setattr(type(backend), "is_capturing", lambda *_: True)
    append_kv(cache, cache.copy(), k, k, cache_seqlens=lengths, target=target)
    assert (cache[0, 0] == 1).all()
