// The second part of gfx942's isa layer on a host: the functions of prelude/gfx942/isa_cache.h, but those
// that gfx942.h and core/merge.h have already.
#pragma once

namespace emulator {

// Reads `bytes` bytes of global memory, at a multiple of their number.
FMHAGEN_MODEL void load_global(const char* operation, void* value, const void* address, u32 bytes) {
  Issuer issuer = issuer_here(operation);
  u64 source = reinterpret_cast<u64>(address);
  check_global_alignment(issuer, source, bytes);
  memcpy(value, global_read(issuer, source, bytes), bytes);
}

// Writes `bytes` bytes of global memory, at a multiple of their number.
FMHAGEN_MODEL void store_global(const char* operation, void* address, const void* value,
                                u32 bytes) {
  Issuer issuer = issuer_here(operation);
  u64 target = reinterpret_cast<u64>(address);
  check_global_alignment(issuer, target, bytes);
  memcpy(global_write(issuer, target, bytes), value, bytes);
}

// FNUZ kinds of 8 bits: the bias is one more than OCP's, 0x80 is NaN, there is no infinity and no -0.
template <u32 MANTISSA_BITS, int BIAS>
static inline f32 float_of_fnuz(u32 byte) {
  if (byte == 0x80) return float_of(0x7FC00000u);
  u32 exponent = (byte & 0x7F) >> MANTISSA_BITS, mantissa = byte & ((1u << MANTISSA_BITS) - 1);
  f32 fraction = static_cast<f32>(mantissa) / static_cast<f32>(1u << MANTISSA_BITS);
  f32 value = exponent ? ldexpf(1.0f + fraction, static_cast<int>(exponent) - BIAS)
                       : ldexpf(fraction, 1 - BIAS);
  return byte & 0x80 ? -value : value;
}

template <u32 MANTISSA_BITS, int BIAS>
static inline f32x2 pair_of_fnuz(u32 four, u32 first) {
  return f32x2{float_of_fnuz<MANTISSA_BITS, BIAS>(four >> 8 * first & 0xFF),
               float_of_fnuz<MANTISSA_BITS, BIAS>(four >> 8 * (first + 1) & 0xFF)};
}

}  // namespace emulator

// ---- global memory ---------------------------------------------------------------------------------------

FMHAGEN_MODEL i32 load_global_i32(const i32* address) {
  i32 value;
  emulator::load_global("load_global_i32", &value, address, 4);
  return value;
}

FMHAGEN_MODEL f32 load_global_f32(const f32* address) {
  f32 value;
  emulator::load_global("load_global_f32", &value, address, 4);
  return value;
}

FMHAGEN_MODEL void load_global_f32x4(f32 (&values)[4], const f32* address) {
  emulator::load_global("global_load_dwordx4", values, address, 16);
}

FMHAGEN_MODEL void load_global_16(u32* words, const u8* address) {
  emulator::load_global("global_load_dwordx4", words, address, 16);
}

FMHAGEN_MODEL void load_global_8(u32* words, const u8* address) {
  emulator::load_global("global_load_dwordx2", words, address, 8);
}

FMHAGEN_MODEL u32 load_global_4(const u8* address) {
  u32 value;
  emulator::load_global("global_load_dword", &value, address, 4);
  return value;
}

FMHAGEN_MODEL u32 load_global_2(const u8* address) {
  u16 value;
  emulator::load_global("global_load_ushort", &value, address, 2);
  return value;
}

FMHAGEN_MODEL u32 load_global_1(const u8* address) {
  u8 value;
  emulator::load_global("global_load_ubyte", &value, address, 1);
  return value;
}

FMHAGEN_MODEL u32 buffer_load_u16(BufferResource buffer, u32 offset) {
  emulator::Issuer issuer = emulator::issuer_here("buffer_load_ushort");
  emulator::check_global_alignment(issuer, buffer.base + offset, 2);
  u16 value = 0;
  if (u64(offset) + 2 <= buffer.bytes) memcpy(&value, emulator::global_read(issuer, buffer.base + offset, 2), 2);
  return value;
}

FMHAGEN_MODEL u32x2 buffer_load_b64(BufferResource buffer, u32 offset) {
  u32 value[2];
  buffer_load("buffer_load_dwordx2", buffer, offset, value, 2);
  return u32x2{value[0], value[1]};
}

FMHAGEN_MODEL void store_global_f32x2(f32* address, f32 low, f32 high) {
  emulator::check_register("global_store_dwordx2", low);
  emulator::check_register("global_store_dwordx2", high);
  const f32 values[2] = {low, high};
  emulator::store_global("global_store_dwordx2", address, values, 8);
}

FMHAGEN_MODEL void store_global_u32(u16* address, u32 value) {
  emulator::store_global("global_store_dword", address, &value, 4);
}

FMHAGEN_MODEL void store_global_u16(u16* address, u32 value) {
  u16 element = static_cast<u16>(value);
  emulator::store_global("global_store_short", address, &element, 2);
}

// ---- LDS and lanes ---------------------------------------------------------------------------------------

FMHAGEN_MODEL u32x2 lds_read_b64(u32 address) {
  static emulator::BankKind kind{"ds_read_b64"};
  u32x2 value;
  emulator::lds_read("ds_read_b64", address, &value, 8);
  emulator::bank_note(kind, address, 8);
  return value;
}

FMHAGEN_MODEL u32 from_lane(u32 value, u32 lane) {
  return emulator::warp_exchange("ds_bpermute_b32 (from_lane)", 0, value)[lane % emulator::LANES];
}

FMHAGEN_MODEL u32 warp_ballot(bool predicate) {
  const u32* values = emulator::warp_exchange("v_cmp (warp_ballot)", 0, predicate);
  u32 bits = 0;
  for (u32 lane = 0; lane < 32; lane++) bits |= u32(values[lane] != 0) << lane;
  return bits;
}

// ---- conversions -----------------------------------------------------------------------------------------

FMHAGEN_MODEL u32 subtract_f16x2(u32 a, u32 b) {
  u32 low = emulator::f16_of(emulator::float_of_f16(a & 0xFFFF) - emulator::float_of_f16(b & 0xFFFF));
  u32 high = emulator::f16_of(emulator::float_of_f16(a >> 16) - emulator::float_of_f16(b >> 16));
  return low | high << 16;
}

static inline f32x2 low_pair_of_e4m3(u32 four) { return emulator::pair_of_fnuz<3, 8>(four, 0); }

static inline f32x2 high_pair_of_e4m3(u32 four) { return emulator::pair_of_fnuz<3, 8>(four, 2); }

static inline f32x2 low_pair_of_e5m2(u32 four) { return emulator::pair_of_fnuz<2, 16>(four, 0); }

static inline f32x2 high_pair_of_e5m2(u32 four) { return emulator::pair_of_fnuz<2, 16>(four, 2); }
