// The isa layer of sm90 on a host: the functions of prelude/sm90/isa.cuh, with the same signatures.
#pragma once
#include "warp.h"

// ---- where am I ---------------------------------------------------------------------------------

FMHAGEN_MODEL u32 thread_index() {
  return emulator::current->thread - emulator::current->rank * emulator::request->threads;
}
static inline u32 block_index() { return emulator::first_block + emulator::current->rank; }
static inline u32 grid_size() { return emulator::request->grid; }
static inline u32 cluster_rank() { return emulator::current->rank; }
FMHAGEN_MODEL u32 smem_base() {
  return emulator::current->rank << emulator::RANK_SHIFT | emulator::SMEM_BASE;
}

// ---- barriers -----------------------------------------------------------------------------------

FMHAGEN_MODEL void block_sync() {
  emulator::named_barrier_come("block_sync", 0, emulator::request->threads,
                               emulator::BARRIER_SYNC, false);
}

FMHAGEN_MODEL void named_barrier_sync(u32 id, u32 threads) {
  FMHAGEN_COUNT("bar.sync");
  emulator::named_barrier_come("named_barrier_sync", id, threads, emulator::BARRIER_SYNC, false);
}

FMHAGEN_MODEL bool named_barrier_any(u32 id, u32 threads, bool predicate) {
  FMHAGEN_COUNT("bar.red");
  return emulator::named_barrier_come("named_barrier_any", id, threads, emulator::BARRIER_ANY,
                                      predicate);
}

FMHAGEN_MODEL void named_barrier_arrive(u32 id, u32 threads) {
  FMHAGEN_COUNT("bar.arrive");
  emulator::named_barrier_come("named_barrier_arrive", id, threads, emulator::BARRIER_ARRIVE,
                               false);
}

FMHAGEN_MODEL void mbarrier_init(u32 barrier, u32 count) {
  emulator::mbarrier_create(barrier, count);
}

static inline void mbarrier_init_fence() { emulator::mbarriers_fence(); }

FMHAGEN_MODEL void mbarrier_arrive(u32 barrier) {
  FMHAGEN_COUNT("mbarrier.arrive");
  emulator::mbarrier_arrive_with("mbarrier_arrive",
                                 emulator::own_address("mbarrier_arrive", barrier), 0);
}

FMHAGEN_MODEL void mbarrier_arrive_cluster(u32 barrier) {
  FMHAGEN_COUNT("mbarrier.arrive (cluster)");
  emulator::mbarrier_arrive_with("mbarrier_arrive_cluster",
                                 emulator::cluster_address_of("mbarrier_arrive_cluster", barrier),
                                 0);
}

FMHAGEN_MODEL void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  FMHAGEN_COUNT("mbarrier.arrive.expect_tx");
  emulator::mbarrier_arrive_with("mbarrier_arrive_expect_tx",
                                 emulator::own_address("mbarrier_arrive_expect_tx", barrier), bytes);
}

FMHAGEN_MODEL void mbarrier_wait(u32 barrier, u32 parity) {
  FMHAGEN_COUNT("mbarrier.try_wait");
  emulator::mbarrier_wait_for(barrier, parity);
}

// ---- clusters ------------------------------------------------------------------------------------

FMHAGEN_MODEL u32 cluster_address(u32 address, u32 rank) {
  return emulator::map_address(address, rank);
}

FMHAGEN_MODEL void cluster_arrive() {
  FMHAGEN_COUNT("barrier.cluster");
  emulator::cluster_barrier_arrive();
}

static inline void cluster_wait() { emulator::cluster_barrier_wait(); }

// ---- the warp -----------------------------------------------------------------------------------

FMHAGEN_MODEL void warp_sync() {
  emulator::warp_together("warp_sync", 0, emulator::share_lane_writes);
}

FMHAGEN_MODEL u32 warp_uniform(u32 value) {
  return emulator::warp_exchange("warp_uniform", 0, value)[0];
}

FMHAGEN_MODEL f32 warp_uniform_f32(f32 value) {
  emulator::check_register("warp_uniform_f32", value);
  const u32* values = emulator::warp_exchange("warp_uniform_f32", 0, emulator::bits_of(value));
  u32 bits = 0;
  for (u32 lane = 0; lane < emulator::LANES; ++lane) { bits |= values[lane]; }
  return emulator::float_of(bits);
}

FMHAGEN_MODEL f32 shuffle_xor(f32 value, u32 lane_mask) {
  FMHAGEN_COUNT("shfl");
  emulator::check_register("shuffle_xor", value);
  const u32* values =
      emulator::warp_exchange("shuffle_xor", lane_mask, emulator::bits_of(value));
  return emulator::float_of(values[(emulator::current->lane ^ lane_mask) % emulator::LANES]);
}

FMHAGEN_MODEL u32 shuffle_xor(u32 value, u32 lane_mask) {
  FMHAGEN_COUNT("shfl");
  const u32* values = emulator::warp_exchange("shuffle_xor", lane_mask, value);
  return values[(emulator::current->lane ^ lane_mask) % emulator::LANES];
}

FMHAGEN_MODEL bool warp_any(bool predicate) {
  FMHAGEN_COUNT("vote");
  const u32* values = emulator::warp_exchange("warp_any", 0, predicate);
  bool any = false;
  for (u32 lane = 0; lane < emulator::LANES; lane++) any |= values[lane] != 0;
  return any;
}

template <u32 REGISTERS>
static inline void registers_increase() {
  emulator::set_registers("registers_increase", REGISTERS, true);
}

template <u32 REGISTERS>
static inline void registers_decrease() {
  emulator::set_registers("registers_decrease", REGISTERS, false);
}

FMHAGEN_MODEL void store_matrix_x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
  const u32 values[4] = {r0, r1, r2, r3};
  emulator::store_matrices(address, values);
}

FMHAGEN_MODEL void load_matrix_x4(u32 (&r)[4], u32 address) {
  emulator::load_matrices(r, address, false);
}

FMHAGEN_MODEL void mma_m16n8k16_bf16(f32& d0, f32& d1, f32& d2, f32& d3, const u32 (&a)[4], u32 b0,
                                     u32 b1) {
  f32* const d[4] = {&d0, &d1, &d2, &d3};
  emulator::multiply_warp(d, a, b0, b1, false);
}

FMHAGEN_MODEL void mma_m16n8k16_f16(f32& d0, f32& d1, f32& d2, f32& d3, const u32 (&a)[4], u32 b0,
                                    u32 b1) {
  f32* const d[4] = {&d0, &d1, &d2, &d3};
  emulator::multiply_warp(d, a, b0, b1, true);
}

// ---- bulk copies --------------------------------------------------------------------------------

FMHAGEN_MODEL void tensor_map_prefetch(const TensorMap* map) {
  emulator::check_map(emulator::issuer_here("tensor_map_prefetch"), map, 0);
}

FMHAGEN_MODEL void tma_load_4d(u32 destination, const TensorMap* map, u32 barrier, i32 c0, i32 c1,
                               i32 c2, i32 c3) {
  FMHAGEN_COUNT("tma.load");
  emulator::tma_load("tma_load_4d", destination, map, barrier, {c0, c1, c2, c3, 0}, 4);
}

FMHAGEN_MODEL void tma_load_4d_multicast(u32 destination, const TensorMap* map, u32 barrier, i32 c0,
                                         i32 c1, i32 c2, i32 c3, u32 blocks) {
  FMHAGEN_COUNT("tma.load.multicast");
  emulator::tma_load_multicast(destination, map, barrier, {c0, c1, c2, c3, 0}, blocks);
}

FMHAGEN_MODEL void tma_store_4d(const TensorMap* map, u32 source, i32 c0, i32 c1, i32 c2, i32 c3) {
  FMHAGEN_COUNT("tma.store");
  emulator::tma_store(map, source, {c0, c1, c2, c3, 0});
}

static inline void tma_store_commit() { emulator::stores_commit(); }
static inline void tma_store_wait_read() { emulator::stores_wait(false); }
static inline void tma_store_wait() { emulator::stores_wait(true); }

FMHAGEN_MODEL void proxy_fence() {
  FMHAGEN_COUNT("fence.proxy.async");
  emulator::fence_here();
  emulator::mbarriers_fence();
}

// ---- warpgroup products -------------------------------------------------------------------------

static inline void wgmma_fence() { emulator::matrix_fence(); }
static inline void wgmma_commit() { emulator::matrix_commit(); }

template <u32 PENDING>
static inline void wgmma_wait() {
  emulator::matrix_wait(PENDING);
}

static inline void register_fence(f32&) {}
static inline i32 after(i32 value, f32) { return value; }
static inline void keep_here(u32&, u32&) {}
static inline f32 after_f32(f32 value, f32) { return value; }

// Forms: A in shared memory (ss) or registers (rs); B K-major, or MN-major (_t).
#define FMHAGEN_WGMMA(N, TYPE, F16)                                                              \
  static inline void wgmma_m64n##N##k16_##TYPE##_ss(f32(&d)[N / 2], u64 a, u64 b, u32 add) {     \
    emulator::matrix_multiply(d, {N, F16, false, false}, nullptr, a, b, add);                    \
  }                                                                                              \
  static inline void wgmma_m64n##N##k16_##TYPE##_ss_t(f32(&d)[N / 2], u64 a, u64 b, u32 add) {   \
    emulator::matrix_multiply(d, {N, F16, false, true}, nullptr, a, b, add);                     \
  }                                                                                              \
  static inline void wgmma_m64n##N##k16_##TYPE##_rs(f32(&d)[N / 2], const u32(&a)[4], u64 b,     \
                                                    u32 add) {                                   \
    emulator::matrix_multiply(d, {N, F16, true, false}, a, 0, b, add);                           \
  }                                                                                              \
  static inline void wgmma_m64n##N##k16_##TYPE##_rs_t(f32(&d)[N / 2], const u32(&a)[4], u64 b,   \
                                                      u32 add) {                                 \
    emulator::matrix_multiply(d, {N, F16, true, true}, a, 0, b, add);                            \
  }
#define FMHAGEN_WGMMA_SIZES(A, B, C, D)                          \
  FMHAGEN_WGMMA(A, bf16, false) FMHAGEN_WGMMA(A, f16, true)      \
  FMHAGEN_WGMMA(B, bf16, false) FMHAGEN_WGMMA(B, f16, true)      \
  FMHAGEN_WGMMA(C, bf16, false) FMHAGEN_WGMMA(C, f16, true)      \
  FMHAGEN_WGMMA(D, bf16, false) FMHAGEN_WGMMA(D, f16, true)
FMHAGEN_WGMMA_SIZES(8, 16, 24, 32)
FMHAGEN_WGMMA_SIZES(40, 48, 56, 64)
FMHAGEN_WGMMA_SIZES(72, 80, 88, 96)
FMHAGEN_WGMMA_SIZES(104, 112, 120, 128)
FMHAGEN_WGMMA_SIZES(136, 144, 152, 160)
FMHAGEN_WGMMA_SIZES(168, 176, 184, 192)
FMHAGEN_WGMMA_SIZES(200, 208, 216, 224)
FMHAGEN_WGMMA_SIZES(232, 240, 248, 256)
#undef FMHAGEN_WGMMA_SIZES
#undef FMHAGEN_WGMMA

// ---- arithmetic ---------------------------------------------------------------------------------
// The approximations are exact here, save for denormals, which .ftz flushes.

namespace emulator {

FMHAGEN_NOINLINE u32 pack_bf16(f32 low, f32 high) {
  check_register("pack_bf16x2", low);
  check_register("pack_bf16x2", high);
  return bf16_of(low) | bf16_of(high) << 16;
}

FMHAGEN_NOINLINE u32 pack_f16(f32 low, f32 high) {
  check_register("pack_f16x2", low);
  check_register("pack_f16x2", high);
  return f16_of(low) | f16_of(high) << 16;
}

FMHAGEN_MODEL f32 flush_denormal(f32 x) {
  return (bits_of(x) & 0x7F800000u) ? x : copysignf(0.0f, x);
}

}  // namespace emulator

FMHAGEN_MODEL f32 exp2_approx(f32 x) {
  emulator::check_register("exp2_approx", x);
  return emulator::flush_denormal(exp2f(emulator::flush_denormal(x)));
}

FMHAGEN_MODEL f32 log2_approx(f32 x) {
  emulator::check_register("log2_approx", x);
  return emulator::flush_denormal(log2f(emulator::flush_denormal(x)));
}

FMHAGEN_MODEL f32 reciprocal_approx(f32 x) {
  emulator::check_register("reciprocal_approx", x);
  return emulator::flush_denormal(1.0f / emulator::flush_denormal(x));
}

FMHAGEN_MODEL f32 fused_multiply_add(f32 a, f32 b, f32 c) {
  emulator::check_register("fused_multiply_add", a);
  return fmaf(a, b, c);
}

FMHAGEN_MODEL f32 maximum(f32 a, f32 b) {
  emulator::check_register("maximum", a);
  emulator::check_register("maximum", b);
  return fmaxf(a, b);
}

static inline f32 infinity() { return __builtin_inff(); }

FMHAGEN_MODEL u32 pack_bf16x2(f32 low, f32 high) { return emulator::pack_bf16(low, high); }

FMHAGEN_MODEL u32 pack_f16x2(f32 low, f32 high) { return emulator::pack_f16(low, high); }

// ---- global memory ------------------------------------------------------------------------------

FMHAGEN_MODEL void store_global_f32(f32* address, f32 value) {
  FMHAGEN_COUNT("st.global");
  emulator::check_register("store_global_f32", value);
  emulator::Issuer issuer = emulator::issuer_here("store_global_f32");
  u64 target = reinterpret_cast<u64>(address);
  emulator::check_global_alignment(issuer, target, 4);
  memcpy(emulator::global_write(issuer, target, 4), &value, 4);
}

FMHAGEN_MODEL void raise_global_f32(f32* address, f32 value) {
  FMHAGEN_COUNT("red.global.max");
  emulator::check_register("raise_global_f32", value);
  emulator::raise_float(emulator::issuer_here("raise_global_f32"), address, value);
}

FMHAGEN_MODEL void store_global_u32(u16* address, u32 value) {
  FMHAGEN_COUNT("st.global");
  emulator::Issuer issuer = emulator::issuer_here("store_global_u32");
  u64 target = reinterpret_cast<u64>(address);
  emulator::check_global_alignment(issuer, target, 4);
  memcpy(emulator::global_write(issuer, target, 4), &value, 4);
}

FMHAGEN_MODEL void store_global_v4(u16* address, u32 r0, u32 r1, u32 r2, u32 r3) {
  FMHAGEN_COUNT("st.global");
  emulator::Issuer issuer = emulator::issuer_here("store_global_v4");
  u64 target = reinterpret_cast<u64>(address);
  emulator::check_global_alignment(issuer, target, 16);
  const u32 values[4] = {r0, r1, r2, r3};
  memcpy(emulator::global_write(issuer, target, 16), values, 16);
}
