// wgmma operands: descriptors, canonical layouts, and the product (PTX ISA 8.8, section 9.7.15.5).
#pragma once
#include "tma.h"

namespace emulator {

enum : u32 { WGMMA_M = 64, WGMMA_K = 16, WGMMA_MAX_N = 256, QUARTER_ROWS = 16 };

// What an instruction of a warp is; the same in all lanes and in the four warps of a warpgroup.
struct MatrixShape {
  u32 n;
  bool f16;          // fp16 operands, else bf16
  bool a_registers;  // A from registers, else shared memory
  bool b_mn_major;   // tnspB: B stands with n contiguous, else k contiguous
};

// ---- descriptors (9.7.15.5.1.2.2) ---------------------------------------------------------------

struct Descriptor {
  u32 start;
  u32 leading;  // LBO: K-major without swizzle, k chunks; MN-major, from one span of n to the next
  u32 stride;   // SBO: from one group of eight rows to the next
  u32 swizzle_bytes;
};

FMHAGEN_MODEL Descriptor decode_descriptor(const Issuer& issuer, u64 bits, const char* operand) {
  static const u32 swizzles[4] = {0, 128, 64, 32};  // bits 62-63
  Descriptor found;
  found.start = rank_of(issuer) * WINDOW_BYTES + (static_cast<u32>(bits & 0x3FFF) << 4);
  found.leading = static_cast<u32>(bits >> 16 & 0x3FFF) << 4;
  found.stride = static_cast<u32>(bits >> 32 & 0x3FFF) << 4;
  found.swizzle_bytes = swizzles[bits >> 62];
  if (bits & 0x3FFFC000C000C000ull) {
    fail(FMHAGEN_MATRIX, issuer, "descriptor of %s: 0x%016llx has reserved bits, or a base offset "
         "(which is not modelled)", operand, bits);
  }
  // Without a base offset the pattern starts at a multiple of its length; an advance along k
  // inside a row, below 128 bytes, is allowed.
  u32 lines = found.swizzle_bytes ? found.swizzle_bytes / CHUNK_BYTES - 1 : 0;
  if (found.start >> 7 & lines) {
    fail_at(FMHAGEN_MISALIGNED, issuer, found.start, "descriptor of %s: not at the start of a "
            "%u-byte swizzle pattern", operand, found.swizzle_bytes);
  }
  return found;
}

// Canonical layouts: a 16-byte chunk holds eight elements along the contiguous dimension.
// K-major: chunk `half` (k / 8) of row `row` (m or n).
FMHAGEN_MODEL u32 k_major_chunk(const Descriptor& matrix, u32 row, u32 half) {
  u32 pitch = matrix.swizzle_bytes ? matrix.swizzle_bytes : CHUNK_BYTES;
  u32 step = matrix.swizzle_bytes ? CHUNK_BYTES : matrix.leading;
  u32 linear = matrix.start + row / 8 * matrix.stride + row % 8 * pitch + half * step;
  return swizzle(linear, matrix.swizzle_bytes);
}

// MN-major: columns 8 * chunk to 8 * chunk + 7 of row k.
FMHAGEN_MODEL u32 mn_major_chunk(const Descriptor& matrix, u32 k, u32 chunk) {
  if (!matrix.swizzle_bytes) {
    return matrix.start + k / 8 * matrix.leading + k % 8 * CHUNK_BYTES + chunk * matrix.stride;
  }
  u32 span = matrix.swizzle_bytes / CHUNK_BYTES;  // chunks
  u32 linear = matrix.start + k / 8 * matrix.stride + k % 8 * matrix.swizzle_bytes +
               chunk % span * CHUNK_BYTES + chunk / span * matrix.leading;
  return swizzle(linear, matrix.swizzle_bytes);
}

// ---- operands as floats -------------------------------------------------------------------------

alignas(64) FMHAGEN_STATE f32 operand_a[QUARTER_ROWS][WGMMA_K];
alignas(64) FMHAGEN_STATE f32 operand_b[WGMMA_K][WGMMA_MAX_N];

FMHAGEN_MODEL f32 float_of_half(u32 half, bool f16) {
  return f16 ? float_of_f16(half) : float_of_bf16(half);
}

// Eight 16-bit elements of shared memory.
FMHAGEN_MODEL void read_chunk(Access& access, u32 address, bool f16, f32 (&values)[8]) {
  u16 halves[8];
  memcpy(halves, shared_read(access, address, CHUNK_BYTES), CHUNK_BYTES);
  if (f16) {
    for (u32 i = 0; i < 8; i++) values[i] = float_of_f16(halves[i]);
  } else {
    for (u32 i = 0; i < 8; i++) values[i] = float_of_bf16(halves[i]);
  }
}

// Rows 16 * quarter to 16 * quarter + 15 of A: what one warp of the warpgroup multiplies.
FMHAGEN_MODEL void load_a(Access& access, const Descriptor& a, u32 quarter, bool f16) {
  f32 values[8];
  for (u32 row = 0; row < QUARTER_ROWS; row++) {
    for (u32 half = 0; half < 2; half++) {
      read_chunk(access, k_major_chunk(a, quarter * QUARTER_ROWS + row, half), f16, values);
      memcpy(&operand_a[row][half * 8], values, sizeof values);
    }
  }
}

// The A fragment (9.7.15.5.1.1): register r of a lane holds row lane / 4 + 8 * (r % 2), columns
// 8 * (r / 2) + 2 * (lane % 4) and the next.
FMHAGEN_MODEL void load_a_registers(const u32 (*registers)[4], bool f16) {
  for (u32 lane = 0; lane < LANES; lane++) {
    for (u32 r = 0; r < 4; r++) {
      f32* pair = &operand_a[lane / 4 + r % 2 * 8][r / 2 * 8 + lane % 4 * 2];
      pair[0] = float_of_half(registers[lane][r] & 0xFFFF, f16);
      pair[1] = float_of_half(registers[lane][r] >> 16, f16);
    }
  }
}

FMHAGEN_MODEL void load_b(Access& access, const Descriptor& b, const MatrixShape& shape) {
  f32 values[8];
  if (shape.b_mn_major) {
    for (u32 k = 0; k < WGMMA_K; k++) {
      for (u32 chunk = 0; chunk < shape.n / 8; chunk++) {
        read_chunk(access, mn_major_chunk(b, k, chunk), shape.f16, values);
        memcpy(&operand_b[k][chunk * 8], values, sizeof values);
      }
    }
    return;
  }
  for (u32 row = 0; row < shape.n; row++) {
    for (u32 half = 0; half < 2; half++) {
      read_chunk(access, k_major_chunk(b, row, half), shape.f16, values);
      for (u32 i = 0; i < 8; i++) operand_b[half * 8 + i][row] = values[i];
    }
  }
}

// ---- the product --------------------------------------------------------------------------------
// c[m][n] = ((c + a[m][0] b[0][n]) + a[m][1] b[1][n]) + ..., each sum rounded to fp32. Products of
// 16-bit floats are exact in fp32, so a fused multiply-add gives the same bits: the result depends
// neither on the compiler nor on the instructions that it picks. (Hardware sums in another order;
// the difference is far below the rounding of the operands.)

typedef f32 Floats __attribute__((vector_size(32)));
enum : u32 { FLOATS = 8, BLOCK_ROWS = 4 };

// Four rows by eight columns, or by sixteen if PAIR, summed over all k. Named variables rather
// than arrays, so that every compiler keeps the sums in registers.
template <bool PAIR>
__attribute__((always_inline)) static inline void multiply_block(f32* c, u32 n, u32 row,
                                                                 u32 column) {
  const f32* a = operand_a[row];
  const Floats* b = reinterpret_cast<const Floats*>(&operand_b[0][column]);
  Floats* c0 = reinterpret_cast<Floats*>(c + row * n + column);
  Floats *c1 = c0 + n / FLOATS, *c2 = c1 + n / FLOATS, *c3 = c2 + n / FLOATS;
  Floats left0 = c0[0], left1 = c1[0], left2 = c2[0], left3 = c3[0];
  Floats right0 = c0[PAIR], right1 = c1[PAIR], right2 = c2[PAIR], right3 = c3[PAIR];
  for (u32 k = 0; k < WGMMA_K; k++, a++, b += WGMMA_MAX_N / FLOATS) {
    left0 += b[0] * a[0];
    left1 += b[0] * a[WGMMA_K];
    left2 += b[0] * a[2 * WGMMA_K];
    left3 += b[0] * a[3 * WGMMA_K];
    if (!PAIR) continue;
    right0 += b[1] * a[0];
    right1 += b[1] * a[WGMMA_K];
    right2 += b[1] * a[2 * WGMMA_K];
    right3 += b[1] * a[3 * WGMMA_K];
  }
  if (PAIR) c0[1] = right0, c1[1] = right1, c2[1] = right2, c3[1] = right3;
  c0[0] = left0, c1[0] = left1, c2[0] = left2, c3[0] = left3;
}

__attribute__((always_inline)) static inline void multiply_all(f32* c, u32 n) {
  for (u32 row = 0; row < QUARTER_ROWS; row += BLOCK_ROWS) {
    u32 column = 0;
    for (; column + 2 * FLOATS <= n; column += 2 * FLOATS) multiply_block<true>(c, n, row, column);
    if (column < n) multiply_block<false>(c, n, row, column);
  }
}

FMHAGEN_MODEL void multiply_baseline(f32* c, u32 n) { multiply_all(c, n); }

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) FMHAGEN_MODEL void multiply_avx2(f32* c, u32 n) {
  multiply_all(c, n);
}

// Whether processor and system have AVX2 and FMA. By hand: not every compiler's run-time library
// has what __builtin_cpu_supports needs.
FMHAGEN_MODEL bool has_avx2() {
  u32 a = 1, b, c = 0, d, low, high;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  const u32 wanted = 1u << 12 | 1u << 27 | 1u << 28;  // FMA, OSXSAVE, AVX
  if ((c & wanted) != wanted) return false;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 6) != 6) return false;
  a = 7, c = 0;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return (b >> 5 & 1) != 0;
}
#endif

FMHAGEN_STATE void (*multiply)(f32* c, u32 n) FMHAGEN_FROM_THE_START(multiply_baseline);

FMHAGEN_MODEL void choose_multiply() {
#ifdef __x86_64__
  if (has_avx2()) multiply = multiply_avx2;
#endif
}

}  // namespace emulator
