// setmaxnreg: the register pool of a block of sm90 (PTX ISA 8.8, section 9.7.19.5).
#pragma once
#include "barriers.h"

namespace emulator {

// The pool is what the block got at its launch, entry registers x threads, not the whole file: a
// warp can only take what others have given back.

enum : u32 { MIN_REGISTERS = 24, MAX_REGISTERS = 256, WARPGROUP_WARPS = 4 };

FMHAGEN_STATE u32 warp_registers[MAX_WARPS];
FMHAGEN_STATE u32 free_registers[MAX_CLUSTER];
FMHAGEN_STATE WaitQueue registers_waiting[MAX_CLUSTER];

FMHAGEN_MODEL void describe_registers(const Lane& lane, Text& text) {
  text.add("%llu registers a thread, but only %u registers of the block are free (entry: %u a "
           "thread x %u threads)",
           lane.wait_a, free_registers[lane.rank], request->entry_registers, request->threads);
}

FMHAGEN_NOINLINE void set_registers(const char* operation, u32 registers, bool increase) {
  Issuer issuer = issuer_here(operation);
  if (registers < MIN_REGISTERS || registers > MAX_REGISTERS || registers % 8) {
    fail(FMHAGEN_REGISTERS, issuer, "%u is not a multiple of 8 from 24 to 256", registers);
  }
  warp_together(operation, registers, [&] {
    u32& mine = warp_registers[current->warp];
    u32& free = free_registers[current->rank];
    if (!request->entry_registers) {
      mine = registers;
      return;
    }
    if (increase ? registers < mine : registers > mine) {
      fail(FMHAGEN_REGISTERS, issuer, "from %u to %u registers a thread", mine, registers);
    }
    if (!increase) {
      free += (mine - registers) * LANES;
      wake_all(registers_waiting[current->rank]);
    } else {
      while (free < (registers - mine) * LANES) {
        block_on(registers_waiting[current->rank], operation, describe_registers, registers, 0);
      }
      free -= (registers - mine) * LANES;
    }
    mine = registers;
  });
}

FMHAGEN_MODEL void registers_end_block() {
  for (u32 warp = 0; warp < warp_count; warp++) {
    u32 first = warp / WARPGROUP_WARPS * WARPGROUP_WARPS;
    if (warp_registers[warp] != warp_registers[first]) {
      fail(FMHAGEN_REGISTERS, Issuer{first_block, warp * LANES, "setmaxnreg"},
           "warp %u ends with %u registers a thread, warp %u of its warpgroup with %u", warp,
           warp_registers[warp], first, warp_registers[first]);
    }
  }
}

FMHAGEN_MODEL void registers_begin_block() {
  memset(registers_waiting, 0, sizeof registers_waiting);
  memset(free_registers, 0, sizeof free_registers);
  for (u32 warp = 0; warp < warp_count; warp++) warp_registers[warp] = request->entry_registers;
}

}  // namespace emulator
