// Functions of both targets' isa_merge: what the kernel that merges parts of attention uses.
#pragma once
#include "global.h"
#include "poison.h"

FMHAGEN_MODEL void load_global_v4(u32 (&r)[4], const void* address) {
  emulator::Issuer issuer = emulator::issuer_here("load_global_v4");
  u64 where = reinterpret_cast<u64>(address);
  emulator::check_global_alignment(issuer, where, 16);
  memcpy(r, emulator::global_read(issuer, where, 16), 16);
}

FMHAGEN_MODEL f32 load_lse(const f32* address) {
  emulator::Issuer issuer = emulator::issuer_here("load_lse");
  u64 where = reinterpret_cast<u64>(address);
  emulator::check_global_alignment(issuer, where, 4);
  f32 value;
  memcpy(&value, emulator::global_read(issuer, where, 4), 4);
  return value;
}

FMHAGEN_MODEL f32 float_of_bits(u32 bits) {
  f32 value;
  memcpy(&value, &bits, 4);
  return value;
}

FMHAGEN_MODEL u32 bits_of_float(f32 value) {
  u32 bits;
  memcpy(&bits, &value, 4);
  return bits;
}

static inline f32 float_of_bf16(u32 bits) { return float_of_bits(bits << 16); }

FMHAGEN_MODEL f32 float_of_f16(u32 bits) { return emulator::float_of_f16(bits); }
