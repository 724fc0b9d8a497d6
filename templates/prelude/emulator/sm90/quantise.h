// Functions of isa_quantise: floats rounded to 8 bits.
#pragma once
#include "../core/quantise.h"

namespace emulator {

// A float as 1 sign bit, an exponent and MANTISSA bits, to nearest even; beyond LARGEST saturates.
template <u32 MANTISSA, u32 LARGEST, u32 NAN_BITS>
static inline u32 small_float_of(f32 value, i32 smallest_exponent, f32 largest) {
  u32 sign = bits_of(value) >> 24 & 0x80;
  f32 magnitude = fabsf(value);
  if (magnitude != magnitude) return NAN_BITS;
  if (magnitude >= largest) return sign | LARGEST;
  return sign | small_float_bits<MANTISSA>(magnitude, smallest_exponent);
}

static inline u32 e4m3_of(f32 value) { return small_float_of<3, 0x7E, 0x7F>(value, -6, 448.0f); }

static inline u32 e5m2_of(f32 value) { return small_float_of<2, 0x7B, 0x7F>(value, -14, 57344.0f); }

}  // namespace emulator

FMHAGEN_MODEL u32 pack_e4m3x2(f32 low, f32 high) {
  emulator::check_pair("pack_e4m3x2", low, high);
  return emulator::e4m3_of(low) | emulator::e4m3_of(high) << 8;
}

FMHAGEN_MODEL u32 pack_e5m2x2(f32 low, f32 high) {
  emulator::check_pair("pack_e5m2x2", low, high);
  return emulator::e5m2_of(low) | emulator::e5m2_of(high) << 8;
}

FMHAGEN_MODEL u32 pack_int8x2(f32 low, f32 high) {
  emulator::check_pair("pack_int8x2", low, high);
  return emulator::int8_of(low) | emulator::int8_of(high) << 8;
}
