// The isa layer of sm90, second part: what the kernels that read a key/value cache use besides isa.cuh.
// Sections are those of the PTX ISA 8.8 (https://docs.nvidia.com/cuda/parallel-thread-execution/).

// Loads four 8x8 matrices of 16-bit elements; lane i gives the address of row i%8 of matrix i/8 (9.7.14.5.15).
FMHAGEN_DEVICE void load_matrix_x4(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// As load_matrix_x4, each matrix transposed (9.7.14.5.15, ldmatrix.trans).
FMHAGEN_DEVICE void load_matrix_x4_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// D += A B of one warp: 16 x 8 += 16 x 16 times 16 x 8, bf16 (9.7.14.5.8, mma.m16n8k16).
FMHAGEN_DEVICE void mma_m16n8k16_bf16(f32& d0, f32& d1, f32& d2, f32& d3, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// D += A B of one warp: 16 x 8 += 16 x 16 times 16 x 8, fp16 (9.7.14.5.8, mma.m16n8k16).
FMHAGEN_DEVICE void mma_m16n8k16_f16(f32& d0, f32& d1, f32& d2, f32& d3, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies one box of a 5-D tensor to shared memory; completes on `barrier` (9.7.9.27.1.2).
FMHAGEN_DEVICE void tma_load_5d(u32 destination, const TensorMap* map, u32 barrier, i32 c0, i32 c1,
                                i32 c2, i32 c3, i32 c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// The policy of L2 by which lines go before all others (9.7.9.18, createpolicy).
FMHAGEN_DEVICE u64 evict_first() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// As tma_load_5d, under a policy of L2.
FMHAGEN_DEVICE void tma_load_5d_under(u64 policy, u32 destination, const TensorMap* map, u32 barrier, i32 c0, i32 c1,
                                      i32 c2, i32 c3, i32 c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(policy)
      : "memory");
}

// Copies 16 bytes to shared memory, the first `source_bytes` from `source`, zeros behind (9.7.9.25.3.1, cp.async).
FMHAGEN_DEVICE void copy_async_16(u32 destination, const void* source, u32 source_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(source_bytes)
               : "memory");
}

// Closes this thread's group of asynchronous copies (9.7.9.25.3.2, cp.async.commit_group).
FMHAGEN_DEVICE void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most PENDING of this thread's newest groups of copies are in flight (9.7.9.25.3.3).
template <u32 PENDING>
FMHAGEN_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Loads one integer of global memory.
FMHAGEN_DEVICE i32 load_global_i32(const i32* address) {
  return *address;
}

// Fetches the 128 bytes around `address` into L2; nothing is read (9.7.9.15, prefetch).
FMHAGEN_DEVICE void fetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// Loads two 16-bit elements of global memory; `address` is 4-byte aligned.
FMHAGEN_DEVICE u32 load_global_u32(const u16* address) {
  return *reinterpret_cast<const u32*>(address);
}

// Loads four 16-bit elements of global memory; `address` is 8-byte aligned.
FMHAGEN_DEVICE void load_global_u32x2(u32& low, u32& high, const u16* address) {
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(low), "=r"(high) : "l"(address) : "memory");
}

// Loads eight 16-bit elements of global memory; `address` is 16-byte aligned.
FMHAGEN_DEVICE void load_global_u32x4(u32 (&r)[4], const u16* address) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "l"(address)
               : "memory");
}

// Loads one float of global memory.
FMHAGEN_DEVICE f32 load_global_f32(const f32* address) {
  return *address;
}

// Loads four floats of global memory; `address` is 16-byte aligned.
FMHAGEN_DEVICE void load_global_f32x4(f32 (&values)[4], const f32* address) {
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
               : "l"(address)
               : "memory");
}

// Stores two floats to global memory; `address` is 8-byte aligned.
FMHAGEN_DEVICE void store_global_f32x2(f32* address, f32 low, f32 high) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(address), "f"(low), "f"(high) : "memory");
}

// Loads one word of shared memory.
FMHAGEN_DEVICE u32 load_shared_u32(u32 address) {
  u32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

// Loads two words of shared memory; `address` is 8-byte aligned.
FMHAGEN_DEVICE void load_shared_u32x2(u32& low, u32& high, u32 address) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(low), "=r"(high) : "r"(address) : "memory");
}

// Loads one float of shared memory.
FMHAGEN_DEVICE f32 load_shared_f32(u32 address) {
  f32 value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

// Loads two floats of shared memory; `address` is 8-byte aligned.
FMHAGEN_DEVICE void load_shared_f32x2(f32& low, f32& high, u32 address) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(low), "=f"(high) : "r"(address) : "memory");
}

// Loads four floats of shared memory; `address` is 16-byte aligned.
FMHAGEN_DEVICE void load_shared_f32x4(f32 (&values)[4], u32 address) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
               : "r"(address)
               : "memory");
}

// Loads four words of shared memory; `address` is 16-byte aligned.
FMHAGEN_DEVICE void load_shared_u32x4(u32 (&r)[4], u32 address) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// Stores one word to shared memory.
FMHAGEN_DEVICE void store_shared_u32(u32 address, u32 value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// Stores one float to shared memory.
FMHAGEN_DEVICE void store_shared_f32(u32 address, f32 value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

// Stores two floats to shared memory; `address` is 8-byte aligned.
FMHAGEN_DEVICE void store_shared_f32x2(u32 address, f32 low, f32 high) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(low), "f"(high) : "memory");
}

// Stores four floats to shared memory; `address` is 16-byte aligned.
FMHAGEN_DEVICE void store_shared_f32x4(u32 address, f32 v0, f32 v1, f32 v2, f32 v3) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v0), "f"(v1), "f"(v2),
               "f"(v3)
               : "memory");
}

// Stores four words to shared memory; `address` is 16-byte aligned.
FMHAGEN_DEVICE void store_shared_u32x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// Four e4m3 numbers as fp16, the first two in `low` (9.7.9.22, cvt.rn.f16x2.e4m3x2).
FMHAGEN_DEVICE void widen_e4m3x4(u32& low, u32& high, u32 four) {
  asm("{ .reg .b16 first, second; mov.b32 {first, second}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, first; cvt.rn.f16x2.e4m3x2 %1, second; }"
      : "=r"(low), "=r"(high)
      : "r"(four));
}

// Two fp16 numbers as floats (9.7.9.21, cvt.f32.f16).
FMHAGEN_DEVICE void unpack_f16x2(f32& low, f32& high, u32 pair) {
  asm("{ .reg .b16 first, second; mov.b32 {first, second}, %2;\n"
      "cvt.f32.f16 %0, first; cvt.f32.f16 %1, second; }"
      : "=f"(low), "=f"(high)
      : "r"(pair));
}

// Byte i is the one that nibble i of `selector` names among the eight of `low` and `high` (9.7.9.7, prmt).
FMHAGEN_DEVICE u32 byte_permute(u32 low, u32 high, u32 selector) {
  return __byte_perm(low, high, selector);
}

// a - b of two fp16 numbers each (9.7.4.2, sub.f16x2).
FMHAGEN_DEVICE u32 subtract_f16x2(u32 a, u32 b) {
  u32 difference;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  return difference;
}

// The float that has these bits.
FMHAGEN_DEVICE f32 float_of_bits(u32 bits) {
  return __uint_as_float(bits);
}

// Value of lane `lane`.
FMHAGEN_DEVICE u32 shuffle_from(u32 value, u32 lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

// As shuffle_from, of a float.
FMHAGEN_DEVICE f32 shuffle_f32_from(f32 value, u32 lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

// Value of the lane `distance` below, or its own where there is none.
FMHAGEN_DEVICE u32 shuffle_up(u32 value, u32 distance) {
  return __shfl_up_sync(0xffffffffu, value, distance);
}

// Bit i: whether `predicate` holds in lane i.
FMHAGEN_DEVICE u32 warp_ballot(bool predicate) {
  return __ballot_sync(0xffffffffu, predicate);
}

// Sum over the lanes of the warp (9.7.13.8, redux.sync.add).
FMHAGEN_DEVICE u32 warp_add(u32 value) {
  return __reduce_add_sync(0xffffffffu, value);
}

// Largest value of the lanes of the warp (9.7.13.8, redux.sync.max).
FMHAGEN_DEVICE u32 warp_maximum(u32 value) {
  return __reduce_max_sync(0xffffffffu, value);
}

// Index of the lowest bit that is set; `bits` is not 0.
FMHAGEN_DEVICE u32 lowest_bit(u32 bits) {
  return u32(__ffs(i32(bits)) - 1);
}

// Lets the kernel that depends on this one be placed; it waits for all memory of this one (9.7.13.13).
FMHAGEN_DEVICE void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Waits until the kernels that this one depends on are complete and their memory is visible (9.7.13.13).
FMHAGEN_DEVICE void wait_for_primary() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// As wait_for_primary, once `known` is: the OR of what is to be computed ahead of the wait, all below 2^31.
// NOTE: ptxas moves arithmetic behind a plain wait, where it costs time.
FMHAGEN_DEVICE void wait_for_primary_knowing(u32 known) {
  asm volatile("{ .reg .pred p; setp.ge.s32 p, %0, 0; @p griddepcontrol.wait; }" ::"r"(known) : "memory");
}
