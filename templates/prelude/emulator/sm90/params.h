// What mask and score functions call on sm90, and numbers in shared memory.
#pragma once
#include "isa.h"

// ---- arithmetic ---------------------------------------------------------------------------------

FMHAGEN_MODEL f32 minimum(f32 a, f32 b) {
  emulator::check_register("minimum", a);
  emulator::check_register("minimum", b);
  return fminf(a, b);
}

FMHAGEN_MODEL f32 absolute(f32 x) {
  emulator::check_register("absolute", x);
  return fabsf(x);
}

FMHAGEN_MODEL f32 largest_of_positive(f32 a, f32 b, f32 c) {
  u32 largest = 0;
  const f32 values[] = {a, b, c};
  for (f32 x : values) {
    emulator::check_register("largest_of_positive", x);
    u32 bits = emulator::bits_of(x);
    largest = bits > largest ? bits : largest;
  }
  return emulator::float_of(largest);
}

FMHAGEN_MODEL f32 least_of_ordered(f32 a, f32 b, f32 c) {
  i32 least = 0x7fffffff;
  const f32 values[] = {a, b, c};
  for (f32 x : values) {
    emulator::check_register("least_of_ordered", x);
    i32 bits = static_cast<i32>(emulator::bits_of(x));
    least = bits < least ? bits : least;
  }
  return emulator::float_of(static_cast<u32>(least));
}

FMHAGEN_MODEL f32 floor_f32(f32 x) {
  emulator::check_register("floor_f32", x);
  return floorf(x);
}

FMHAGEN_MODEL f32 sqrt_approx(f32 x) {
  emulator::check_register("sqrt_approx", x);
  return emulator::flush_denormal(sqrtf(emulator::flush_denormal(x)));
}

FMHAGEN_MODEL f32 sqrt_exact(f32 x) {
  emulator::check_register("sqrt_exact", x);
  return sqrtf(x);
}

FMHAGEN_MODEL f32 tanh_approx(f32 x) {
  emulator::check_register("tanh_approx", x);
  return tanhf(x);
}

// ---- parameters ---------------------------------------------------------------------------------

namespace emulator {

template <typename T>
static inline T load_param(const char* operation, const void* base, i64 index) {
  FMHAGEN_COUNT("ld.global.nc");
  Issuer issuer = issuer_here(operation);
  u64 address = reinterpret_cast<u64>(base) + static_cast<u64>(index) * sizeof(T);
  check_global_alignment(issuer, address, sizeof(T));
  T value;
  memcpy(&value, global_read(issuer, address, sizeof(T)), sizeof(T));
  return value;
}

}  // namespace emulator

FMHAGEN_MODEL f32 load_param_f32(const void* base, i64 index) {
  return emulator::load_param<f32>("load_param_f32", base, index);
}

FMHAGEN_MODEL f32 load_param_f16(const void* base, i64 index) {
  return emulator::float_of_f16(emulator::load_param<u16>("load_param_f16", base, index));
}

FMHAGEN_MODEL f32 load_param_bf16(const void* base, i64 index) {
  return emulator::float_of_bf16(emulator::load_param<u16>("load_param_bf16", base, index));
}

FMHAGEN_MODEL i32 load_param_i32(const void* base, i64 index) {
  return emulator::load_param<i32>("load_param_i32", base, index);
}

FMHAGEN_MODEL i32 load_param_i64(const void* base, i64 index) {
  return static_cast<i32>(emulator::load_param<i64>("load_param_i64", base, index));
}

FMHAGEN_MODEL i32 load_param_u8(const void* base, i64 index) {
  return emulator::load_param<u8>("load_param_u8", base, index);
}
