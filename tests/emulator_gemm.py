"""A 64 x n x 64 product by wgmma in every form, with planted faults, and NumPy's answer."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt
from emulator_support import aligned, buffer, build, fault_of, matrix_map, pack

from fmhagen.errors import EmulatorError
from fmhagen.runtime.emulator import Report

THREADS = 128
A_BYTES = 8192
B_BYTES = 32768
SMEM_BYTES = A_BYTES + B_BYTES + 24
WIDTHS = (8, 40, *range(16, 257, 16))
K = 64
FORMS = ("ss", "rs", "rs_t", "ss_t")
DTYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}


class Fault(enum.IntEnum):
    """What the kernel does wrong; the number is a parameter of the kernel."""

    NONE = 0
    NO_WAIT = 1
    WAIT_TOO_WEAK = 2
    NO_COMMIT = 3
    NO_FIRST_FENCE = 4
    NO_SECOND_FENCE = 5
    WRITE_IN_FLIGHT = 6
    READ_IN_FLIGHT = 7
    OPERAND_OVERWRITTEN = 8
    ONE_LANE_LESS = 9
    OTHER_DESCRIPTOR_IN_ONE_WARP = 10
    ONE_WARP_LESS = 11
    NO_LOAD_WAIT = 12
    UNALIGNED_OPERAND = 13
    RESERVED_BITS = 14
    WRONG_SWIZZLE = 15
    UNINITIALISED_ACCUMULATOR = 16
    OVERLAP = 17


def _product(n: int) -> str:
    """Return the C++ function of one width: 64 x n x 64, once or twice."""
    calls = "\n".join(
        f"""    if (params.form == {index} && params.f16 == {f16}) {{
      wgmma_m64n{n}k16_{dtype}_{form}(d, {"r[k]" if form.startswith("rs") else "a"}, b, add);
    }}"""
        for index, form in enumerate(FORMS)
        for f16, dtype in enumerate(DTYPES)
    )
    return f"""
FMHAGEN_DEVICE void chain_{n}(const Params& params, u32 smem, f32 (&d)[{n // 2}],
                              const u32 (&r)[4][4], u32 accumulate) {{
  for (u32 k = 0; k < 4; k++) {{
    if (params.fault == ONE_LANE_LESS && thread_index() == 70 && k == 3) continue;
    u64 a = descriptor(smem + params.a_offset[k], params.a_descriptor);
    u64 b = descriptor(smem + B + params.b_offset[k], params.b_descriptor);
    if (params.fault == OTHER_DESCRIPTOR_IN_ONE_WARP && thread_index() / 32 == 2 && k == 0) b += 2;
    if (params.fault == UNALIGNED_OPERAND) b += 8;
    if (params.fault == RESERVED_BITS) b |= 1ull << 14;
    if (params.fault == WRONG_SWIZZLE) b ^= 3ull << 62;
    const u32 add = accumulate | (k > 0);
{calls}
  }}
}}

FMHAGEN_DEVICE void product_{n}(const Params& params, u32 smem, const u32 (&r)[4][4]) {{
  const u32 fault = params.fault;
  f32 d[{n // 2}];
  if (fault != NO_FIRST_FENCE) wgmma_fence();
  chain_{n}(params, smem, d, r, fault == UNINITIALISED_ACCUMULATOR);
  if (fault == ONE_WARP_LESS && thread_index() / 32 == 1) return;
  if (fault != NO_COMMIT) wgmma_commit();
  if (fault == OPERAND_OVERWRITTEN && thread_index() == 0) {{
    load_b(params, smem, smem + FULL + 16);
  }}
  if (fault == WRITE_IN_FLIGHT) d[0] = 0.0f;
  if (fault == READ_IN_FLIGHT) d[0] = maximum(d[0], d[1]);
  if (fault == WAIT_TOO_WEAK) {{
    wgmma_wait<1>();
  }} else if (fault != NO_WAIT) {{
    wgmma_wait<0>();
  }}
  if (fault == OPERAND_OVERWRITTEN) mbarrier_wait(smem + FULL + 16, 0);
  if (params.rounds == 2) {{  // D = 2 D + A B
    for (f32& value : d) value *= 2.0f;
    if (fault != NO_SECOND_FENCE) wgmma_fence();
    chain_{n}(params, smem, d, r, 1);
    wgmma_commit();
    wgmma_wait<0>();
  }}
  for (u32 i = 0; i < {n // 2}; i++) {{
    const u32 lane = thread_index() % 32;
    const u32 row = thread_index() / 32 * 16 + lane / 4 + i / 2 % 2 * 8;
    const u32 column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    store_global_f32(params.d + row * {n} + column, d[i]);
  }}
}}
"""


TEXT = (
    f"enum Fault : u32 {{ {', '.join(f'{fault.name} = {fault.value}' for fault in Fault)} }};"
    + """
struct alignas(64) Params {
  TensorMap a;
  TensorMap b;
  f32* d;
  u64 a_descriptor;
  u64 b_descriptor;
  u32 n;
  u32 form;
  u32 f16;
  u32 fault;
  u32 rounds;
  u32 a_boxes;
  u32 a_box_columns;
  u32 a_box_bytes;
  u32 b_boxes;
  u32 b_box_columns;
  u32 b_box_bytes;
  u32 a_offset[4];
  u32 b_offset[4];
};
constexpr u32 B = 8192, FULL = 8192 + 32768;

FMHAGEN_DEVICE u64 descriptor(u32 address, u64 rest) {
  return (address >> 4 & 0x3fff) | rest;
}

FMHAGEN_DEVICE void load_b(const Params& params, u32 smem, u32 full) {
  mbarrier_arrive_expect_tx(full, params.b_boxes * params.b_box_bytes);
  for (u32 box = 0; box < params.b_boxes; box++) {
    tma_load_4d(smem + B + box * params.b_box_bytes, &params.b, full,
                static_cast<i32>(box * params.b_box_columns), 0, 0, 0);
  }
}

FMHAGEN_DEVICE void load_a(const Params& params, u32 smem) {
  mbarrier_arrive_expect_tx(smem + FULL + 8, params.a_boxes * params.a_box_bytes);
  for (u32 box = 0; box < params.a_boxes; box++) {
    tma_load_4d(smem + box * params.a_box_bytes, &params.a, smem + FULL + 8,
                static_cast<i32>(box * params.a_box_columns), 0, 0, 0);
  }
}
"""
    + "".join(_product(n) for n in WIDTHS)
    + """
extern "C" __global__ void __launch_bounds__(128, 1) mini_kernel(FMHAGEN_PARAMS(Params)) {
  const u32 smem = smem_base();
  if (thread_index() == 0) {
    mbarrier_init(smem + FULL, 1);
    mbarrier_init(smem + FULL + 8, 1);
    mbarrier_init(smem + FULL + 16, 1);
    mbarrier_init_fence();
  }
  block_sync();
  if (thread_index() == 0) {
    load_a(params, smem);
    load_b(params, smem, smem + FULL);
  }
  mbarrier_wait(smem + FULL + 8, 0);
  if (params.fault != NO_LOAD_WAIT) mbarrier_wait(smem + FULL, 0);
  u32 r[4][4] = {};  // A as registers, where it is in shared memory as 128-byte rows
  if (params.form == 1 || params.form == 2) {
    const u32 lane = thread_index() % 32;
    const u32 row = thread_index() / 32 * 16 + lane % 16;
    for (u32 k = 0; k < 4; k++) {
      load_matrix_x4(r[k], smem + row * 128 + (k * 2 + lane / 16 ^ row % 8) * 16);
    }
  }
  if (params.fault == OVERLAP) {
    f32 d[64];
    wgmma_fence();
    chain_128(params, smem, d, r, 0);
    chain_64(params, smem, reinterpret_cast<f32(&)[32]>(d[16]), r, 0);
    return;
  }
"""
    + "\n".join(f"  if (params.n == {n}) product_{n}(params, smem, r);" for n in WIDTHS)
    + "\n}\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A matrix of 64 along k in shared memory: its boxes, and its descriptor but for the start."""

    tensor_map: bytes
    boxes: int
    box_columns: int
    box_bytes: int
    descriptor: int
    offsets: tuple[int, int, int, int]  # of the four k16 steps


def descriptor_of(leading_bytes: int, stride_bytes: int, swizzle_bytes: int) -> int:
    """Return a descriptor without its start address (PTX ISA 9.7.15.5.1.2.2)."""
    mode = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle_bytes]
    return leading_bytes >> 4 << 16 | stride_bytes >> 4 << 32 | mode << 62


def k_major(array: npt.NDArray[np.generic], swizzle_bytes: int) -> Operand:
    """Return rows x 64 with k contiguous: boxes of one swizzle span (or 16 bytes) of columns."""
    rows = array.shape[0]
    span = swizzle_bytes or 16
    box_bytes = rows * span
    starts = [k * 32 // span * box_bytes + k * 32 % span for k in range(4)]
    leading, stride = (box_bytes, 128) if not swizzle_bytes else (16, 8 * span)
    return Operand(
        tensor_map=matrix_map(array, rows, span // 2, swizzle_bytes),
        boxes=128 // span,
        box_columns=span // 2,
        box_bytes=box_bytes,
        descriptor=descriptor_of(leading, stride, swizzle_bytes),
        offsets=(starts[0], starts[1], starts[2], starts[3]),
    )


def mn_major(array: npt.NDArray[np.generic], swizzle_bytes: int) -> Operand:
    """Return 64 x n with n contiguous: boxes of one swizzle span of columns, 64 rows."""
    columns = array.shape[1]
    span = swizzle_bytes or 16
    box_bytes = K * span
    leading, stride = (128, box_bytes) if not swizzle_bytes else (box_bytes, 8 * span)
    return Operand(
        tensor_map=matrix_map(array, K, span // 2, swizzle_bytes),
        boxes=-(-columns * 2 // span),
        box_columns=span // 2,
        box_bytes=box_bytes,
        descriptor=descriptor_of(leading, stride, swizzle_bytes),
        offsets=(0, 16 * span, 32 * span, 48 * span),
    )


def multiply(
    *,
    n: int,
    form: str = "ss",
    dtype: str = "bf16",
    swizzle_bytes: int = 128,
    fault: Fault = Fault.NONE,
    rounds: int = 1,
    seed: int = 0,
) -> tuple[EmulatorError | Report, bool]:
    """Run one product; return its outcome and whether every bit of D is right."""
    random = np.random.default_rng(n + seed)
    a = aligned((64, K), DTYPES[dtype])
    b = aligned((K, n) if form.endswith("_t") else (n, K), DTYPES[dtype])
    a[...] = random.standard_normal(a.shape)
    b[...] = random.standard_normal(b.shape)
    d = aligned((64, n), np.float32)
    a_operand = k_major(a, 128 if form.startswith("rs") else swizzle_bytes)
    b_operand = (mn_major if form.endswith("_t") else k_major)(b, swizzle_bytes)
    outcome = fault_of(
        build(TEXT, THREADS, SMEM_BYTES),
        params=pack(
            a_operand.tensor_map,
            b_operand.tensor_map,
            ("3Q", (d.ctypes.data, a_operand.descriptor, b_operand.descriptor)),
            ("5I", (n, FORMS.index(form), list(DTYPES).index(dtype), fault, rounds)),
            ("3I", (a_operand.boxes, a_operand.box_columns, a_operand.box_bytes)),
            ("3I", (b_operand.boxes, b_operand.box_columns, b_operand.box_bytes)),
            ("4I", a_operand.offsets),
            ("4I60x", b_operand.offsets),
        ),
        threads=THREADS,
        smem_bytes=SMEM_BYTES,
        buffers=(buffer("a", a), buffer("b", b), buffer("d", d, output=True)),
        seed=seed,
    )
    return outcome, bool(np.array_equal(d, expected(a, b, form, rounds)))


def expected(
    a: npt.NDArray[np.generic], b: npt.NDArray[np.generic], form: str, rounds: int
) -> npt.NDArray[np.float32]:
    """Return A B (or 2 A B + A B) in fp32, k ascending."""
    left = a.astype(np.float32)
    right = b.astype(np.float32) if form.endswith("_t") else b.astype(np.float32).T
    total = np.zeros((64, right.shape[1]), np.float32)
    for _ in range(rounds):
        total = total * np.float32(2)
        for k in range(K):
            total = total + left[:, k : k + 1] * right[k]
    return total
