// Functions of isa_quantise: floats rounded to 8 bits, the floats among them of the FNUZ kind.
#pragma once
#include "../core/quantise.h"

namespace emulator {

// A float as 1 sign bit, an exponent and MANTISSA bits, to nearest even; beyond `largest`, 0x7F or 0xFF.
template <u32 MANTISSA, int BIAS>
static inline u32 fnuz_of(f32 value, f32 largest) {
  f32 magnitude = fabsf(value);
  if (magnitude != magnitude) return 0x80;
  u32 sign = value < 0 ? 0x80 : 0;
  if (magnitude >= largest) return sign | 0x7F;
  u32 bits = small_float_bits<MANTISSA>(magnitude, 1 - BIAS);
  return bits ? sign | bits : 0;  // there is no -0
}

}  // namespace emulator

FMHAGEN_MODEL u32 pack_e4m3x2(f32 low, f32 high) {
  emulator::check_pair("v_cvt_pk_fp8_f32", low, high);
  return emulator::fnuz_of<3, 8>(low, 240.0f) | emulator::fnuz_of<3, 8>(high, 240.0f) << 8;
}

FMHAGEN_MODEL u32 pack_e5m2x2(f32 low, f32 high) {
  emulator::check_pair("v_cvt_pk_bf8_f32", low, high);
  return emulator::fnuz_of<2, 16>(low, 57344.0f) | emulator::fnuz_of<2, 16>(high, 57344.0f) << 8;
}

FMHAGEN_MODEL u32 pack_int8x2(f32 low, f32 high) {
  emulator::check_pair("v_cvt_i32_f32", low, high);
  return emulator::int8_of(low) | emulator::int8_of(high) << 8;
}
