// Functions of both targets' isa_map: what block maps are written and read with.
#pragma once
#include "global.h"

FMHAGEN_MODEL bool any_lane(bool predicate) {
  const u32* values = emulator::warp_exchange("any_lane", 0, predicate);
  u32 any = 0;
  for (u32 lane = 0; lane < emulator::LANES; lane++) any |= values[lane];
  return any != 0;
}

FMHAGEN_MODEL void store_global_u8(u8* address, u32 value) {
  emulator::Issuer issuer = emulator::issuer_here("store_global_u8");
  *emulator::global_write(issuer, reinterpret_cast<u64>(address), 1) = static_cast<u8>(value);
}

static inline u32 highest_bit(u32 word) { return 31 - static_cast<u32>(__builtin_clz(word)); }
static inline u32 count_bits(u32 word) { return static_cast<u32>(__builtin_popcount(word)); }
