"""The emulator on a ring that the two blocks of a cluster fill for each other."""

from __future__ import annotations

import enum

import numpy as np
import pytest
from emulator_support import ALL_SEEDS, aligned, buffer, build, matrix_map, pack

from fmhagen.errors import EmulatorError
from fmhagen.runtime.emulator import Region, Report

ROWS = 64  # of a tile
COLUMNS = 64
TILES = 5
CLUSTERS = 2
THREADS = 160
SMEM_BYTES = 2 * 8192 + 32
NAMES = (
    Region(offset_bytes=0, nbytes=8192, name="tile[0]"),
    Region(offset_bytes=8192, nbytes=8192, name="tile[1]"),
    Region(offset_bytes=16384, nbytes=16, name="full"),
    Region(offset_bytes=16400, nbytes=16, name="empty"),
)


class Fault(enum.IntEnum):
    """What the kernel does wrong; the number is a parameter of the kernel."""

    NONE = 0
    NO_FIRST_BARRIER = 1
    NO_LAST_BARRIER = 2
    WRONG_MASK = 3
    MASK_TOO_WIDE = 4
    NO_REMOTE_ARRIVAL = 5
    NO_OWN_ARRIVAL = 6
    EARLY_RELEASE = 7
    NO_EMPTY_WAIT = 8
    WRONG_HALF = 9
    NO_FULL_WAIT = 10
    UNMAPPED_ARRIVAL = 11
    RANK_TOO_HIGH = 12
    MAPPED_WAIT = 13
    ARRIVE_TWICE = 14
    WAIT_FIRST = 15
    NO_CLUSTER_WAIT = 16
    FEWER_TILES = 17
    STRANGE_BARRIER = 18


# Warps 0 to 3 consume, warp 4 produces. Both blocks of a cluster read the same tiles; each loads
# half of the rows for both. Block r of a cluster writes column r of what it read.
TEXT = (
    f"enum Fault : u32 {{ {', '.join(f'{fault.name} = {fault.value}' for fault in Fault)} }};"
    + """
struct alignas(64) Params {
  TensorMap in;
  f32* out;
  u32 fault;
  u32 tiles;
};
constexpr u32 FULL = 16384, EMPTY = 16400, TILE_BYTES = 8192;

FMHAGEN_DEVICE void produce(const Params& params, u32 smem) {
  const u32 rank = cluster_rank(), fault = params.fault;
  for (u32 tile = 0; tile < params.tiles; tile++) {
    const u32 stage = tile % 2, full = smem + FULL + stage * 8;
    if (fault != NO_EMPTY_WAIT) mbarrier_wait(smem + EMPTY + stage * 8, tile / 2 % 2 ^ 1);
    mbarrier_arrive_expect_tx(full, TILE_BYTES);
    const u32 half = fault == WRONG_HALF ? 0 : rank;
    const u32 blocks = fault == WRONG_MASK ? 1u << rank : fault == MASK_TOO_WIDE ? 7 : 3;
    const u32 to = smem + stage * TILE_BYTES + half * TILE_BYTES / 2;
    if (fault == STRANGE_BARRIER) {
      tma_load_4d(to, &params.in, cluster_address(full, 1 - rank), 0, tile * 64, 0, 0);
    }
    tma_load_4d_multicast(to, &params.in, full, 0, tile * 64 + half * 32, 0, 0, blocks);
  }
}

FMHAGEN_DEVICE void release(u32 empty, u32 fault) {
  warp_sync();
  const u32 lane = thread_index() % 32;
  if (lane < 2 && !(fault == NO_REMOTE_ARRIVAL && lane != cluster_rank()) &&
      !(fault == NO_OWN_ARRIVAL && lane == cluster_rank())) {
    const u32 rank = fault == RANK_TOO_HIGH ? 2 : lane;
    mbarrier_arrive_cluster(fault == UNMAPPED_ARRIVAL ? empty : cluster_address(empty, rank));
  }
}

FMHAGEN_DEVICE void consume(const Params& params, u32 smem) {
  const u32 fault = params.fault, rank = cluster_rank();
  const u32 lane = thread_index() % 32, warp = thread_index() / 32;
  const u32 tiles = params.tiles - (fault == FEWER_TILES && rank == 1);
  for (u32 tile = 0; tile < tiles; tile++) {
    const u32 stage = tile % 2, from = smem + stage * TILE_BYTES, empty = smem + EMPTY + stage * 8;
    const u32 full = smem + FULL + stage * 8;
    if (fault != NO_FULL_WAIT) {
      mbarrier_wait(fault == MAPPED_WAIT ? cluster_address(full, 1 - rank) : full, tile / 2 % 2);
    }
    if (fault == EARLY_RELEASE) release(empty, fault);
    // Matrix 2i of a warp holds rows 16 * warp to + 7, matrix 2i + 1 the next eight; chunk `rank`.
    u32 r[4];
    const u32 row = warp * 16 + lane % 16, chunk = rank;
    load_matrix_x4(r, from + row * 128 + (chunk ^ row % 8) * 16);
    if (fault != EARLY_RELEASE) release(empty, fault);
    f32* const out = params.out + (block_index() * params.tiles + tile) * 64 + warp * 16 + lane / 4;
    if (lane % 4 == 0) {
      u32 low = r[0] << 16, high = r[1] << 16;
      f32 values[2];
      __builtin_memcpy(&values[0], &low, 4);
      __builtin_memcpy(&values[1], &high, 4);
      store_global_f32(out, values[0]);
      store_global_f32(out + 8, values[1]);
    }
  }
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(160, 1)
mini_kernel(FMHAGEN_PARAMS(Params)) {
  const u32 smem = smem_base(), fault = params.fault;
  if (thread_index() == 0) {
    for (u32 stage = 0; stage < 2; stage++) {
      mbarrier_init(smem + FULL + stage * 8, 1);
      mbarrier_init(smem + EMPTY + stage * 8, 8);
    }
    mbarrier_init_fence();
  }
  if (fault == NO_FIRST_BARRIER) {
    block_sync();
  } else {
    if (fault != WAIT_FIRST) cluster_arrive();
    if (fault == ARRIVE_TWICE && thread_index() == 7) cluster_arrive();
    cluster_wait();
  }
  if (thread_index() < 128) {
    consume(params, smem);
  } else if (thread_index() == 128) {
    produce(params, smem);
  }
  if (fault == NO_LAST_BARRIER) return;
  cluster_arrive();
  if (fault != NO_CLUSTER_WAIT) cluster_wait();
}
"""
)


def copy(fault: Fault, seed: int) -> tuple[EmulatorError | Report, bool]:
    """Run the kernel; return its report or fault, and whether the copy is right."""
    rng = np.random.default_rng(0)
    # bf16 numbers as their bits: those of small integers are exact
    source = aligned((TILES * ROWS, COLUMNS), np.uint16)
    numbers = rng.integers(-99, 99, source.shape).astype(np.float32)
    source[...] = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    out = aligned((2 * CLUSTERS, TILES, ROWS), np.float32)
    emulator = build(TEXT, THREADS, SMEM_BYTES)
    params = pack(
        matrix_map(source, ROWS // 2, COLUMNS, 128), ("QII", (out.ctypes.data, fault, TILES))
    )
    try:
        found: EmulatorError | Report = emulator.run(
            params=params.ljust(192, b"\0"),
            grid=2 * CLUSTERS,
            threads=THREADS,
            smem_bytes=SMEM_BYTES,
            buffers=(buffer("in", source), buffer("out", out, output=True)),
            seed=seed,
            names=NAMES,
            cluster=2,
        )
    except EmulatorError as error:
        found = error
    tiles = numbers.reshape(TILES, ROWS, COLUMNS)
    # block r reads chunk r: its first column is 8 r
    expected = np.stack([tiles[:, :, 8 * (block % 2)] for block in range(2 * CLUSTERS)])
    return found, bool(np.array_equal(out, expected))


@pytest.mark.parametrize("seed", ALL_SEEDS)
def test_a_clean_run_is_right(seed: int) -> None:
    report, right = copy(Fault.NONE, seed)
    assert isinstance(report, Report), report
    assert right
    assert report.instructions["tma.load.multicast"] == 2 * CLUSTERS * TILES
    # each block reads half of the tiles and gives it to two
    assert {use.name: use.read_bytes for use in report.buffers}["in"] == 2 * CLUSTERS * TILES * 8192


ALARMS = {
    Fault.NO_FIRST_BARRIER: ({"barrier", "race"}, ("no barrier was initialised", "initialisation")),
    Fault.NO_LAST_BARRIER: ({"race"}, ("whose exit is not ordered after it",)),
    Fault.WRONG_MASK: ({"deadlock"}, ("bytes pending",)),
    Fault.MASK_TOO_WIDE: ({"out_of_bounds"}, ("blocks 0x7 of a cluster of 2",)),
    Fault.NO_REMOTE_ARRIVAL: ({"deadlock"}, ("empty",)),
    Fault.NO_OWN_ARRIVAL: ({"deadlock"}, ("empty",)),
    Fault.EARLY_RELEASE: ({"race"}, ("tile[",)),
    Fault.NO_EMPTY_WAIT: ({"race", "barrier"}, ("tile[", "more than 1 arrivals")),
    Fault.WRONG_HALF: ({"race"}, ("tile[",)),
    Fault.NO_FULL_WAIT: ({"race", "uninitialised", "unfinished"}, ("tile[", "nobody waited")),
    Fault.UNMAPPED_ARRIVAL: ({"race", "deadlock", "barrier"}, ("tile[", "empty", "more than 8")),
    Fault.RANK_TOO_HIGH: ({"out_of_bounds"}, ("block 2 of a cluster of 2",)),
    Fault.MAPPED_WAIT: ({"out_of_bounds"}, ("no address of the block's own",)),
    Fault.ARRIVE_TWICE: ({"barrier"}, ("has arrived before",)),
    Fault.WAIT_FIRST: ({"barrier"}, ("has not arrived",)),
    Fault.NO_CLUSTER_WAIT: ({"barrier"}, ("ends without cluster_wait",)),
    Fault.FEWER_TILES: ({"deadlock", "unfinished"}, ("empty", "nobody waited")),
    Fault.STRANGE_BARRIER: ({"barrier"}, ("another block's than the data",)),
}


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault])
def test_a_planted_fault_is_named(fault: Fault) -> None:
    kinds, words = ALARMS[fault]
    for seed in ALL_SEEDS:
        found, _ = copy(fault, seed)
        assert isinstance(found, EmulatorError), f"seed {seed}: no alarm"
        assert found.kind in kinds, f"seed {seed}: {found}"
        assert any(word in str(found) for word in words), f"seed {seed}: {found}"


def test_a_grid_that_clusters_do_not_divide_is_refused() -> None:
    emulator = build(TEXT, THREADS, SMEM_BYTES)
    for grid, cluster, words in ((3, 2, "not a multiple"), (16, 16, "more than 8 blocks")):
        with pytest.raises(EmulatorError, match=words):
            emulator.run(
                params=bytes(192),
                grid=grid,
                threads=THREADS,
                smem_bytes=SMEM_BYTES,
                buffers=(),
                cluster=cluster,
            )
