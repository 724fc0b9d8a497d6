"""The emulator's second part of sm90's isa layer: ldmatrix.trans, cp.async, 5-D boxes, votes."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_support import ALL_SEEDS, aligned, buffer, build, fault_of, pack

from fmhagen.errors import EmulatorError
from fmhagen.runtime.emulator import Report, encode_tensor_map

THREADS = 64
SMEM_BYTES = 8192

MATRIX_TEXT = """
struct alignas(64) Params {
  const u16* in;
  f32* results;
};

extern "C" __global__ void __launch_bounds__(64, 1) mini_kernel(FMHAGEN_PARAMS(Params)) {
  const u32 lane = thread_index() % 32, row = smem_base() + lane * 16;
  if (thread_index() >= 32) return;
  copy_async_16(row, params.in + lane * 8, 16);
  copy_async_commit();
  copy_async_wait<0>();
  warp_sync();
  u32 r[4];
  load_matrix_x4_transposed(r, row);
  for (u32 i = 0; i < 4; i++) {
    store_global_f32x2(params.results + (lane * 4 + i) * 2, static_cast<f32>(r[i] & 0xffff),
                       static_cast<f32>(r[i] >> 16));
  }
}
"""


def test_transposed_ldmatrix_gives_columns() -> None:
    matrices = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    source = aligned((4, 8, 8), np.uint16)
    source[...] = matrices
    results = aligned((32, 4, 2), np.float32)
    outcome = fault_of(
        build(MATRIX_TEXT, THREADS, SMEM_BYTES),
        params=pack(("2Q", (source.ctypes.data, results.ctypes.data))),
        threads=THREADS,
        smem_bytes=SMEM_BYTES,
        buffers=(buffer("in", source), buffer("results", results, output=True)),
        seed=0,
    )
    assert isinstance(outcome, Report), outcome
    lane, matrix = np.arange(32)[:, None], np.arange(4)[None, :]
    assert np.array_equal(results[..., 0], matrices[matrix, lane % 4 * 2, lane // 4])
    assert np.array_equal(results[..., 1], matrices[matrix, lane % 4 * 2 + 1, lane // 4])


RING_TEXT = """
struct alignas(64) Params {
  const u16* in;
  f32* results;
};

// One warp sums eight rows of 16 bytes a lane through a ring of two buffers.
extern "C" __global__ void __launch_bounds__(64, 1) mini_kernel(FMHAGEN_PARAMS(Params)) {
  const u32 lane = thread_index() % 32, smem = smem_base() + lane * 16;
  if (thread_index() >= 32) return;
  u32 sum = 0;
  copy_async_16(smem, params.in + lane * 8, 16);
  copy_async_commit();
  for (u32 step = 0; step < 8; step++) {
    if (step + 1 < 8) {
      COPY(smem + (step + 1) % 2 * 512, params.in + ((step + 1) * 32 + lane) * 8);
    }
    copy_async_commit();
    WAIT;
    warp_sync();
    sum += load_shared_u32(smem_base() + step % 2 * 512 + (31 - lane) * 16);
    MEET;
  }
  store_global_f32(params.results + lane, static_cast<f32>(sum));
}
"""
COPY = "copy_async_16({}, {}, 16)"
CLEAN = {
    "COPY(smem + (step + 1) % 2 * 512, params.in + ((step + 1) * 32 + lane) * 8)": COPY.format(
        "smem + (step + 1) % 2 * 512", "params.in + ((step + 1) * 32 + lane) * 8"
    ),
    "WAIT;": "copy_async_wait<1>();",
    "MEET;": "warp_sync();",
}


def ring(changes: dict[str, str], seed: int) -> EmulatorError | Report:
    """Run the ring with some of its parts changed; check the sums where nothing was found."""
    text = RING_TEXT
    for part, code in {**CLEAN, **changes}.items():
        text = text.replace(part, code)
    source = aligned((8, 32, 8), np.uint16)
    source[...] = np.random.default_rng(0).integers(0, 1000, (8, 32, 8))
    source[..., 1] = 0  # the word that is summed is the low half
    results = aligned((32,), np.float32)
    outcome = fault_of(
        build(text, THREADS, SMEM_BYTES),
        params=pack(("2Q", (source.ctypes.data, results.ctypes.data))),
        threads=THREADS,
        smem_bytes=SMEM_BYTES,
        buffers=(buffer("in", source), buffer("results", results, output=True)),
        seed=seed,
    )
    if isinstance(outcome, Report):
        assert np.array_equal(results[::-1], source[..., 0].sum(0))
    return outcome


@pytest.mark.parametrize("seed", ALL_SEEDS)
def test_a_ring_of_asynchronous_copies_is_clean(seed: int) -> None:
    assert isinstance(ring({}, seed), Report)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"WAIT;": "copy_async_wait<2>();"}, ("race", "uninitialised"), "shared"),
        ({"WAIT;": ""}, ("race", "uninitialised"), "shared"),
    ],
    ids=["the wait leaves one group too many", "no wait"],
)
def test_a_missing_wait_is_found(
    changes: dict[str, str], kind: tuple[str, ...], words: str, seed: int
) -> None:
    outcome = ring(changes, seed)
    assert isinstance(outcome, EmulatorError)
    assert outcome.kind in kind
    assert words in str(outcome)


def test_a_copy_that_nobody_waits_for_is_found() -> None:
    text = RING_TEXT.replace(
        "store_global_f32", "copy_async_16(smem, params.in, 16); store_global_f32"
    )
    for part, code in CLEAN.items():
        text = text.replace(part, code)
    source, results = aligned((8, 32, 8), np.uint16), aligned((32,), np.float32)
    outcome = fault_of(
        build(text, THREADS, SMEM_BYTES),
        params=pack(("2Q", (source.ctypes.data, results.ctypes.data))),
        threads=THREADS,
        smem_bytes=SMEM_BYTES,
        buffers=(buffer("in", source), buffer("results", results, output=True)),
        seed=1,
    )
    assert isinstance(outcome, EmulatorError)
    assert outcome.kind == "unfinished"


BOX_TEXT = """
struct alignas(64) Params {
  TensorMap map;
  f32* results;
  i32 corner[5];
};

extern "C" __global__ void __launch_bounds__(64, 1) mini_kernel(FMHAGEN_PARAMS(Params)) {
  const u32 lane = thread_index(), smem = smem_base();
  if (lane == 0) {
    mbarrier_init(smem + 4096, 1);
    mbarrier_init_fence();
  }
  block_sync();
  if (lane == 0) {
    mbarrier_arrive_expect_tx(smem + 4096, 2048);
    const i32* c = params.corner;
    tma_load_5d(smem, &params.map, smem + 4096, c[0], c[1], c[2], c[3], c[4]);
  }
  mbarrier_wait(smem + 4096, 0);
  for (u32 i = lane; i < 512; i += 64) {
    const u32 pair = load_shared_u32(smem + 4 * i);
    store_global_f32x2(params.results + 2 * i, f32(pair & 0xffff), f32(pair >> 16));
  }
}
"""


@pytest.mark.parametrize("page", [0, 2, 5, 2_000_000_000, -7])
def test_a_box_of_five_dimensions(page: int) -> None:
    # (page, head, half, row, column): two halves of 64 columns, boxes of 8 rows of one page
    pages, heads, rows = 4, 3, 10
    data = (
        np.random.default_rng(1).integers(0, 65535, (pages, rows, heads, 2, 64)).astype(np.uint16)
    )
    source = aligned(data.shape, np.uint16)
    source[...] = data
    results = aligned((2, 8, 64), np.float32)
    row = 2 * 2 * 64 * heads  # bytes from one row to the next
    packed = encode_tensor_map(
        address=source.ctypes.data,
        element_bytes=2,
        sizes=(64, rows, 2, heads, pages),
        stride_bytes=(row, 128, 256, row * rows),
        box=(64, 8, 2, 1, 1),
        swizzle_bytes=0,
    )
    outcome = fault_of(
        build(BOX_TEXT, THREADS, SMEM_BYTES),
        params=pack(packed, ("Q5i", (results.ctypes.data, 0, 4, 0, 1, page)), ("28x", ())),
        threads=THREADS,
        smem_bytes=SMEM_BYTES,
        buffers=(buffer("cache", source), buffer("results", results, output=True)),
        seed=0,
    )
    assert isinstance(outcome, Report), outcome
    expected = np.zeros((2, 8, 64))
    if 0 <= page < pages:
        expected[:, :6] = data[page, 4:, 1].transpose(1, 0, 2)
    assert np.array_equal(results, expected)


WARP_TEXT = """
struct alignas(64) Params {
  f32* results;
};

extern "C" __global__ void __launch_bounds__(64, 1) mini_kernel(FMHAGEN_PARAMS(Params)) {
  const u32 lane = thread_index() % 32;
  f32* result = params.results + thread_index() * 6;
  const u32 ballot = warp_ballot(lane % 3 == 1);
  store_global_f32(result, static_cast<f32>(lowest_bit(ballot & ~2u)));
  store_global_f32(result + 1, static_cast<f32>(shuffle_from(lane * 7, 5)));
  store_global_f32(result + 2, static_cast<f32>(shuffle_up(lane, 3)));
  store_global_f32(result + 3, static_cast<f32>(warp_add(lane)));
  store_global_f32(result + 4, static_cast<f32>(warp_maximum(lane * lane % 37)));
  store_global_f32(result + 5, static_cast<f32>(ballot % 65536));
}
"""


def test_votes_and_reductions() -> None:
    results = aligned((THREADS, 6), np.float32)
    outcome = fault_of(
        build(WARP_TEXT, THREADS, SMEM_BYTES),
        params=pack(("Q", (results.ctypes.data,))),
        threads=THREADS,
        smem_bytes=SMEM_BYTES,
        buffers=(buffer("results", results, output=True),),
        seed=0,
    )
    assert isinstance(outcome, Report), outcome
    lane = np.arange(THREADS) % 32
    ballot = sum(1 << i for i in range(32) if i % 3 == 1)
    up = np.where(lane < 3, lane, lane - 3)
    assert np.all(results[:, 0] == 4)
    assert np.all(results[:, 1] == 35)
    assert np.array_equal(results[:, 2], up)
    assert np.all(results[:, 3] == 496)
    assert np.all(results[:, 4] == max(i * i % 37 for i in range(32)))
    assert np.all(results[:, 5] == ballot % 65536)
