// Instructions of one warp: stmatrix, ldmatrix, mma.sync (PTX ISA 8.8, section 9.7.14.5).
#pragma once
#include "wgmma_registers.h"

namespace emulator {

enum : u32 { MATRIX_ROW_BYTES = 16, MATRICES = 4, BANKS = 32, WAVEFRONT_BYTES = 128 };

// Shared memory gives 128 bytes a pass, each of 32 banks 4 bytes: a warp's 4-byte accesses are one
// pass, 8-byte accesses two halves, 16-byte accesses four quarters.
FMHAGEN_MODEL Wavefronts target_wavefronts(const u32* address, u64 present, u32 bytes_per_lane) {
  u32 lanes_per_pass = bytes_per_lane > 4 ? WAVEFRONT_BYTES / bytes_per_lane : LANES;
  Wavefronts wavefronts{0, 0};
  for (u32 first = 0; first < LANES; first += lanes_per_pass) {
    u32 passes =
        bank_passes(address, present, first, lanes_per_pass, bytes_per_lane, BANKS);
    wavefronts.taken += passes;
    wavefronts.ideal += passes != 0;
  }
  return wavefronts;
}

// What lanes give to each other; two generations, for a slow reader.
struct WarpOperands {
  u32 address[LANES];
  u32 registers[LANES][6];
  u8 rows[LANES][MATRIX_ROW_BYTES];
};

FMHAGEN_STATE WarpOperands warp_operands[MAX_WARPS][2];

FMHAGEN_MODEL WarpOperands& operands_here() {
  return warp_operands[current->warp][current_warp().rendezvous.generation & 1];
}

// The row that lane `lane` addresses, as a piece of an access of the whole warp.
FMHAGEN_MODEL void check_matrix_row(Access& access, const WarpOperands& operands, u32 lane) {
  access.issuer.thread = current->warp * LANES + lane;
  check_alignment(access.issuer, operands.address[lane], MATRIX_ROW_BYTES);
}

// stmatrix .x4: register m of lane l is elements 2 * (l % 4) and the next of row l / 4 of matrix m,
// whose address lane 8 * m + row gives.
FMHAGEN_MODEL void store_matrices(u32 address, const u32 (&values)[MATRICES]) {
  WarpOperands& operands = operands_here();
  operands.address[current->lane] = own_address("store_matrix_x4", address);
  memcpy(operands.registers[current->lane], values, sizeof values);
  warp_together("store_matrix_x4", 0, [&] {
    static BankKind kind{"stmatrix", 0, 0, {}};
    Access access = access_here("store_matrix_x4");
    for (u32 lane = 0; lane < LANES; lane++) {
      check_matrix_row(access, operands, lane);
      u8* row = shared_write(access, operands.address[lane], MATRIX_ROW_BYTES);
      for (u32 i = 0; i < 4; i++) {
        memcpy(row + i * 4, &operands.registers[lane % 8 * 4 + i][lane / 8], 4);
      }
    }
    bank_count(kind, operands.address, ALL_LANES, MATRIX_ROW_BYTES);
    FMHAGEN_COUNT("stmatrix");
  });
}

// ldmatrix .x4: the inverse; with .trans, register m of lane l is column l / 4 of rows 2 * (l % 4)
// and the next.
FMHAGEN_MODEL void load_matrices(u32 (&values)[MATRICES], u32 address, bool transposed) {
  const char* operation = transposed ? "load_matrix_x4_transposed" : "load_matrix_x4";
  WarpOperands& operands = operands_here();
  operands.address[current->lane] = own_address(operation, address);
  warp_together(operation, 0, [&] {
    static BankKind kind{"ldmatrix", 0, 0, {}};
    Access access = access_here(operation);
    for (u32 lane = 0; lane < LANES; lane++) {
      check_matrix_row(access, operands, lane);
      const u8* row = shared_read(access, operands.address[lane], MATRIX_ROW_BYTES);
      memcpy(operands.rows[lane], row, MATRIX_ROW_BYTES);
    }
    bank_count(kind, operands.address, ALL_LANES, MATRIX_ROW_BYTES);
    FMHAGEN_COUNT("ldmatrix");
  });
  u32 lane = current->lane;
  for (u32 m = 0; m < MATRICES; m++) {
    const u8(*rows)[MATRIX_ROW_BYTES] = operands.rows + m * 8;
    if (transposed) {
      u8* bytes = reinterpret_cast<u8*>(&values[m]);
      memcpy(bytes, rows[lane % 4 * 2] + lane / 4 * 2, 2);
      memcpy(bytes + 2, rows[lane % 4 * 2 + 1] + lane / 4 * 2, 2);
    } else {
      memcpy(&values[m], rows[lane / 4] + lane % 4 * 4, 4);
    }
  }
}

// mma.m16n8k16, D += A B: A and D as in wgmma; register r of B is rows (k) 8 * r + 2 * (lane % 4)
// and the next of column lane / 4. k ascending, products exact, each sum rounded.
FMHAGEN_MODEL void multiply_warp(f32* const (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, bool f16) {
  for (f32* element : d) check_register("mma_m16n8k16 (accumulator)", *element);
  WarpOperands& operands = operands_here();
  u32 lane = current->lane;
  u32 mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  memcpy(operands.registers[lane], mine, sizeof mine);
  warp_together(f16 ? "mma_m16n8k16_f16" : "mma_m16n8k16_bf16", 0,
                [] { FMHAGEN_COUNT("mma.m16n8k16"); });
  for (u32 i = 0; i < 4; i++) {
    u32 row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (u32 k = 0; k < WGMMA_K; k++) {
      u32 pair = k % 8 / 2, high = k % 2 * 16;
      u32 from_a = operands.registers[row % 8 * 4 + pair][row / 8 + k / 8 * 2];
      u32 from_b = operands.registers[column * 4 + pair][4 + k / 8];
      *d[i] += float_of_half(from_a >> high & 0xFFFF, f16) *
               float_of_half(from_b >> high & 0xFFFF, f16);
    }
  }
}

}  // namespace emulator
