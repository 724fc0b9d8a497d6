// The isa layer of gfx942: one function, one instruction. Its name stands in the comment, as in the
// "AMD Instinct MI300 Instruction Set Architecture: Reference Guide" (CDNA 3); the builtins are
// those of https://llvm.org/docs/AMDGPUUsage.html. LDS addresses are u32 byte addresses.
// A definition is a block without blank lines; its first comment line enters the vocabulary.

// Two registers; 16-bit elements are carried in pairs, the first in bits 0-15.
using u32x2 = u32 __attribute__((ext_vector_type(2)));

// Two registers: two floats that one packed instruction takes.
using f32x2 = f32 __attribute__((ext_vector_type(2)));

// Four registers, of 16-bit pairs.
using u32x4 = u32 __attribute__((ext_vector_type(4)));

// Four registers: this lane's part of a 16 x 16 accumulator.
using f32x4 = f32 __attribute__((ext_vector_type(4)));

// Sixteen registers: this lane's part of a 32 x 32 accumulator.
using f32x16 = f32 __attribute__((ext_vector_type(16)));

// A buffer resource: a 48-bit base and a number of bytes beyond which nothing is accessed.
using BufferResource = __amdgpu_buffer_rsrc_t;

// Index of this thread in its block.
FMHAGEN_DEVICE u32 thread_index() {
  return __builtin_amdgcn_workitem_id_x();
}

// Index of this block in the grid.
FMHAGEN_DEVICE u32 block_index() {
  return __builtin_amdgcn_workgroup_id_x();
}

// Number of blocks in the grid.
FMHAGEN_DEVICE u32 grid_size() {
  return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x();
}

// Address of the block's dynamic LDS, 1024-byte aligned.
FMHAGEN_DEVICE u32 smem_base() {
  extern __shared__ u8 s_dynamic[] __attribute__((aligned(1024)));
  return (u32)(__attribute__((address_space(3))) u8*)s_dynamic;
}

// Waits until this wave's LDS operations are complete (s_waitcnt lgkmcnt(0)).
FMHAGEN_DEVICE void wait_lds() {
  asm volatile("s_waitcnt lgkmcnt(0)" ::: "memory");
}

// All waves of the block meet (s_barrier); waits for no memory operation: see wait_lds.
FMHAGEN_DEVICE void block_barrier() {
  asm volatile("s_barrier" ::: "memory");
}

// Keeps the compiler from moving instructions across this point (none).
FMHAGEN_DEVICE void schedule_fence() {
  __builtin_amdgcn_sched_barrier(0);
}

// Keeps the instruction that makes `value` before this point, and all that follows behind it (none).
// NOTE: sched_barrier alone does not hold pure operations; the asm reads the value and does nothing.
template <class T>
FMHAGEN_DEVICE void pin(const T& value) {
  asm volatile("" ::"v"(value));
  __builtin_amdgcn_sched_barrier(0);
}

// The same for an accumulator in accumulation registers, where a lane has more than 256 registers.
template <class T>
FMHAGEN_DEVICE void pin_accumulation(const T& value) {
#if __clang_major__ < 22
  asm volatile("" ::"a"(value));
#else
  asm volatile("" ::"v"(value));
#endif
  __builtin_amdgcn_sched_barrier(0);
}

// Holds a value that matrix instructions use in accumulation registers, where a lane has many.
template <class T>
FMHAGEN_DEVICE void hold_in_accumulation(T& value) {
#if __clang_major__ < 22
  asm volatile("" : "+a"(value));
#endif
}

// Issues nothing of this wave for as long as COUNT instructions take (s_nop).
template <u32 COUNT>
FMHAGEN_DEVICE void idle() {
  asm volatile("s_nop %0" ::"n"(COUNT - 1));
  __builtin_amdgcn_sched_barrier(0);
}

// Waits until this wave's loads from global memory and from LDS are complete (s_waitcnt 0).
FMHAGEN_DEVICE void wait_loads() {
  __builtin_amdgcn_s_waitcnt(0x0070);
}

// Priority of this wave's instructions among those of its SIMD, 0 to 3 (s_setprio).
template <u32 LEVEL>
FMHAGEN_DEVICE void set_priority() {
  __builtin_amdgcn_s_setprio(LEVEL);
}

// The value of the first lane: a number that the compiler knows is uniform (v_readfirstlane_b32).
FMHAGEN_DEVICE u32 wave_uniform(u32 value) {
  return __builtin_amdgcn_readfirstlane(value);
}

// True in every lane of the wave if `predicate` holds in any (v_cmp into a lane mask).
FMHAGEN_DEVICE bool wave_any(bool predicate) {
  return __builtin_amdgcn_ballot_w64(predicate) != 0;
}

// The value of lane `lane`, the same number in all lanes (v_readlane_b32).
FMHAGEN_DEVICE u32 read_lane(u32 value, u32 lane) {
  return __builtin_amdgcn_readlane(value, lane);
}

// The first lane in which `predicate` holds; 64 if there is none (v_cmp, s_ff1_i32_b64).
FMHAGEN_DEVICE u32 first_lane(bool predicate) {
  const u64 lanes = __builtin_amdgcn_ballot_w64(predicate);
  return lanes == 0 ? 64 : __builtin_ctzll(lanes);
}

// Sum of `value` over the lanes up to this one (v_add_u32 with DPP row_shr and row_bcast).
FMHAGEN_DEVICE u32 prefix_sum(u32 value) {
  value += __builtin_amdgcn_update_dpp(0u, value, 0x111, 0xf, 0xf, true);
  value += __builtin_amdgcn_update_dpp(0u, value, 0x112, 0xf, 0xf, true);
  value += __builtin_amdgcn_update_dpp(0u, value, 0x114, 0xf, 0xf, true);
  value += __builtin_amdgcn_update_dpp(0u, value, 0x118, 0xf, 0xf, true);
  value += __builtin_amdgcn_update_dpp(0u, value, 0x142, 0xa, 0xf, true);
  value += __builtin_amdgcn_update_dpp(0u, value, 0x143, 0xc, 0xf, true);
  return value;
}

// Value of the lane whose index differs in the bits of `lane_mask` (ds_bpermute_b32).
FMHAGEN_DEVICE f32 shuffle_xor(f32 value, u32 lane_mask) {
  u32 lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
  i32 bits = __builtin_bit_cast(i32, value);
  return __builtin_bit_cast(f32, __builtin_amdgcn_ds_bpermute((lane ^ lane_mask) * 4, bits));
}

// Reads 16 bytes of LDS, 16-byte aligned (ds_read_b128).
FMHAGEN_DEVICE u32x4 lds_read_b128(u32 address) {
  return *(const __attribute__((address_space(3))) u32x4*)address;
}

// Writes 8 bytes of LDS, 8-byte aligned (ds_write_b64).
FMHAGEN_DEVICE void lds_write_b64(u32 address, u32x2 value) {
  *(__attribute__((address_space(3))) u32x2*)address = value;
}

// Writes 16 bytes of LDS, 16-byte aligned (ds_write_b128).
FMHAGEN_DEVICE void lds_write_b128(u32 address, u32x4 value) {
  *(__attribute__((address_space(3))) u32x4*)address = value;
}

// Makes the resource of `bytes` bytes of global memory from `base` on.
FMHAGEN_DEVICE BufferResource make_buffer(const void* base, u32 bytes) {
  return __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(base), 0, bytes, 0x00020000);
}

// Loads 4 bytes; outside the resource nothing is read and 0 is given (buffer_load_dword).
FMHAGEN_DEVICE u32 buffer_load_b32(BufferResource buffer, u32 offset) {
  return __builtin_amdgcn_raw_buffer_load_b32(buffer, offset, 0, 0);
}

// Loads 16 bytes; outside the resource nothing is read and 0 is given (buffer_load_dwordx4).
FMHAGEN_DEVICE u32x4 buffer_load_b128(BufferResource buffer, u32 offset) {
  return __builtin_amdgcn_raw_buffer_load_b128(buffer, offset, 0, 0);
}

// Stores 16 bytes; outside the resource nothing is written (buffer_store_dwordx4).
FMHAGEN_DEVICE void buffer_store_b128(BufferResource buffer, u32 offset, u32x4 value) {
  __builtin_amdgcn_raw_buffer_store_b128(value, buffer, offset, 0, 0);
}

// D[32,32] = A[32,8] B[8,32] + C of bf16 in 32 clocks (v_mfma_f32_32x32x8_bf16).
FMHAGEN_DEVICE f32x16 mfma_32x32x8_bf16(u32x2 a, u32x2 b, f32x16 c) {
  using Fragment = __attribute__((ext_vector_type(4))) short;
  return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(Fragment, a),
                                                  __builtin_bit_cast(Fragment, b), c, 0, 0, 0);
}

// D[32,32] = A[32,8] B[8,32] + C of fp16 in 32 clocks (v_mfma_f32_32x32x8_f16).
FMHAGEN_DEVICE f32x16 mfma_32x32x8_f16(u32x2 a, u32x2 b, f32x16 c) {
  using Fragment = __attribute__((ext_vector_type(4))) _Float16;
  return __builtin_amdgcn_mfma_f32_32x32x8f16(__builtin_bit_cast(Fragment, a),
                                              __builtin_bit_cast(Fragment, b), c, 0, 0, 0);
}

// D[16,16] = A[16,16] B[16,16] + C of bf16 in 16 clocks (v_mfma_f32_16x16x16_bf16).
FMHAGEN_DEVICE f32x4 mfma_16x16x16_bf16(u32x2 a, u32x2 b, f32x4 c) {
  using Fragment = __attribute__((ext_vector_type(4))) short;
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(Fragment, a),
                                                   __builtin_bit_cast(Fragment, b), c, 0, 0, 0);
}

// D[16,16] = A[16,16] B[16,16] + C of fp16 in 16 clocks (v_mfma_f32_16x16x16_f16).
FMHAGEN_DEVICE f32x4 mfma_16x16x16_f16(u32x2 a, u32x2 b, f32x4 c) {
  using Fragment = __attribute__((ext_vector_type(4))) _Float16;
  return __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Fragment, a),
                                               __builtin_bit_cast(Fragment, b), c, 0, 0, 0);
}

// Four bytes chosen by the bytes of `selector`: 0-3 of low, 4-7 of high (v_perm_b32).
FMHAGEN_DEVICE u32 byte_permute(u32 high, u32 low, u32 selector) {
  return __builtin_amdgcn_perm(high, low, selector);
}

// 2^x, flushing denormals; 1 ulp (v_exp_f32).
FMHAGEN_DEVICE f32 exp2_approx(f32 x) {
  return __builtin_amdgcn_exp2f(x);
}

// log2(x) (v_log_f32).
FMHAGEN_DEVICE f32 log2_approx(f32 x) {
  return __builtin_amdgcn_logf(x);
}

// 1/x; 1 ulp (v_rcp_f32).
FMHAGEN_DEVICE f32 reciprocal_approx(f32 x) {
  return __builtin_amdgcn_rcpf(x);
}

// The square root of x; 1 ulp (v_sqrt_f32).
FMHAGEN_DEVICE f32 sqrt_approx(f32 x) {
  return __builtin_amdgcn_sqrtf(x);
}

// The square root of x, rounded to nearest (v_sqrt_f32 and steps of Newton's).
FMHAGEN_DEVICE f32 sqrt_exact(f32 x) {
  return __builtin_sqrtf(x);
}

// |x| (a modifier of the next instruction).
FMHAGEN_DEVICE f32 absolute(f32 x) {
  return __builtin_fabsf(x);
}

// The largest whole number that is not above x (v_floor_f32).
FMHAGEN_DEVICE f32 floor_f32(f32 x) {
  return __builtin_floorf(x);
}

// a * b + c in one rounding (v_fma_f32).
FMHAGEN_DEVICE f32 fused_multiply_add(f32 a, f32 b, f32 c) {
  return __builtin_fmaf(a, b, c);
}

// The same for two pairs of numbers at once (v_pk_fma_f32).
FMHAGEN_DEVICE f32x2 packed_multiply_add(f32x2 a, f32x2 b, f32x2 c) {
  return __builtin_elementwise_fma(a, b, c);
}

// a + b of two pairs of numbers (v_pk_add_f32).
FMHAGEN_DEVICE f32x2 packed_add(f32x2 a, f32x2 b) {
  return a + b;
}

// The larger of two numbers; a NaN loses (v_max_f32).
FMHAGEN_DEVICE f32 maximum(f32 a, f32 b) {
  return __builtin_fmaxf(a, b);
}

// The smaller of two numbers; a NaN loses (v_min_f32).
FMHAGEN_DEVICE f32 minimum(f32 a, f32 b) {
  return __builtin_fminf(a, b);
}

// Positive infinity.
FMHAGEN_DEVICE f32 infinity() {
  return __builtin_bit_cast(f32, 0x7f800000u);
}

// Rounds two floats to bf16, to nearest even; `low` goes to bits 0-15 (no single instruction).
FMHAGEN_DEVICE u32 pack_bf16x2(f32 low, f32 high) {
  u32 low_bits = __builtin_bit_cast(u32, low);
  u32 high_bits = __builtin_bit_cast(u32, high);
  low_bits += 0x7fffu + ((low_bits >> 16) & 1u);
  high_bits += 0x7fffu + ((high_bits >> 16) & 1u);
  return __builtin_amdgcn_perm(high_bits, low_bits, 0x07060302u);
}

// Rounds two floats to bf16, to nearest, ties away from zero (v_add_u32 twice, v_perm_b32).
FMHAGEN_DEVICE u32 pack_bf16x2_away(f32 low, f32 high) {
  u32 low_bits = __builtin_bit_cast(u32, low) + 0x8000u;
  u32 high_bits = __builtin_bit_cast(u32, high) + 0x8000u;
  return __builtin_amdgcn_perm(high_bits, low_bits, 0x07060302u);
}

// Truncates two floats to bf16; `low` goes to bits 0-15 (v_perm_b32).
FMHAGEN_DEVICE u32 pack_bf16x2_truncated(f32 low, f32 high) {
  return __builtin_amdgcn_perm(__builtin_bit_cast(u32, high), __builtin_bit_cast(u32, low),
                               0x07060302u);
}

// Truncates two floats to fp16; `low` goes to bits 0-15 (v_cvt_pkrtz_f16_f32).
FMHAGEN_DEVICE u32 pack_f16x2_truncated(f32 low, f32 high) {
  return __builtin_bit_cast(u32, __builtin_amdgcn_cvt_pkrtz(low, high));
}

// Rounds two floats to fp16, to nearest even; `low` goes to bits 0-15 (v_cvt_f16_f32, v_pack).
FMHAGEN_DEVICE u32 pack_f16x2(f32 low, f32 high) {
  using Pair = __attribute__((ext_vector_type(2))) _Float16;
  Pair pair = {static_cast<_Float16>(low), static_cast<_Float16>(high)};
  return __builtin_bit_cast(u32, pair);
}

// Element `index` of a tensor of f32 that nobody writes (s_load_dword, global_load_dword).
// NOTE: constant memory, so that what is the same in every step is loaded once.
FMHAGEN_DEVICE f32 load_param_f32(const void* base, i64 index) {
  return ((const __attribute__((address_space(4))) f32*)base)[index];
}

// The same of fp16 (global_load_ushort, v_cvt_f32_f16).
FMHAGEN_DEVICE f32 load_param_f16(const void* base, i64 index) {
  return static_cast<f32>(((const __attribute__((address_space(4))) _Float16*)base)[index]);
}

// The same of bf16 (global_load_short_d16_hi).
FMHAGEN_DEVICE f32 load_param_bf16(const void* base, i64 index) {
  const u32 bits = ((const __attribute__((address_space(4))) u16*)base)[index];
  return __builtin_bit_cast(f32, bits << 16);
}

// The same of i32 (s_load_dword, global_load_dword).
FMHAGEN_DEVICE i32 load_param_i32(const void* base, i64 index) {
  return ((const __attribute__((address_space(4))) i32*)base)[index];
}

// The same of i64, its low half (s_load_dword, global_load_dword).
FMHAGEN_DEVICE i32 load_param_i64(const void* base, i64 index) {
  return static_cast<i32>(((const __attribute__((address_space(4))) i64*)base)[index]);
}

// The bits of a 16-bit element (global_load_ushort).
FMHAGEN_DEVICE i32 load_param_u16(const void* base, i64 index) {
  return ((const __attribute__((address_space(4))) u16*)base)[index];
}

// The number that 16 bits say in bf16 (v_lshlrev_b32).
FMHAGEN_DEVICE f32 widened_bf16(i32 bits) {
  return __builtin_bit_cast(f32, bits << 16);
}

// The number that 16 bits say in fp16 (v_cvt_f32_f16).
FMHAGEN_DEVICE f32 widened_f16(i32 bits) {
  return static_cast<f32>(__builtin_bit_cast(_Float16, static_cast<u16>(bits)));
}

// The same of u8 or bool (global_load_ubyte).
FMHAGEN_DEVICE i32 load_param_u8(const void* base, i64 index) {
  return ((const __attribute__((address_space(4))) u8*)base)[index];
}

// Stores one float to global memory.
FMHAGEN_DEVICE void store_global_f32(f32* address, f32 value) {
  *address = value;
}

// Raises the float at an address to `value`, in whatever order waves come (global_atomic_smax, global_atomic_umin).
// NOTE: floats compare as whole numbers do, below 0 as unsigned ones in reverse.
FMHAGEN_DEVICE void raise_global_f32(f32* address, f32 value) {
  using Signed = __attribute__((address_space(1))) i32;
  using Unsigned = __attribute__((address_space(1))) u32;
  const i32 bits = __builtin_bit_cast(i32, value);
  if (bits >= 0) {
    __hip_atomic_fetch_max((Signed*)address, bits, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  } else {
    __hip_atomic_fetch_min((Unsigned*)address, static_cast<u32>(bits), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  }
}

// The parameter block, as though never read before (the kernarg segment: it is the only argument).
// NOTE: a scalar load now is cheaper than a scalar register held over the main loop.
template <class T>
FMHAGEN_DEVICE const T& reread([[maybe_unused]] const T& params) {
  auto block = (const __attribute__((address_space(4))) T*)__builtin_amdgcn_kernarg_segment_ptr();
  asm volatile("" : "+s"(block));
  return *(const T*)block;
}
