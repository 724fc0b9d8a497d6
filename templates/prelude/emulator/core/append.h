// Functions of both targets' isa_append: loads and stores of the kernel that appends rows to a cache.
#pragma once
#include "global.h"
#include "poison.h"

template <u32 BYTES>
static inline void load_bytes(u32 (&r)[(BYTES + 3) / 4], const void* address) {
  emulator::Issuer issuer = emulator::issuer_here("load_bytes");
  u64 where = reinterpret_cast<u64>(address);
  emulator::check_global_alignment(issuer, where, BYTES);
  r[0] = 0;
  memcpy(r, emulator::global_read(issuer, where, BYTES), BYTES);
}

template <u32 BYTES>
static inline void store_bytes(void* address, const u32 (&r)[(BYTES + 3) / 4]) {
  emulator::Issuer issuer = emulator::issuer_here("store_bytes");
  u64 where = reinterpret_cast<u64>(address);
  emulator::check_global_alignment(issuer, where, BYTES);
  memcpy(emulator::global_write(issuer, where, BYTES), r, BYTES);
}
