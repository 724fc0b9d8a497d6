// The isa layer of gfx942, second part: what the kernels that read a key/value cache use besides isa.h.

// Loads one integer of global memory that this kernel does not write (s_load_dword, global_load_dword).
FMHAGEN_DEVICE i32 load_global_i32(const i32* address) {
  return *(const __attribute__((address_space(4))) i32*)address;
}

// Loads one float of global memory that this kernel does not write (s_load_dword, global_load_dword).
FMHAGEN_DEVICE f32 load_global_f32(const f32* address) {
  return *(const __attribute__((address_space(4))) f32*)address;
}

// Loads four floats of global memory; `address` is 16-byte aligned (global_load_dwordx4).
FMHAGEN_DEVICE void load_global_f32x4(f32 (&values)[4], const f32* address) {
  const f32x4 four = *(const __attribute__((address_space(1))) f32x4*)address;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    values[i] = four[i];
  }
}

// Loads 16 bytes of global memory, 16-byte aligned (global_load_dwordx4).
FMHAGEN_DEVICE void load_global_16(u32* words, const u8* address) {
  const u32x4 four = *(const __attribute__((address_space(1))) u32x4*)address;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    words[i] = four[i];
  }
}

// Loads 8 bytes of global memory, 8-byte aligned (global_load_dwordx2).
FMHAGEN_DEVICE void load_global_8(u32* words, const u8* address) {
  const u32x2 two = *(const __attribute__((address_space(1))) u32x2*)address;
  words[0] = two[0];
  words[1] = two[1];
}

// Loads 4 bytes of global memory, 4-byte aligned (global_load_dword).
FMHAGEN_DEVICE u32 load_global_4(const u8* address) {
  return *(const __attribute__((address_space(1))) u32*)address;
}

// Loads 2 bytes of global memory, 2-byte aligned, zeros above (global_load_ushort).
FMHAGEN_DEVICE u32 load_global_2(const u8* address) {
  return *(const __attribute__((address_space(1))) u16*)address;
}

// Loads one byte of global memory, zeros above (global_load_ubyte).
FMHAGEN_DEVICE u32 load_global_1(const u8* address) {
  return *(const __attribute__((address_space(1))) u8*)address;
}

// Loads 2 bytes, zeros above; outside the resource nothing is read and 0 is given (buffer_load_ushort).
FMHAGEN_DEVICE u32 buffer_load_u16(BufferResource buffer, u32 offset) {
  return __builtin_amdgcn_raw_buffer_load_b16(buffer, offset, 0, 0);
}

// Loads 8 bytes; outside the resource nothing is read and 0 is given (buffer_load_dwordx2).
FMHAGEN_DEVICE u32x2 buffer_load_b64(BufferResource buffer, u32 offset) {
  return __builtin_amdgcn_raw_buffer_load_b64(buffer, offset, 0, 0);
}

// Stores two floats to global memory; `address` is 8-byte aligned (global_store_dwordx2).
FMHAGEN_DEVICE void store_global_f32x2(f32* address, f32 low, f32 high) {
  const f32x2 pair = {low, high};
  *(__attribute__((address_space(1))) f32x2*)address = pair;
}

// Stores two 16-bit elements to global memory; `address` is 4-byte aligned (global_store_dword).
FMHAGEN_DEVICE void store_global_u32(u16* address, u32 value) {
  *(__attribute__((address_space(1))) u32*)address = value;
}

// Stores the lower 16 bits of a word to global memory (global_store_short).
FMHAGEN_DEVICE void store_global_u16(u16* address, u32 value) {
  *(__attribute__((address_space(1))) u16*)address = static_cast<u16>(value);
}

// Reads 8 bytes of LDS, 8-byte aligned (ds_read_b64).
FMHAGEN_DEVICE u32x2 lds_read_b64(u32 address) {
  return *(const __attribute__((address_space(3))) u32x2*)address;
}

// The value of lane `lane`, each lane another's (ds_bpermute_b32).
FMHAGEN_DEVICE u32 from_lane(u32 value, u32 lane) {
  return static_cast<u32>(__builtin_amdgcn_ds_bpermute(static_cast<i32>(lane * 4), static_cast<i32>(value)));
}

// Bit i: whether `predicate` holds in lane i of the lower half of the wave (v_cmp into a lane mask).
FMHAGEN_DEVICE u32 warp_ballot(bool predicate) {
  return static_cast<u32>(__builtin_amdgcn_ballot_w64(predicate));
}

// The place of the lowest bit of a word that is not 0 (s_ff1_i32_b32).
FMHAGEN_DEVICE u32 lowest_bit(u32 word) {
  return static_cast<u32>(__builtin_ctz(word));
}

// The float of these bits.
FMHAGEN_DEVICE f32 float_of_bits(u32 bits) {
  return __builtin_bit_cast(f32, bits);
}

// The bits of a float.
FMHAGEN_DEVICE u32 bits_of_float(f32 value) {
  return __builtin_bit_cast(u32, value);
}

// a - b of two fp16 numbers each (v_pk_add_f16).
FMHAGEN_DEVICE u32 subtract_f16x2(u32 a, u32 b) {
  using Pair = __attribute__((ext_vector_type(2))) _Float16;
  return __builtin_bit_cast(u32, __builtin_bit_cast(Pair, a) - __builtin_bit_cast(Pair, b));
}

// The first two e4m3fnuz numbers of a word (v_cvt_pk_f32_fp8).
FMHAGEN_DEVICE f32x2 low_pair_of_e4m3(u32 four) {
  return __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<i32>(four), false);
}

// The last two e4m3fnuz numbers of a word (v_cvt_pk_f32_fp8, op_sel).
FMHAGEN_DEVICE f32x2 high_pair_of_e4m3(u32 four) {
  return __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<i32>(four), true);
}

// The first two e5m2fnuz numbers of a word (v_cvt_pk_f32_bf8).
FMHAGEN_DEVICE f32x2 low_pair_of_e5m2(u32 four) {
  return __builtin_amdgcn_cvt_pk_f32_bf8(static_cast<i32>(four), false);
}

// The last two e5m2fnuz numbers of a word (v_cvt_pk_f32_bf8, op_sel).
FMHAGEN_DEVICE f32x2 high_pair_of_e5m2(u32 four) {
  return __builtin_amdgcn_cvt_pk_f32_bf8(static_cast<i32>(four), true);
}
