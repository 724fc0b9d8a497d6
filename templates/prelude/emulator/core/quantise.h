// What both targets' isa_quantise have in common: floats rounded to 8 bits.
#pragma once
#include "poison.h"

namespace emulator {

// The exponent and MANTISSA bits of a number >= 0, to nearest even; below 2^smallest_exponent it is subnormal.
template <u32 MANTISSA>
static inline u32 small_float_bits(f32 magnitude, int smallest_exponent) {
  int exponent = 0;
  frexpf(magnitude, &exponent);
  exponent = exponent - 1 < smallest_exponent || magnitude == 0.0f ? smallest_exponent : exponent - 1;
  // Counted in units of the last bit, which nearbyint rounds; a carry moves into the exponent.
  f32 units = nearbyintf(ldexpf(magnitude, static_cast<int>(MANTISSA) - exponent));
  return (static_cast<u32>(exponent - smallest_exponent) << MANTISSA) + static_cast<u32>(units);
}

FMHAGEN_MODEL u32 int8_of(f32 value) {
  if (value != value) return 0;
  f32 whole = nearbyintf(value);
  return static_cast<u32>(static_cast<i32>(whole < -128.0f ? -128.0f : whole > 127.0f ? 127.0f : whole)) & 0xFF;
}

FMHAGEN_MODEL void check_pair(const char* operation, f32 low, f32 high) {
  check_register(operation, low);
  check_register(operation, high);
}

}  // namespace emulator
