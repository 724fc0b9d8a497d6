// The second part of sm90's isa layer on a host: the functions of prelude/sm90/isa_cache.cuh, but
// those that isa.h has already.
#pragma once
#include "async_copy.h"
#include "isa.h"

// ---- the warp -----------------------------------------------------------------------------------

FMHAGEN_MODEL void load_matrix_x4_transposed(u32 (&r)[4], u32 address) {
  emulator::load_matrices(r, address, true);
}

FMHAGEN_MODEL u32 shuffle_from(u32 value, u32 lane) {
  FMHAGEN_COUNT("shfl");
  return emulator::warp_exchange("shuffle_from", 0, value)[lane % emulator::LANES];
}

FMHAGEN_MODEL f32 shuffle_f32_from(f32 value, u32 lane) {
  emulator::check_register("shuffle_f32_from", value);
  return emulator::float_of(shuffle_from(emulator::bits_of(value), lane));
}

FMHAGEN_MODEL u32 shuffle_up(u32 value, u32 distance) {
  FMHAGEN_COUNT("shfl");
  const u32* values = emulator::warp_exchange("shuffle_up", distance, value);
  u32 lane = emulator::current->lane;
  return values[lane < distance ? lane : lane - distance];
}

FMHAGEN_MODEL u32 warp_ballot(bool predicate) {
  FMHAGEN_COUNT("vote");
  const u32* values = emulator::warp_exchange("warp_ballot", 0, predicate);
  u32 bits = 0;
  for (u32 lane = 0; lane < emulator::LANES; lane++) bits |= u32(values[lane] != 0) << lane;
  return bits;
}

FMHAGEN_MODEL u32 warp_add(u32 value) {
  FMHAGEN_COUNT("redux");
  const u32* values = emulator::warp_exchange("warp_add", 0, value);
  u32 sum = 0;
  for (u32 lane = 0; lane < emulator::LANES; lane++) sum += values[lane];
  return sum;
}

FMHAGEN_MODEL u32 warp_maximum(u32 value) {
  FMHAGEN_COUNT("redux");
  const u32* values = emulator::warp_exchange("warp_maximum", 0, value);
  u32 most = 0;
  for (u32 lane = 0; lane < emulator::LANES; lane++) {
    if (values[lane] > most) most = values[lane];
  }
  return most;
}

static inline u32 lowest_bit(u32 bits) { return static_cast<u32>(__builtin_ctz(bits)); }

// ---- copies -------------------------------------------------------------------------------------

FMHAGEN_MODEL void tma_load_5d(u32 destination, const TensorMap* map, u32 barrier, i32 c0, i32 c1,
                               i32 c2, i32 c3, i32 c4) {
  FMHAGEN_COUNT("tma.load");
  emulator::tma_load("tma_load_5d", destination, map, barrier, {c0, c1, c2, c3, c4}, 5);
}

static inline u64 evict_first() { return 0; }

FMHAGEN_MODEL void tma_load_5d_under(u64, u32 destination, const TensorMap* map, u32 barrier, i32 c0, i32 c1,
                                     i32 c2, i32 c3, i32 c4) {
  FMHAGEN_COUNT("tma.load");
  emulator::tma_load("tma_load_5d", destination, map, barrier, {c0, c1, c2, c3, c4}, 5);
}

FMHAGEN_MODEL void copy_async_16(u32 destination, const void* source, u32 source_bytes) {
  FMHAGEN_COUNT("cp.async");
  emulator::async_copy(destination, reinterpret_cast<u64>(source), source_bytes);
}

static inline void copy_async_commit() { emulator::async_copies_commit(); }

template <u32 PENDING>
static inline void copy_async_wait() {
  emulator::async_copies_wait(PENDING);
}

// ---- global memory ------------------------------------------------------------------------------

namespace emulator {

// Reads `bytes` bytes of global memory, at a multiple of their number.
FMHAGEN_MODEL void load_global(const char* operation, void* value, const void* address, u32 bytes) {
  Issuer issuer = issuer_here(operation);
  u64 source = reinterpret_cast<u64>(address);
  check_global_alignment(issuer, source, bytes);
  memcpy(value, global_read(issuer, source, bytes), bytes);
}

}  // namespace emulator

FMHAGEN_MODEL i32 load_global_i32(const i32* address) {
  FMHAGEN_COUNT("ld.global");
  i32 value;
  emulator::load_global("load_global_i32", &value, address, 4);
  return value;
}

// NOTE: nothing is read; that the address is one of a buffer is checked all the same.
FMHAGEN_MODEL void fetch_line(const void* address) {
  FMHAGEN_COUNT("prefetch");
  emulator::Issuer issuer = emulator::issuer_here("fetch_line");
  issuer.is_early = false;
  emulator::find_buffer(issuer, reinterpret_cast<u64>(address), 1, "fetch");
}

FMHAGEN_MODEL u32 load_global_u32(const u16* address) {
  FMHAGEN_COUNT("ld.global");
  u32 value;
  emulator::load_global("load_global_u32", &value, address, 4);
  return value;
}

FMHAGEN_MODEL void load_global_u32x2(u32& low, u32& high, const u16* address) {
  FMHAGEN_COUNT("ld.global");
  u32 values[2];
  emulator::load_global("load_global_u32x2", values, address, 8);
  low = values[0];
  high = values[1];
}

FMHAGEN_MODEL void load_global_u32x4(u32 (&r)[4], const u16* address) {
  FMHAGEN_COUNT("ld.global");
  emulator::load_global("load_global_u32x4", r, address, 16);
}

FMHAGEN_MODEL f32 load_global_f32(const f32* address) {
  FMHAGEN_COUNT("ld.global");
  f32 value;
  emulator::load_global("load_global_f32", &value, address, 4);
  return value;
}

FMHAGEN_MODEL void load_global_f32x4(f32 (&values)[4], const f32* address) {
  FMHAGEN_COUNT("ld.global");
  emulator::load_global("load_global_f32x4", values, address, 16);
}

FMHAGEN_MODEL void store_global_f32x2(f32* address, f32 low, f32 high) {
  FMHAGEN_COUNT("st.global");
  emulator::check_register("store_global_f32x2", low);
  emulator::check_register("store_global_f32x2", high);
  emulator::Issuer issuer = emulator::issuer_here("store_global_f32x2");
  u64 target = reinterpret_cast<u64>(address);
  emulator::check_global_alignment(issuer, target, 8);
  const f32 values[2] = {low, high};
  memcpy(emulator::global_write(issuer, target, 8), values, 8);
}

// ---- shared memory ------------------------------------------------------------------------------

namespace emulator {

FMHAGEN_MODEL void load_shared(const char* operation, BankKind& kind, void* value, u32 address,
                               u32 bytes) {
  FMHAGEN_COUNT("ld.shared");
  Access access = access_here(operation);
  address = own_address(operation, address);
  check_alignment(access.issuer, address, bytes);
  bank_note(kind, address, bytes);
  memcpy(value, shared_read(access, address, bytes), bytes);
}

FMHAGEN_MODEL void store_shared(const char* operation, BankKind& kind, u32 address,
                                const void* value, u32 bytes) {
  FMHAGEN_COUNT("st.shared");
  Access access = access_here(operation);
  address = own_address(operation, address);
  check_alignment(access.issuer, address, bytes);
  bank_note(kind, address, bytes);
  memcpy(shared_write(access, address, bytes), value, bytes);
}

FMHAGEN_STATE BankKind load_kind FMHAGEN_FROM_THE_START({"ld.shared", 0, 0, {}});
FMHAGEN_STATE BankKind store_kind FMHAGEN_FROM_THE_START({"st.shared", 0, 0, {}});

}  // namespace emulator

FMHAGEN_MODEL u32 load_shared_u32(u32 address) {
  u32 value;
  emulator::load_shared("load_shared_u32", emulator::load_kind, &value, address, 4);
  return value;
}

FMHAGEN_MODEL void load_shared_u32x2(u32& low, u32& high, u32 address) {
  u32 values[2];
  emulator::load_shared("load_shared_u32x2", emulator::load_kind, values, address, 8);
  low = values[0];
  high = values[1];
}

FMHAGEN_MODEL f32 load_shared_f32(u32 address) {
  return emulator::float_of(load_shared_u32(address));
}

FMHAGEN_MODEL void load_shared_f32x2(f32& low, f32& high, u32 address) {
  f32 values[2];
  emulator::load_shared("load_shared_f32x2", emulator::load_kind, values, address, 8);
  low = values[0];
  high = values[1];
}

FMHAGEN_MODEL void load_shared_f32x4(f32 (&values)[4], u32 address) {
  emulator::load_shared("load_shared_f32x4", emulator::load_kind, values, address, 16);
}

FMHAGEN_MODEL void load_shared_u32x4(u32 (&r)[4], u32 address) {
  emulator::load_shared("load_shared_u32x4", emulator::load_kind, r, address, 16);
}

FMHAGEN_MODEL void store_shared_u32(u32 address, u32 value) {
  emulator::store_shared("store_shared_u32", emulator::store_kind, address, &value, 4);
}

FMHAGEN_MODEL void store_shared_u32x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
  const u32 values[4] = {r0, r1, r2, r3};
  emulator::store_shared("store_shared_u32x4", emulator::store_kind, address, values, 16);
}

FMHAGEN_MODEL void store_shared_f32(u32 address, f32 value) {
  emulator::check_register("store_shared_f32", value);
  emulator::store_shared("store_shared_f32", emulator::store_kind, address, &value, 4);
}

FMHAGEN_MODEL void store_shared_f32x2(u32 address, f32 low, f32 high) {
  emulator::check_register("store_shared_f32x2", low);
  emulator::check_register("store_shared_f32x2", high);
  const f32 values[2] = {low, high};
  emulator::store_shared("store_shared_f32x2", emulator::store_kind, address, values, 8);
}

FMHAGEN_MODEL void store_shared_f32x4(u32 address, f32 v0, f32 v1, f32 v2, f32 v3) {
  const f32 values[4] = {v0, v1, v2, v3};
  for (f32 value : values) emulator::check_register("store_shared_f32x4", value);
  emulator::store_shared("store_shared_f32x4", emulator::store_kind, address, values, 16);
}

// ---- conversions --------------------------------------------------------------------------------

namespace emulator {

// OCP e4m3: bias 7, no infinities, 0x7F and 0xFF are NaN.
FMHAGEN_MODEL f32 float_of_e4m3(u32 byte) {
  u32 exponent = byte >> 3 & 15, mantissa = byte & 7;
  if ((byte & 0x7F) == 0x7F) return float_of(0x7FC00000u);
  f32 value = exponent ? ldexpf(1.0f + static_cast<f32>(mantissa) / 8.0f, static_cast<int>(exponent) - 7)
                       : ldexpf(static_cast<f32>(mantissa), -9);
  return byte & 0x80 ? -value : value;
}

}  // namespace emulator

FMHAGEN_MODEL void widen_e4m3x4(u32& low, u32& high, u32 four) {
  FMHAGEN_COUNT("cvt.f16x2.e4m3x2");
  u32 halves[4];
  for (u32 i = 0; i < 4; i++) {
    halves[i] = emulator::f16_of(emulator::float_of_e4m3(four >> 8 * i & 0xFF));
  }
  low = halves[0] | halves[1] << 16;
  high = halves[2] | halves[3] << 16;
}

FMHAGEN_MODEL void unpack_f16x2(f32& low, f32& high, u32 pair) {
  FMHAGEN_COUNT("cvt.f32.f16");
  low = emulator::float_of_f16(pair & 0xFFFF);
  high = emulator::float_of_f16(pair >> 16);
}

FMHAGEN_MODEL u32 byte_permute(u32 low, u32 high, u32 selector) {
  u64 bytes = u64(high) << 32 | low;
  u32 result = 0;
  for (u32 i = 0; i < 4; i++) {
    u32 nibble = selector >> 4 * i & 15;
    u32 byte = static_cast<u32>(bytes >> (nibble & 7) * 8) & 0xFF;
    result |= (nibble & 8 ? (byte & 0x80 ? 0xFFu : 0u) : byte) << 8 * i;
  }
  return result;
}

FMHAGEN_MODEL u32 subtract_f16x2(u32 a, u32 b) {
  u32 low = emulator::f16_of(emulator::float_of_f16(a & 0xFFFF) - emulator::float_of_f16(b & 0xFFFF));
  u32 high = emulator::f16_of(emulator::float_of_f16(a >> 16) - emulator::float_of_f16(b >> 16));
  return low | high << 16;
}

// ---- dependent launches: a run is one kernel, and all that is ahead of it has ended; what is checked
// is that it does not rely on that before it has waited ---------------------------------------------

// NOTE: the launch behind may then begin, and what it reads ahead of its own wait must have been
// written by then; it knows of no kernel ahead of this one but through this one's wait.
FMHAGEN_MODEL void launch_dependents() {
  FMHAGEN_COUNT("griddepcontrol");
  emulator::Issuer issuer = emulator::issuer_here("launch_dependents");
  if (issuer.is_early && emulator::request->leads && emulator::checking(FMHAGEN_CHECK_RACES)) {
    emulator::fail(FMHAGEN_RACE, issuer,
                   "ahead of wait_for_primary: the launch behind this one reads what a kernel ahead "
                   "of this one may still write");
  }
}

FMHAGEN_MODEL void wait_for_primary() {
  FMHAGEN_COUNT("griddepcontrol");
  emulator::current->has_waited = true;
}

static inline void wait_for_primary_knowing(u32 known) {
  FMHAGEN_COUNT("griddepcontrol");
  emulator::current->has_waited = known < 0x80000000u;
}
