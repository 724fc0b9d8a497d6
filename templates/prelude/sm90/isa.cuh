// The isa layer of sm90: one function, one instruction. Sections are those of the PTX ISA 8.8
// (https://docs.nvidia.com/cuda/parallel-thread-execution/). Shared-memory addresses are u32.
// A definition is a block without blank lines; the first comment line says what it does.

// Opaque 128-byte tensor map, as cuTensorMapEncodeTiled writes it.
struct alignas(64) TensorMap { u64 opaque[16]; };

// Index of this thread in its block.
FMHAGEN_DEVICE u32 thread_index() { return threadIdx.x; }

// Index of this block in the grid.
FMHAGEN_DEVICE u32 block_index() { return blockIdx.x; }

// Number of blocks in the grid.
FMHAGEN_DEVICE u32 grid_size() { return gridDim.x; }

// Address of the block's dynamic shared memory, 1024-byte aligned.
FMHAGEN_DEVICE u32 smem_base() {
  extern __shared__ __align__(1024) u8 s_dynamic[];
  return u32(__cvta_generic_to_shared(s_dynamic));
}

// Index of this block in its cluster.
FMHAGEN_DEVICE u32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Where `address` of this block's shared memory lies in block `rank` of the cluster (9.7.9.23, mapa).
FMHAGEN_DEVICE u32 cluster_address(u32 address, u32 rank) {
  u32 mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// Arrives at the barrier of the cluster, release (9.7.13.3, barrier.cluster.arrive).
FMHAGEN_DEVICE void cluster_arrive() {
  asm volatile("barrier.cluster.arrive;" ::: "memory");
}

// Waits until all threads of the cluster have arrived, acquire (9.7.13.3, barrier.cluster.wait).
FMHAGEN_DEVICE void cluster_wait() {
  asm volatile("barrier.cluster.wait;" ::: "memory");
}

// All threads of the block meet (bar.sync 0).
FMHAGEN_DEVICE void block_sync() { __syncthreads(); }

// `threads` threads meet at a named barrier (9.7.13.1).
FMHAGEN_DEVICE void named_barrier_sync(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Says if it holds in any (9.7.13.1).
FMHAGEN_DEVICE bool named_barrier_any(u32 id, u32 threads, bool predicate) {
  u32 any;
  asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %3, 0; bar.red.or.pred q, %1, %2, p; selp.u32 %0, 1, 0, q; }"
               : "=r"(any) : "r"(id), "r"(threads), "r"(u32(predicate)) : "memory");
  return any != 0;
}

// Arrives without waiting (9.7.13.1).
FMHAGEN_DEVICE void named_barrier_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Lanes of the warp meet; their shared-memory accesses before it are ordered before those after.
FMHAGEN_DEVICE void warp_sync() { __syncwarp(); }

// Lane 0's, known uniform.
FMHAGEN_DEVICE u32 warp_uniform(u32 value) { return __shfl_sync(0xffffffffu, value, 0); }

// The same of a number that all lanes hold.
// NOTE: a reduction leaves it in a uniform register, from which an instruction reads no lane's register (9.7.13.9).
FMHAGEN_DEVICE f32 warp_uniform_f32(f32 value) {
  u32 bits;
  asm("redux.sync.or.b32 %0, %1, 0xffffffff;" : "=r"(bits) : "r"(__float_as_uint(value)));
  return __uint_as_float(bits);
}

// Value of the lane whose index differs in the bits of `lane_mask`.
template <typename T>
FMHAGEN_DEVICE T shuffle_xor(T value, u32 lane_mask) { return __shfl_xor_sync(0xffffffffu, value, lane_mask); }

// In any lane of the warp.
FMHAGEN_DEVICE bool warp_any(bool predicate) { return __any_sync(0xffffffffu, predicate); }

// Raises this warpgroup's registers a thread to COUNT (9.7.19.5, setmaxnreg).
template <u32 COUNT>
FMHAGEN_DEVICE void registers_increase() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// Lowers this warpgroup's registers a thread to COUNT (9.7.19.5, setmaxnreg).
template <u32 COUNT>
FMHAGEN_DEVICE void registers_decrease() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// For `count` arrivals a phase (9.7.13.15.9).
FMHAGEN_DEVICE void mbarrier_init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Makes mbarrier initialisations visible to the async proxy (9.7.13.4, fence.mbarrier_init).
FMHAGEN_DEVICE void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// One arrival, release (9.7.13.15.13).
FMHAGEN_DEVICE void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival at a barrier of the cluster (9.7.13.15.13).
// NOTE: an explicit .release.cluster would become a memory barrier of the whole GPU.
FMHAGEN_DEVICE void mbarrier_arrive_cluster(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// An arrival; `bytes` will come (9.7.13.15.13).
FMHAGEN_DEVICE void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// NOTE: with a generous time limit the hardware keeps the warp asleep; without one a waiting warp polls, and takes
// issue slots and power from the warps that compute.
FMHAGEN_DEVICE void mbarrier_wait(u32 barrier, u32 parity) {  // until the phase of this parity is over (9.7.13.15.16)
  asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, %2; @!p bra WAIT; }"
               ::"r"(barrier), "r"(parity), "r"(10000000) : "memory");
}

// Fetches a tensor map into the descriptor cache (9.7.9.27, prefetch.tensormap).
FMHAGEN_DEVICE void tensor_map_prefetch(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies one box of a 4-D tensor to shared memory; completes on `barrier` (9.7.9.27.1.2).
FMHAGEN_DEVICE void tma_load_4d(u32 destination, const TensorMap* map, u32 barrier, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%3, %4, %5, %6}], [%2];"
               ::"r"(destination), "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

// As tma_load_4d, to the same place in each block of the cluster whose bit is set, where it completes on the
// barrier in the same place (9.7.9.27.1.2, .multicast::cluster).
FMHAGEN_DEVICE void tma_load_4d_multicast(u32 destination, const TensorMap* map, u32 barrier, i32 c0,
                                          i32 c1, i32 c2, i32 c3, u32 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(static_cast<u16>(blocks))
      : "memory");
}

// Copies one box of shared memory to a 4-D tensor; out-of-bounds elements are dropped (9.7.9.27.1.3).
FMHAGEN_DEVICE void tma_store_4d(const TensorMap* map, u32 source, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
               ::"l"(map), "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

// Closes this thread's group of bulk stores (9.7.9.26.3.1).
FMHAGEN_DEVICE void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until this thread's bulk stores have read their shared memory (9.7.9.26.3.2).
FMHAGEN_DEVICE void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Waits until this thread's bulk stores are complete (9.7.9.26.3.2).
FMHAGEN_DEVICE void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Orders this thread's plain shared-memory accesses before later async-proxy ones (9.7.13.4).
FMHAGEN_DEVICE void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Orders register accesses before the next wgmma of this warpgroup (9.7.15.7.1).
FMHAGEN_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// (9.7.15.7.2).
FMHAGEN_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING groups of wgmma are in flight (9.7.15.7.3).
template <u32 PENDING>
FMHAGEN_DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// Eight registers of an accumulator, as operands of an instruction.
#define FMHAGEN_8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
                        "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

#define FMHAGEN_32(d, i) FMHAGEN_8(d, i), FMHAGEN_8(d, i + 8), FMHAGEN_8(d, i + 16), FMHAGEN_8(d, i + 24)

// `value`, which the compiler takes to depend on `score`, so that what is computed from it is not computed before.
// NOTE: it does depend on it, for one NaN that no instruction gives.
FMHAGEN_DEVICE i32 after(i32 value, f32 score) {
  asm volatile("{ .reg .pred rare; .reg .b32 bits; mov.b32 bits, %1;\n"
               "setp.eq.u32 rare, bits, 0x7fc0dead; selp.s32 %0, 0, %0, rare; }" : "+r"(value) : "f"(score));
  return value;
}

// The same of a float.
FMHAGEN_DEVICE f32 after_f32(f32 value, f32 score) { return __int_as_float(after(__float_as_int(value), score)); }

// Keeps the compiler from finding two words later than here.
FMHAGEN_DEVICE void keep_here(u32& a, u32& b) { asm volatile("" : "+r"(a), "+r"(b)); }

// Keeps the compiler from moving reads or writes of an accumulator element across this point.
FMHAGEN_DEVICE void register_fence(f32& value) { asm volatile("" : "+f"(value)::"memory"); }

// 2^x, flushing denormals; relative error 2^-22 (9.7.3.21, ex2.approx.ftz).
FMHAGEN_DEVICE f32 exp2_approx(f32 x) { asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x)); return x; }

// (9.7.3.20).
FMHAGEN_DEVICE f32 log2_approx(f32 x) { asm("lg2.approx.ftz.f32 %0, %0;" : "+f"(x)); return x; }

// 1/x (9.7.3.14, rcp.approx.ftz).
FMHAGEN_DEVICE f32 reciprocal_approx(f32 x) { asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x)); return x; }

// In one rounding (9.7.3.6).
FMHAGEN_DEVICE f32 fused_multiply_add(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }

// The larger of two numbers; a NaN loses (9.7.3.12).
FMHAGEN_DEVICE f32 maximum(f32 a, f32 b) { return fmaxf(a, b); }

// The smaller of two numbers; a NaN loses (9.7.3.11).
FMHAGEN_DEVICE f32 minimum(f32 a, f32 b) { return fminf(a, b); }

// The distance of a number from 0 (9.7.3.10).
FMHAGEN_DEVICE f32 absolute(f32 x) { return fabsf(x); }

// The largest whole number that is at most x (9.7.9.22, cvt.rmi).
FMHAGEN_DEVICE f32 floor_f32(f32 x) { return floorf(x); }

// The square root (9.7.3.15, sqrt.approx.ftz).
FMHAGEN_DEVICE f32 sqrt_approx(f32 x) { asm("sqrt.approx.ftz.f32 %0, %0;" : "+f"(x)); return x; }

// The square root, rounded to nearest (9.7.3.15, sqrt.rn).
FMHAGEN_DEVICE f32 sqrt_exact(f32 x) { asm("sqrt.rn.f32 %0, %0;" : "+f"(x)); return x; }

// The hyperbolic tangent; relative error 2^-11 (9.7.3.23, tanh.approx).
FMHAGEN_DEVICE f32 tanh_approx(f32 x) { asm("tanh.approx.f32 %0, %0;" : "+f"(x)); return x; }

// The largest of three numbers, none of them negative; a NaN counts as the largest.
// NOTE: such numbers have the order of their bits, of which one instruction compares three (VIMNMX3).
FMHAGEN_DEVICE f32 largest_of_positive(f32 a, f32 b, f32 c) {
  const u32 larger = max(__float_as_uint(a), __float_as_uint(b));
  return __uint_as_float(max(larger, __float_as_uint(c)));
}

// The least of three numbers; if some are negative, one of these.
// NOTE: bits of one instruction (VIMNMX3), which has no form for floats.
FMHAGEN_DEVICE f32 least_of_ordered(f32 a, f32 b, f32 c) {
  const i32 less = min(__float_as_int(a), __float_as_int(b));
  return __int_as_float(min(less, __float_as_int(c)));
}

// Positive infinity.
FMHAGEN_DEVICE f32 infinity() { return __int_as_float(0x7f800000); }

// Rounds to nearest even; `low` goes to bits 0-15 (9.7.9.22).
FMHAGEN_DEVICE u32 pack_bf16x2(f32 low, f32 high) {
  u32 packed; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low)); return packed;
}

// Rounds to nearest even; `low` goes to bits 0-15 (9.7.9.22).
FMHAGEN_DEVICE u32 pack_f16x2(f32 low, f32 high) {
  u32 packed; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low)); return packed;
}

// Stores four 8x8 matrices of 16-bit elements; lane i gives the address of row i%8 of matrix i/8 (9.7.14.5.16).
FMHAGEN_DEVICE void store_matrix_x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}

// Element `index` of a tensor that nobody writes while the kernel runs (9.7.9.8, ld.global.nc).
FMHAGEN_DEVICE f32 load_param_f32(const void* base, i64 index) { return __ldg(static_cast<const f32*>(base) + index); }

// As load_param_f32, of 32-bit whole numbers.
FMHAGEN_DEVICE i32 load_param_i32(const void* base, i64 index) { return __ldg(static_cast<const i32*>(base) + index); }

// As load_param_f32, the low 32 bits of 64-bit whole numbers.
FMHAGEN_DEVICE i32 load_param_i64(const void* base, i64 index) {
  return i32(__ldg(static_cast<const i64*>(base) + index));
}

// As load_param_f32, of bytes.
FMHAGEN_DEVICE i32 load_param_u8(const void* base, i64 index) { return __ldg(static_cast<const u8*>(base) + index); }

// As load_param_f32, of bf16.
FMHAGEN_DEVICE f32 load_param_bf16(const void* base, i64 index) {
  return __uint_as_float(u32(__ldg(static_cast<const u16*>(base) + index)) << 16);
}

// As load_param_f32, of fp16.
FMHAGEN_DEVICE f32 load_param_f16(const void* base, i64 index) {
  f32 value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(__ldg(static_cast<const u16*>(base) + index)));
  return value;
}

// Stores a float to global memory.
FMHAGEN_DEVICE void store_global_f32(f32* address, f32 value) { *address = value; }

// Raises the float at an address to `value`, in whatever order threads come (9.7.13.6, red).
// NOTE: there is no maximum of floats; they compare as whole numbers do, below 0 as unsigned ones in reverse.
FMHAGEN_DEVICE void raise_global_f32(f32* address, f32 value) {
  const i32 bits = __float_as_int(value);
  if (bits >= 0) {
    asm volatile("red.relaxed.gpu.global.max.s32 [%0], %1;" ::"l"(address), "r"(bits) : "memory");
  } else {
    asm volatile("red.relaxed.gpu.global.min.u32 [%0], %1;" ::"l"(address), "r"(bits) : "memory");
  }
}

// Two elements.
FMHAGEN_DEVICE void store_global_u32(u16* address, u32 value) { *reinterpret_cast<u32*>(address) = value; }

// Eight elements, 16-byte aligned.
FMHAGEN_DEVICE void store_global_v4(u16* address, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               ::"l"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}
