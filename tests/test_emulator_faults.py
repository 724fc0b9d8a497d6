"""The smaller faults, one kernel for all: the emulator names each and survives it."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_support import ALL_SEEDS, aligned, buffer, build, fault_of, matrix_map, pack

from fmhagen.errors import EmulatorError
from fmhagen.runtime.emulator import Buffer, Checks, Report

THREADS = 256
SMEM_BYTES = 16384
ENTRY_REGISTERS = 128

# A snippet each; `t` is the thread, `b` a barrier of one arrival. All end in kernel exit.
CASES: dict[str, tuple[str, str]] = {
    "clean": ("ok", "store_global_f32(params.out + t, 1.0f);"),
    "written_twice": ("written_twice", "store_global_f32(params.out, 1.0f);"),
    "outside_buffer": ("out_of_bounds", "store_global_f32(params.out + 256, 1.0f);"),
    "no_buffer": ("out_of_bounds", "store_global_f32(params.out + (1 << 28), 1.0f);"),
    "read_only": ("out_of_bounds", "store_global_f32(params.in, 1.0f);"),
    "misaligned_global": (
        "misaligned",
        "store_global_f32(reinterpret_cast<f32*>(reinterpret_cast<u8*>(params.out) + 2), 1.0f);",
    ),
    "poisoned_value": ("uninitialised", "f32 x[1]; store_global_f32(params.out + t, x[t >> 16]);"),
    "wild_pointer": ("crash", "*reinterpret_cast<volatile u32*>(t * 8ull) = t;"),
    "division": ("crash", "if (t == 9) *params.sink = 7 / static_cast<i32>(params.tiles - 1);"),
    "stack_overflow": ("crash", "*params.sink = overflow(params, t);"),
    "shuffle_masks": ("divergence", "shuffle_xor(1.0f, t % 2 + 1);"),
    "other_instruction": ("divergence", "if (t % 32 < 7) warp_any(true); else warp_sync();"),
    "early_exit": ("divergence", "if (t == 40) return; warp_sync();"),
    "barrier_threads": ("barrier", "named_barrier_sync(1, t < 64 ? 128 : 96);"),
    "barrier_id": ("barrier", "named_barrier_sync(16, 128);"),
    "barrier_odd_threads": ("barrier", "named_barrier_sync(1, 100);"),
    "barrier_lacks_threads": ("deadlock", "if (t < 64) named_barrier_sync(1, 96);"),
    "barrier_any": (
        "ok",
        "for (u32 i = 0; i < 9; i++) { const bool wanted = i % 3 == 0;"
        " if (named_barrier_any(2, 256, t == 200 && wanted) != wanted) *params.sink = 1; }",
    ),
    "barrier_mixed": (
        "barrier",
        "if (t < 64) { named_barrier_any(2, 256, false); } else { named_barrier_sync(2, 256); }",
    ),
    "no_barrier": ("barrier", "mbarrier_arrive(smem_base() + 64);"),
    "barrier_twice": ("barrier", "if (t == 0) mbarrier_init(b, 1);"),
    "barrier_count": ("barrier", "if (t == 0) mbarrier_init(b + 8, 0);"),
    "barrier_misaligned": ("misaligned", "if (t == 0) mbarrier_init(b + 4, 1);"),
    "barrier_outside": ("out_of_bounds", "if (t == 0) mbarrier_init(smem_base() + 16384, 1);"),
    "barrier_parity": ("barrier", "mbarrier_wait(b, 2);"),
    "too_many_arrivals": (
        "barrier",
        "if (t == 0) { mbarrier_arrive_expect_tx(b, 16); mbarrier_arrive(b); }",
    ),
    "too_many_bytes": (
        "barrier",
        "if (t == 0) { mbarrier_init(b + 8, 9);"
        " mbarrier_arrive_expect_tx(b + 8, 1 << 19); mbarrier_arrive_expect_tx(b + 8, 1 << 19); }",
    ),
    "never_complete": ("deadlock", "mbarrier_wait(b, 0);"),
    "overwritten_barrier": ("barrier", "store_matrix_x4(b & ~127u, 0, 0, 0, 0);"),
    "read_barrier": ("barrier", "u32 r[4]; load_matrix_x4(r, b);"),
    "race_of_stores": ("race", "store_matrix_x4(smem_base() + t % 32 * 16, 0, 0, 0, 0);"),
    "misaligned_row": ("misaligned", "store_matrix_x4(smem_base() + t * 16 + 8, 0, 0, 0, 0);"),
    "address_zero": ("out_of_bounds", "store_matrix_x4(0, 0, 0, 0, 0);"),
    "not_a_map": ("tensor_map", "tensor_map_prefetch(&params.bad);"),
    "registers_odd": ("registers", "registers_decrease<100>();"),
    "registers_up_by_decrease": ("registers", "registers_decrease<160>();"),
    "registers_of_half": ("registers", "if (t < 64) registers_decrease<40>();"),
    "registers_exhausted": ("deadlock", "if (t < 128) registers_increase<136>();"),
    "registers_traded": (
        "ok",
        "if (t < 128) { registers_increase<216>(); } else { registers_decrease<40>(); }",
    ),
    "load_nobody_waits_for": ("unfinished", "if (t == 0) load(params, b);"),
    "store_without_commit": (
        "unfinished",
        "if (t == 0) { load(params, b); mbarrier_wait(b, 0); store(params); }",
    ),
    "store_of_unwritten": (
        "uninitialised",
        "if (t == 0) { store(params); tma_store_commit(); tma_store_wait(); }",
    ),
    "too_deep_a_wait_is_fine": ("ok", "tma_store_wait(); tma_store_wait_read();"),
    "products_without_warpgroup": (
        "matrix",
        "wgmma_commit(); f32 d[4]; wgmma(d); wgmma_wait<0>();",
    ),
}
BODY = """
struct alignas(64) Params {
  TensorMap map;
  TensorMap bad;
  f32* out;
  f32* in;
  volatile i32* sink;
  u32 which;
  u32 tiles;
};

__attribute__((noinline)) i32 overflow(const Params& params, u32 depth) {
  volatile u8 room[4096];
  room[depth % 4096] = static_cast<u8>(depth);
  return overflow(params, depth + 1) + room[depth % 4096];
}

FMHAGEN_DEVICE void load(const Params& params, u32 barrier) {
  mbarrier_arrive_expect_tx(barrier, 8192);
  tma_load_4d(smem_base() + 1024, &params.map, barrier, 0, 0, 0, 0);
}

FMHAGEN_DEVICE void store(const Params& params) {
  tma_store_4d(&params.map, smem_base() + 1024, 0, 0, 0, 0);
}

FMHAGEN_DEVICE void wgmma(f32 (&d)[4]) {
  wgmma_m64n8k16_bf16_ss(d, 64, 64, 0);
}

extern "C" __global__ void __launch_bounds__(256, 1) mini_kernel(FMHAGEN_PARAMS(Params)) {
  const u32 t = thread_index(), b = smem_base() + 16384 - 128;
  if (t == 0) {
    mbarrier_init(b, 1);
    mbarrier_init_fence();
  }
  block_sync();
  switch (params.which) {
"""
TEXT = (
    BODY
    + "\n".join(
        f"    case {number}: {{ {code} break; }}" for number, (_, code) in enumerate(CASES.values())
    )
    + "\n  }\n}\n"
)


def outcome_of(case: str, seed: int, *, checks: Checks = Checks.ALL) -> EmulatorError | Report:
    """Run one snippet; one that finds a wrong value itself sets `sink`."""
    out = aligned((256,), np.float32)
    source = aligned((64, 64), np.uint16)
    sink = aligned((1,), np.int32)
    outcome = fault_of(
        build(TEXT, THREADS, SMEM_BYTES),
        params=pack(
            matrix_map(source, 64, 64, 128),
            bytes(128),
            ("3Q", (out.ctypes.data, source.ctypes.data, sink.ctypes.data)),
            ("2I32x", (list(CASES).index(case), 1)),
        ),
        threads=THREADS,
        smem_bytes=SMEM_BYTES,
        buffers=(buffer("out", out, output=True), buffer("in", source)),
        seed=seed,
        entry_registers=ENTRY_REGISTERS,
        checks=checks,
    )
    assert sink[0] == 0, f"{case}, seed {seed}: a wrong value"
    return outcome


@pytest.mark.parametrize("case", CASES)
def test_each_fault_is_named(case: str) -> None:
    for seed in ALL_SEEDS:
        outcome = outcome_of(case, seed)
        kind = outcome.kind if isinstance(outcome, EmulatorError) else "ok"
        assert kind == CASES[case][0], f"{case}, seed {seed}: {outcome}"


def test_a_fault_leaves_nothing_behind() -> None:
    for case in ("wild_pointer", "clean", "never_complete", "clean", "stack_overflow", "clean"):
        outcome = outcome_of(case, 3)
        assert isinstance(outcome, Report if case == "clean" else EmulatorError), outcome


def test_stack_overflow_is_told_from_a_wild_pointer() -> None:
    assert "stack overflow" in str(outcome_of("stack_overflow", 0))
    assert "stack overflow" not in str(outcome_of("wild_pointer", 0))


def test_written_twice_names_buffer_and_byte() -> None:
    outcome = outcome_of("written_twice", 0)
    assert "byte 0 of out was already written by block 0" in str(outcome)


def test_unwritten_outputs_are_counted_and_stay_poisoned() -> None:
    out = aligned((300,), np.float32)
    outcome = fault_of(
        build(TEXT, THREADS, SMEM_BYTES),
        params=pack(bytes(256), ("3Q", (out.ctypes.data, 0, 0)), ("2I32x", (0, 1))),
        threads=THREADS,
        smem_bytes=SMEM_BYTES,
        buffers=(buffer("out", out, output=True),),
        seed=0,
    )
    assert isinstance(outcome, Report), outcome
    use = outcome.buffers[0]
    assert (use.written_bytes, use.unwritten_bytes) == (1024, 176)
    assert use.first_unwritten_byte == 1024
    assert np.isnan(out[256:]).all()
    assert (out[:256] == 1).all()


def test_bad_requests_are_refused() -> None:
    emulator = build(TEXT, THREADS, SMEM_BYTES)
    for threads, smem_bytes, count in ((100, 1024, 0), (2048, 1024, 0), (256, 1 << 20, 0)):
        with pytest.raises(EmulatorError) as caught:
            emulator.run(params=b"", grid=1, threads=threads, smem_bytes=smem_bytes, buffers=())
        assert caught.value.kind == "launch", count
    many = [Buffer(address=1, nbytes=1, name="x")] * 65
    with pytest.raises(EmulatorError, match="65 buffers"):
        emulator.run(params=b"", grid=1, threads=256, smem_bytes=1024, buffers=many)
