"""The emulator on a copy through a TMA ring: right when clean, and every planted fault is named."""

from __future__ import annotations

import enum

import numpy as np
import pytest
from emulator_support import ALL_SEEDS, aligned, buffer, build, fault_of, matrix_map, pack

from fmhagen.errors import EmulatorError
from fmhagen.runtime.emulator import Checks, Region, Report

ROWS = 64  # of a tile
COLUMNS = 64
TILES = 5
THREADS = 160
SMEM_BYTES = 3 * 8192 + 32
NAMES = (
    Region(offset_bytes=0, nbytes=8192, name="tile[0]"),
    Region(offset_bytes=8192, nbytes=8192, name="tile[1]"),
    Region(offset_bytes=16384, nbytes=8192, name="staged"),
    Region(offset_bytes=24576, nbytes=16, name="full"),
    Region(offset_bytes=24592, nbytes=16, name="empty"),
)


class Fault(enum.IntEnum):
    """What the kernel does wrong; the number is a parameter of the kernel."""

    NONE = 0
    NO_FULL_WAIT = 1
    WRONG_PHASE = 2
    NO_RELEASE = 3
    EARLY_RELEASE = 4
    NO_PROXY_FENCE = 5
    NO_STAGED_BARRIER = 6
    NO_FREE_BARRIER = 7
    NO_WAIT_READ = 8
    NO_STORE_COMMIT = 9
    SHORT_EXPECT = 10
    LONG_EXPECT = 11
    NO_INIT_FENCE = 12
    NO_INIT_SYNC = 13
    UNALIGNED = 14
    OUTSIDE = 15
    UNWRITTEN = 16
    LOST_LANE = 17
    NO_EMPTY_WAIT = 18
    NO_FINAL_WAIT = 19
    FENCE_AFTER_BARRIER = 20
    NO_ARRIVAL_OF_ONE_WARP = 21


# Warps 0 to 3 consume, warp 4 produces. A tile is 64 x 64 elements of 16 bits, 128 bytes a row.
TEXT = (
    f"enum Fault : u32 {{ {', '.join(f'{fault.name} = {fault.value}' for fault in Fault)} }};"
    + """
struct alignas(64) Params {
  TensorMap in;
  TensorMap out;
  u32 fault;
  u32 tiles;
};
constexpr u32 STAGED = 16384, FULL = 24576, EMPTY = 24592, TILE_BYTES = 8192;

FMHAGEN_DEVICE void produce(const Params& params, u32 smem) {
  for (u32 tile = 0; tile < params.tiles; tile++) {
    const u32 stage = tile % 2, full = smem + FULL + stage * 8;
    if (params.fault != NO_EMPTY_WAIT) {
      mbarrier_wait(smem + EMPTY + stage * 8, tile / 2 % 2 ^ 1);
    }
    const u32 expected = params.fault == SHORT_EXPECT  ? TILE_BYTES / 2
                         : params.fault == LONG_EXPECT ? TILE_BYTES * 2
                                                       : TILE_BYTES;
    mbarrier_arrive_expect_tx(full, expected);
    const u32 shift = params.fault == UNALIGNED ? 16 : params.fault == OUTSIDE ? 1 << 15 : 0;
    tma_load_4d(smem + stage * TILE_BYTES + shift, &params.in, full, 0, tile * 64, 0, 0);
  }
}

// Lane i addresses row i % 8 of matrix i / 8; matrices 0 and 1 are rows 0 to 15 of eight columns.
FMHAGEN_DEVICE u32 address(u32 tile, u32 group) {
  const u32 lane = thread_index() % 32;
  const u32 row = thread_index() / 32 * 16 + lane % 16, chunk = group * 2 + lane / 16;
  return tile + row * 128 + (chunk ^ row % 8) * 16;
}

FMHAGEN_DEVICE void release(u32 empty, u32 fault) {
  warp_sync();
  if (thread_index() % 32 == 0 && !(fault == NO_ARRIVAL_OF_ONE_WARP && thread_index() == 64)) {
    mbarrier_arrive(empty);
  }
}

FMHAGEN_DEVICE void consume(const Params& params, u32 smem) {
  const u32 fault = params.fault;
  for (u32 tile = 0; tile < params.tiles; tile++) {
    const u32 stage = tile % 2, from = smem + stage * TILE_BYTES, empty = smem + EMPTY + stage * 8;
    if (fault != NO_FULL_WAIT) {
      mbarrier_wait(smem + FULL + stage * 8, tile / 2 % 2 ^ (fault == WRONG_PHASE));
    }
    if (fault == EARLY_RELEASE) release(empty, fault);
    u32 values[4][4];
    for (u32 group = 0; group < 4; group++) {
      load_matrix_x4(values[group], address(fault == UNWRITTEN ? smem + STAGED : from, group));
    }
    if (fault != EARLY_RELEASE && fault != NO_RELEASE) release(empty, fault);
    if (!(fault == LOST_LANE && thread_index() == 37)) warp_sync();
    if (fault != NO_FREE_BARRIER) named_barrier_sync(1, 128);
    for (u32 group = 0; group < 4; group++) {
      const u32* r = values[group];
      store_matrix_x4(address(smem + STAGED, group), r[0], r[1], r[2], r[3]);
    }
    if (fault != NO_PROXY_FENCE && fault != FENCE_AFTER_BARRIER) proxy_fence();
    if (fault != NO_STAGED_BARRIER) named_barrier_sync(2, 128);
    if (thread_index() == 0) {
      if (fault == FENCE_AFTER_BARRIER) proxy_fence();
      tma_store_4d(&params.out, smem + STAGED, 0, tile * 64, 0, 0);
      if (fault != NO_STORE_COMMIT) tma_store_commit();
      if (fault != NO_WAIT_READ && !(fault == NO_FINAL_WAIT && tile == params.tiles - 1)) {
        tma_store_wait_read();
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(160, 1) mini_kernel(FMHAGEN_PARAMS(Params)) {
  const u32 smem = smem_base();
  if (thread_index() == 0) {
    for (u32 stage = 0; stage < 2; stage++) {
      mbarrier_init(smem + FULL + stage * 8, 1);
      mbarrier_init(smem + EMPTY + stage * 8, 4);
    }
    if (params.fault != NO_INIT_FENCE) mbarrier_init_fence();
  }
  if (params.fault != NO_INIT_SYNC) block_sync();
  if (thread_index() < 128) {
    consume(params, smem);
  } else if (thread_index() == 128) {
    produce(params, smem);
  }
}
"""
)


def copy(
    fault: Fault, seed: int, *, rows: int = TILES * ROWS, checks: Checks = Checks.ALL
) -> tuple[EmulatorError | Report, bool]:
    """Run the kernel on `rows` rows; return its outcome and whether the copy is right."""
    source = aligned((rows, COLUMNS), np.uint16)
    source[...] = np.random.default_rng(seed).integers(0, 1 << 16, source.shape)
    target = aligned((rows, COLUMNS), np.uint16)
    outcome = fault_of(
        build(TEXT, THREADS, SMEM_BYTES),
        params=pack(
            matrix_map(source, ROWS, COLUMNS, 128),
            matrix_map(target, ROWS, COLUMNS, 128),
            ("2I56x", (fault, -(-rows // ROWS))),
        ),
        threads=THREADS,
        smem_bytes=SMEM_BYTES,
        buffers=(buffer("in", source), buffer("out", target, output=True)),
        seed=seed,
        names=NAMES,
        checks=checks,
    )
    return outcome, bool(np.array_equal(source, target))


def test_clean_runs_are_right_and_silent() -> None:
    for seed in range(200):
        outcome, right = copy(Fault.NONE, seed, rows=(TILES * ROWS, 100, 1, 257)[seed % 4])
        assert isinstance(outcome, Report), f"seed {seed}: {outcome}"
        assert right, f"seed {seed}"
        assert outcome.buffers[1].unwritten_bytes == 0
        assert outcome.extra_wavefronts == 0


def test_fence_on_the_path_after_the_barrier_is_enough() -> None:
    """PTX asks for a proxy fence on the causality path, be it before or after the barrier."""
    for seed in ALL_SEEDS:
        outcome, right = copy(Fault.FENCE_AFTER_BARRIER, seed)
        assert isinstance(outcome, Report), f"seed {seed}: {outcome}"
        assert right


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        # Where two kinds stand, the seed decides whether the copy had begun to arrive.
        (Fault.NO_FULL_WAIT, ("race", "uninitialised")),
        (Fault.WRONG_PHASE, ("race", "uninitialised", "deadlock")),
        (Fault.NO_RELEASE, ("deadlock",)),
        (Fault.NO_ARRIVAL_OF_ONE_WARP, ("deadlock",)),
        (Fault.EARLY_RELEASE, ("race",)),
        (Fault.NO_EMPTY_WAIT, ("race", "barrier")),
        (Fault.NO_PROXY_FENCE, ("proxy",)),
        (Fault.NO_STAGED_BARRIER, ("race", "uninitialised", "proxy")),
        (Fault.NO_FREE_BARRIER, ("race",)),
        (Fault.NO_WAIT_READ, ("race",)),
        (Fault.NO_FINAL_WAIT, ("unfinished",)),
        (Fault.NO_STORE_COMMIT, ("race",)),
        (Fault.SHORT_EXPECT, ("race", "uninitialised", "deadlock")),
        (Fault.LONG_EXPECT, ("deadlock",)),
        (Fault.NO_INIT_FENCE, ("proxy",)),
        (Fault.NO_INIT_SYNC, ("barrier", "race")),
        (Fault.UNALIGNED, ("misaligned",)),
        (Fault.OUTSIDE, ("out_of_bounds",)),
        (Fault.UNWRITTEN, ("uninitialised",)),
        (Fault.LOST_LANE, ("divergence",)),
    ],
    ids=lambda value: value.name if isinstance(value, Fault) else "",
)
def test_planted_fault_is_caught(fault: Fault, kinds: tuple[str, ...]) -> None:
    for seed in ALL_SEEDS:
        outcome, _ = copy(fault, seed)
        assert isinstance(outcome, EmulatorError), f"{fault.name}, seed {seed}: no alarm"
        assert outcome.kind in kinds, f"{fault.name}, seed {seed}: {outcome}"


def test_race_names_both_sides() -> None:
    outcome, _ = copy(Fault.EARLY_RELEASE, 0)
    assert isinstance(outcome, EmulatorError)
    text = str(outcome)
    assert "tile[" in text
    assert "tma_load_4d by block 0, warp 4, lane 0 (thread 128)" in text
    assert "load_matrix_x4 by block 0" in text


def test_deadlock_names_barriers_phases_and_what_is_pending() -> None:
    outcome, _ = copy(Fault.LONG_EXPECT, 0)
    assert isinstance(outcome, EmulatorError)
    text = str(outcome)
    assert "warp 4, lane 0: mbarrier_wait: empty" in text
    assert "warp 0, lanes 0-31: mbarrier_wait: full" in text
    assert "0 of 1 arrivals and 8192 bytes pending" in text


def test_a_seed_repeats_a_run_and_checks_do_not_change_results() -> None:
    first, _ = copy(Fault.NONE, 7)
    second, _ = copy(Fault.NONE, 7)
    assert first == second
    for checks in (Checks.NONE, Checks.RACES, Checks.ALL & ~Checks.ADVERSARIAL):
        outcome, right = copy(Fault.NONE, 7, checks=checks)
        assert isinstance(outcome, Report), outcome
        assert right
