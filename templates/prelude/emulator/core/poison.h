// Registers that nobody wrote, and 16-bit floats.
#pragma once
#include "banks.h"

namespace emulator {

// What an accumulator holds while a matrix operation that writes it is in flight: a signalling
// NaN. Arithmetic makes it quiet but keeps its payload, so that both are known: a register that
// was computed on (its bits have changed) and what was computed from it (the payload).
enum : u32 { POISON_REGISTER = 0x7FA1DEADu, POISON_MASK = 0x7FBFFFFFu };  // sign, quiet bit aside

FMHAGEN_MODEL u32 bits_of(f32 value) {
  u32 bits;
  memcpy(&bits, &value, 4);
  return bits;
}

FMHAGEN_MODEL f32 float_of(u32 bits) {
  f32 value;
  memcpy(&value, &bits, 4);
  return value;
}

// Whether a float is one that nobody wrote. g++ fills uninitialised variables with 0xFE bytes
// (a finite float), clang with 0xFF; no computation gives exactly these.
FMHAGEN_MODEL bool is_poison(f32 value) {
  u32 bits = bits_of(value);
  return (bits & POISON_MASK) == POISON_REGISTER || bits == 0xFEFEFEFEu || bits == 0xFFFFFFFFu;
}

__attribute__((cold)) FMHAGEN_NOINLINE void fail_poison(const char* operation, f32 value) {
  if ((bits_of(value) & POISON_MASK) == POISON_REGISTER) {
    fail(FMHAGEN_MATRIX, issuer_here(operation),
         "reads an accumulator (or what was computed from one) that a matrix operation in flight "
         "will write: a wait is missing");
  }
  fail(FMHAGEN_UNINITIALISED, issuer_here(operation), "reads a register that nobody wrote");
}

FMHAGEN_MODEL void check_register(const char* operation, f32 value) {
  if (is_poison(value) && checking(FMHAGEN_CHECK_POISON)) fail_poison(operation, value);
}

// ---- conversions, round to nearest even ---------------------------------------------------------

FMHAGEN_MODEL u32 bf16_of(f32 value) {
  u32 bits = bits_of(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bits >> 16 | 0x40;  // a quiet NaN
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

static inline f32 float_of_bf16(u32 half) { return float_of(half << 16); }

FMHAGEN_MODEL u32 f16_of(f32 value) {
  u32 bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7E00 | (magnitude >> 13 & 0x1FF);
  if (magnitude >= 0x47800000u) return sign | 0x7C00;  // 2^16 and more
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves multiples of 2^-24 in the low bits, rounded to even.
    return sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f));
  }
  return sign | (magnitude - 0x38000000u + 0xFFF + (magnitude >> 13 & 1)) >> 13;
}

FMHAGEN_MODEL f32 float_of_f16(u32 half) {
  // The exponent is moved by a product, which also normalises subnormals; both are exact.
  u32 magnitude = (half & 0x7FFF) << 13;
  f32 value = float_of(magnitude) * 0x1p112f;
  u32 bits = bits_of(value);
  if (magnitude >= 0x7C00u << 13) bits |= 0x7F800000u;
  return float_of(bits | (half & 0x8000) << 16);
}

}  // namespace emulator
