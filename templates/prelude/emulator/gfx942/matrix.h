// The matrix instructions of gfx942, from their lane maps.
//
// NOTE: a bf16 or fp16 product is exact in fp32; hardware does not say in which order it adds.
#pragma once
#include "lds.h"

namespace emulator {

// A shape of `size` rows and columns. Lane l holds
//   of A[i, k] and B[k, j], element e:  i or j = l % size, k = 4 * (l / size) + e
//   of C and D[i, j], register g:       i = 256 / size * (g / 4) + 4 * (l / size) + g % 4, j = l % size
// (https://github.com/ROCm/amd_matrix_instruction_calculator, architecture cdna3).
enum : u32 { OPERAND_ELEMENTS = 4 };

static constexpr u32 mfma_line(u32 size, u32 lane) { return lane % size; }

FMHAGEN_MODEL constexpr u32 mfma_depth(u32 size, u32 lane, u32 element) {
  return OPERAND_ELEMENTS * (lane / size) + element;
}

FMHAGEN_MODEL constexpr u32 mfma_row(u32 size, u32 lane, u32 i) {
  return 256 / size * (i / 4) + 4 * (lane / size) + i % 4;
}

// What the lanes of a wave bring to a matrix instruction and take from it.
struct MatrixMeeting {
  u32 a[LANES][2];
  u32 b[LANES][2];
  f32 d[LANES][16];  // C, then D
};

FMHAGEN_STATE MatrixMeeting matrix_meetings[MAX_WARPS];

// NOTE: four columns at a time by hand, since no compiler does it below -O2; the sums are the same.
typedef f32 FourColumns __attribute__((vector_size(16), may_alias));

template <u32 SIZE, u32 DEPTH, u32 REGISTERS, f32 (*DECODE)(u32)>
static void matrix_multiply(MatrixMeeting& meeting) {
  alignas(16) f32 a[SIZE][DEPTH], b[DEPTH][SIZE], d[SIZE][SIZE];
  for (u32 lane = 0; lane < LANES; lane++) {
    u32 line = mfma_line(SIZE, lane);
    for (u32 element = 0; element < OPERAND_ELEMENTS; element++) {
      u32 depth = mfma_depth(SIZE, lane, element), shift = element % 2 * 16;
      a[line][depth] = DECODE(meeting.a[lane][element / 2] >> shift & 0xFFFF);
      b[depth][line] = DECODE(meeting.b[lane][element / 2] >> shift & 0xFFFF);
    }
    for (u32 i = 0; i < REGISTERS; i++) d[mfma_row(SIZE, lane, i)][line] = meeting.d[lane][i];
  }
  for (u32 row = 0; row < SIZE; row++) {
    FourColumns sums[SIZE / 4];
    memcpy(sums, d[row], sizeof sums);
    for (u32 depth = 0; depth < DEPTH; depth++) {
      f32 factor = a[row][depth];
      FourColumns factors = {factor, factor, factor, factor};
      const FourColumns* columns = reinterpret_cast<const FourColumns*>(b[depth]);
      for (u32 i = 0; i < SIZE / 4; i++) sums[i] += factors * columns[i];
    }
    memcpy(d[row], sums, sizeof sums);
  }
  for (u32 lane = 0; lane < LANES; lane++) {
    for (u32 i = 0; i < REGISTERS; i++) {
      meeting.d[lane][i] = d[mfma_row(SIZE, lane, i)][mfma_line(SIZE, lane)];
    }
  }
}

// All lanes of the wave bring their parts; each takes its part of D.
template <u32 SIZE, u32 DEPTH, u32 REGISTERS, f32 (*DECODE)(u32), class Operand, class Result>
static inline Result matrix_instruction(const char* name, Operand a, Operand b, Result c) {
  MatrixMeeting& meeting = matrix_meetings[current->warp];
  u32 lane = current->lane;
  memcpy(meeting.a[lane], &a, sizeof a);
  memcpy(meeting.b[lane], &b, sizeof b);
  memcpy(meeting.d[lane], &c, sizeof c);
  for (u32 i = 0; i < REGISTERS; i++) check_register(name, meeting.d[lane][i]);
  warp_together(name, 0, [&meeting, name] {
    static u32 slot = ~0u;
    count(slot, name);
    matrix_multiply<SIZE, DEPTH, REGISTERS, DECODE>(meeting);
  });
  memcpy(&c, meeting.d[lane], sizeof c);
  return c;
}

}  // namespace emulator
