// The emulator's isa layer of gfx942: every function of prelude/gfx942/isa.h, with what the
// instruction does. Included before the text of a generated file.
#pragma once
#define FMHAGEN_WARP_LANES 64
#include "gfx942/matrix.h"
#include "core/append.h"
#include "core/map.h"
#include "core/merge.h"

#pragma GCC diagnostic ignored "-Wunknown-pragmas"

typedef u32 u32x2 __attribute__((vector_size(8)));
typedef f32 f32x2 __attribute__((vector_size(8)));
typedef u32 u32x4 __attribute__((vector_size(16)));

// NOTE: not a vector type, which g++ passes by value under protest; and not left to the compiler's
// pattern for uninitialised variables, which is a finite number that a factor of 0 makes harmless.
namespace emulator {
template <u32 COUNT>
struct Accumulator {
  f32 registers[COUNT];
  Accumulator() { memset(registers, 0xFF, sizeof registers); }  // NaN: registers that nobody wrote
  f32& operator[](u32 i) { return registers[i]; }
  const f32& operator[](u32 i) const { return registers[i]; }
};
}  // namespace emulator

typedef emulator::Accumulator<4> f32x4;
typedef emulator::Accumulator<16> f32x16;

struct BufferResource {
  u64 base;
  u32 bytes;
};

FMHAGEN_MODEL u32 thread_index() { return emulator::current->thread; }

static inline u32 block_index() { return emulator::first_block; }

static inline u32 grid_size() { return emulator::request->grid; }

FMHAGEN_MODEL u32 smem_base() { return emulator::SMEM_BASE; }

template <class T>
static inline const T& reread(const T& params) {
  return params;
}

static inline void schedule_fence() {}

template <class T>
static inline void pin(const T& value) {
  static_cast<void>(value);
}

template <class T>
static inline void pin_accumulation(const T& value) {
  static_cast<void>(value);
}

template <class T>
static inline void hold_in_accumulation(T& value) {
  static_cast<void>(value);
}

template <u32 LEVEL>
static inline void set_priority() {}

template <u32 COUNT>
static inline void idle() {}

static inline void wait_loads() {}

// ---- waits, barriers, exchanges ------------------------------------------------------------------------

FMHAGEN_MODEL void wait_lds() {
  emulator::warp_together("s_waitcnt lgkmcnt(0)", 0, [] { emulator::lds_complete(); });
}

static inline void block_barrier() { emulator::block_barrier_meet(); }

FMHAGEN_MODEL u32 wave_uniform(u32 value) {
  return emulator::warp_exchange("v_readfirstlane_b32", 0, value)[0];
}

FMHAGEN_MODEL bool wave_any(bool predicate) {
  const u32* values = emulator::warp_exchange("v_cmp (wave_any)", 0, predicate);
  u32 any = 0;
  for (u32 lane = 0; lane < emulator::LANES; lane++) any |= values[lane];
  return any != 0;
}

static inline u32 lowest_bit(u32 word) { return static_cast<u32>(__builtin_ctz(word)); }

FMHAGEN_MODEL u32 read_lane(u32 value, u32 lane) {
  return emulator::warp_exchange("v_readlane_b32", lane, value)[lane % emulator::LANES];
}

FMHAGEN_MODEL u32 first_lane(bool predicate) {
  const u32* values = emulator::warp_exchange("v_cmp (first_lane)", 0, predicate);
  u32 lane = 0;
  while (lane < emulator::LANES && !values[lane]) lane++;
  return lane;
}

FMHAGEN_MODEL u32 prefix_sum(u32 value) {
  const u32* values = emulator::warp_exchange("v_add_u32 (prefix_sum)", 0, value);
  u32 sum = 0;
  for (u32 lane = 0; lane <= emulator::current->lane; lane++) sum += values[lane];
  return sum;
}

FMHAGEN_MODEL f32 shuffle_xor(f32 value, u32 lane_mask) {
  u32 bits;
  memcpy(&bits, &value, sizeof bits);
  const u32* values = emulator::warp_exchange("ds_bpermute_b32", lane_mask, bits);
  memcpy(&value, &values[(emulator::current->lane ^ lane_mask) % emulator::LANES], sizeof value);
  return value;
}

// ---- LDS -----------------------------------------------------------------------------------------------

FMHAGEN_MODEL u32x4 lds_read_b128(u32 address) {
  static emulator::BankKind kind{"ds_read_b128"};
  u32x4 value;
  emulator::lds_read("ds_read_b128", address, &value, 16);
  emulator::bank_note(kind, address, 16);
  return value;
}

FMHAGEN_MODEL void lds_write_b64(u32 address, u32x2 value) {
  static emulator::BankKind kind{"ds_write_b64"};
  emulator::lds_write("ds_write_b64", address, &value, 8);
  emulator::bank_note(kind, address, 8 + emulator::BANK_WRITE);
}

FMHAGEN_MODEL void lds_write_b128(u32 address, u32x4 value) {
  static emulator::BankKind kind{"ds_write_b128"};
  emulator::lds_write("ds_write_b128", address, &value, 16);
  emulator::bank_note(kind, address, 16 + emulator::BANK_WRITE);
}

// ---- global memory ---------------------------------------------------------------------------------------

FMHAGEN_MODEL BufferResource make_buffer(const void* base, u32 bytes) {
  return BufferResource{reinterpret_cast<u64>(base), bytes};
}

// Dword by dword: one that ends beyond the resource is not read and gives 0.
FMHAGEN_MODEL void buffer_load(const char* operation, BufferResource buffer, u32 offset, u32* value,
                               u32 dwords) {
  emulator::Issuer issuer = emulator::issuer_here(operation);
  emulator::check_global_alignment(issuer, buffer.base + offset, 4);
  u32 inside = 0;
  while (inside < dwords && u64(offset) + 4 * inside + 4 <= buffer.bytes) inside++;
  memset(value, 0, dwords * 4);
  if (!inside) return;
  memcpy(value, emulator::global_read(issuer, buffer.base + offset, inside * 4), inside * 4);
}

FMHAGEN_MODEL u32 buffer_load_b32(BufferResource buffer, u32 offset) {
  u32 value;
  buffer_load("buffer_load_dword", buffer, offset, &value, 1);
  return value;
}

FMHAGEN_MODEL u32x4 buffer_load_b128(BufferResource buffer, u32 offset) {
  u32 value[4];
  buffer_load("buffer_load_dwordx4", buffer, offset, value, 4);
  return u32x4{value[0], value[1], value[2], value[3]};
}

FMHAGEN_MODEL void buffer_store_b128(BufferResource buffer, u32 offset, u32x4 value) {
  emulator::Issuer issuer = emulator::issuer_here("buffer_store_dwordx4");
  emulator::check_global_alignment(issuer, buffer.base + offset, 4);
  u32 inside = 0;
  while (inside < 4 && u64(offset) + 4 * inside + 4 <= buffer.bytes) inside++;
  if (!inside) return;
  memcpy(emulator::global_write(issuer, buffer.base + offset, inside * 4), &value, inside * 4);
}

FMHAGEN_MODEL void store_global_f32(f32* address, f32 value) {
  emulator::Issuer issuer = emulator::issuer_here("global_store_dword");
  u64 where = reinterpret_cast<u64>(address);
  emulator::check_global_alignment(issuer, where, 4);
  memcpy(emulator::global_write(issuer, where, 4), &value, 4);
}

FMHAGEN_MODEL void raise_global_f32(f32* address, f32 value) {
  emulator::raise_float(emulator::issuer_here("global_atomic_smax"), address, value);
}

FMHAGEN_MODEL void store_global_v4(u16* address, u32 r0, u32 r1, u32 r2, u32 r3) {
  emulator::Issuer issuer = emulator::issuer_here("global_store_dwordx4");
  u64 where = reinterpret_cast<u64>(address);
  emulator::check_global_alignment(issuer, where, 16);
  const u32 values[4] = {r0, r1, r2, r3};
  memcpy(emulator::global_write(issuer, where, 16), values, 16);
}

template <class T>
static inline T load_param(const char* operation, const void* base, i64 index) {
  emulator::Issuer issuer = emulator::issuer_here(operation);
  u64 where = reinterpret_cast<u64>(base) + static_cast<u64>(index) * sizeof(T);
  emulator::check_global_alignment(issuer, where, sizeof(T));
  T value;
  memcpy(&value, emulator::global_read(issuer, where, sizeof(T)), sizeof(T));
  return value;
}

FMHAGEN_MODEL f32 load_param_f32(const void* base, i64 index) {
  return load_param<f32>("load_param_f32", base, index);
}

FMHAGEN_MODEL f32 load_param_f16(const void* base, i64 index) {
  return emulator::float_of_f16(load_param<u16>("load_param_f16", base, index));
}

FMHAGEN_MODEL f32 load_param_bf16(const void* base, i64 index) {
  return emulator::float_of_bf16(load_param<u16>("load_param_bf16", base, index));
}

FMHAGEN_MODEL i32 load_param_u16(const void* base, i64 index) {
  return load_param<u16>("load_param_u16", base, index);
}

static inline f32 widened_bf16(i32 bits) { return emulator::float_of_bf16(static_cast<u16>(bits)); }

static inline f32 widened_f16(i32 bits) { return emulator::float_of_f16(static_cast<u16>(bits)); }

FMHAGEN_MODEL i32 load_param_i32(const void* base, i64 index) {
  return load_param<i32>("load_param_i32", base, index);
}

FMHAGEN_MODEL i32 load_param_i64(const void* base, i64 index) {
  return static_cast<i32>(load_param<i64>("load_param_i64", base, index));
}

FMHAGEN_MODEL i32 load_param_u8(const void* base, i64 index) {
  return load_param<u8>("load_param_u8", base, index);
}

// ---- matrix instructions -----------------------------------------------------------------------------------

FMHAGEN_MODEL f32x16 mfma_32x32x8_bf16(u32x2 a, u32x2 b, f32x16 c) {
  return emulator::matrix_instruction<32, 8, 16, emulator::float_of_bf16>("v_mfma_f32_32x32x8_bf16",
                                                                        a, b, c);
}

FMHAGEN_MODEL f32x16 mfma_32x32x8_f16(u32x2 a, u32x2 b, f32x16 c) {
  return emulator::matrix_instruction<32, 8, 16, emulator::float_of_f16>("v_mfma_f32_32x32x8_f16", a,
                                                                       b, c);
}

FMHAGEN_MODEL f32x4 mfma_16x16x16_bf16(u32x2 a, u32x2 b, f32x4 c) {
  return emulator::matrix_instruction<16, 16, 4, emulator::float_of_bf16>("v_mfma_f32_16x16x16_bf16",
                                                                        a, b, c);
}

FMHAGEN_MODEL f32x4 mfma_16x16x16_f16(u32x2 a, u32x2 b, f32x4 c) {
  return emulator::matrix_instruction<16, 16, 4, emulator::float_of_f16>("v_mfma_f32_16x16x16_f16", a,
                                                                       b, c);
}

// ---- arithmetic --------------------------------------------------------------------------------------------

FMHAGEN_MODEL u32 byte_permute(u32 high, u32 low, u32 selector) {
  u64 bytes = u64(high) << 32 | low;
  u32 value = 0;
  for (u32 i = 0; i < 4; i++) {
    u32 choice = selector >> 8 * i & 255;
    if (choice > 7) {
      emulator::fail(FMHAGEN_LIMIT, emulator::issuer_here("v_perm_b32"), "selector %u", choice);
    }
    value |= static_cast<u32>(bytes >> 8 * choice & 255) << 8 * i;
  }
  return value;
}

FMHAGEN_MODEL f32 flush_denormal(f32 x) { return x < 0x1p-126f && x > -0x1p-126f ? 0.0f : x; }

FMHAGEN_MODEL f32 exp2_approx(f32 x) {
  emulator::check_register("v_exp_f32", x);
  return flush_denormal(__builtin_exp2f(x));
}

FMHAGEN_MODEL f32 log2_approx(f32 x) { return __builtin_log2f(flush_denormal(x)); }

FMHAGEN_MODEL f32 reciprocal_approx(f32 x) { return 1.0f / x; }

FMHAGEN_MODEL f32 sqrt_approx(f32 x) { return __builtin_sqrtf(flush_denormal(x)); }

FMHAGEN_MODEL f32 sqrt_exact(f32 x) { return __builtin_sqrtf(x); }

FMHAGEN_MODEL f32 absolute(f32 x) { return __builtin_fabsf(x); }

FMHAGEN_MODEL f32 floor_f32(f32 x) { return __builtin_floorf(x); }

FMHAGEN_MODEL f32 fused_multiply_add(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }

FMHAGEN_MODEL f32x2 packed_multiply_add(f32x2 a, f32x2 b, f32x2 c) {
  return f32x2{__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1])};
}

static inline f32x2 packed_add(f32x2 a, f32x2 b) { return a + b; }

FMHAGEN_MODEL f32 maximum(f32 a, f32 b) { return __builtin_fmaxf(a, b); }

FMHAGEN_MODEL f32 minimum(f32 a, f32 b) { return __builtin_fminf(a, b); }

static inline f32 infinity() { return __builtin_inff(); }

FMHAGEN_MODEL u32 pack_bf16x2(f32 low, f32 high) {
  emulator::check_register("pack_bf16x2", low);
  emulator::check_register("pack_bf16x2", high);
  return emulator::bf16_of(low) | emulator::bf16_of(high) << 16;
}

FMHAGEN_MODEL u32 pack_bf16x2_away(f32 low, f32 high) {
  emulator::check_register("pack_bf16x2_away", low);
  emulator::check_register("pack_bf16x2_away", high);
  return byte_permute(emulator::bits_of(high) + 0x8000u, emulator::bits_of(low) + 0x8000u, 0x07060302u);
}

FMHAGEN_MODEL u32 pack_bf16x2_truncated(f32 low, f32 high) {
  emulator::check_register("v_perm_b32", low);
  emulator::check_register("v_perm_b32", high);
  return byte_permute(emulator::bits_of(high), emulator::bits_of(low), 0x07060302u);
}

// Of the numbers of fp16 that are no larger in magnitude, the nearest.
FMHAGEN_MODEL u32 truncated_f16(f32 value) {
  emulator::check_register("v_cvt_pkrtz_f16_f32", value);
  u32 bits = emulator::f16_of(value);
  f32 rounded = emulator::float_of_f16(bits);
  return __builtin_fabsf(rounded) > __builtin_fabsf(value) ? bits - 1 : bits;
}

FMHAGEN_MODEL u32 pack_f16x2_truncated(f32 low, f32 high) {
  return truncated_f16(low) | truncated_f16(high) << 16;
}

FMHAGEN_MODEL u32 pack_f16x2(f32 low, f32 high) {
  emulator::check_register("pack_f16x2", low);
  emulator::check_register("pack_f16x2", high);
  return emulator::f16_of(low) | emulator::f16_of(high) << 16;
}

#include "gfx942/cache.h"
#include "gfx942/quantise.h"
