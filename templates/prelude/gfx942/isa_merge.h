// The isa layer of gfx942, continued: what the kernel that merges parts of attention uses besides.

// Loads 16 bytes of global memory, 16-byte aligned (global_load_dwordx4).
FMHAGEN_DEVICE void load_global_v4(u32 (&r)[4], const void* address) {
  u32x4 value = *(const __attribute__((address_space(1))) u32x4*)address;
  for (u32 i = 0; i < 4; ++i) {
    r[i] = value[i];
  }
}

// Loads one float of global memory that this kernel may overwrite later (global_load_dword).
FMHAGEN_DEVICE f32 load_lse(const f32* address) {
  return *(const __attribute__((address_space(1))) f32*)address;
}

// Stores 16 bytes to global memory, 16-byte aligned (global_store_dwordx4).
FMHAGEN_DEVICE void store_global_v4(u16* address, u32 r0, u32 r1, u32 r2, u32 r3) {
  u32x4 value = {r0, r1, r2, r3};
  *(__attribute__((address_space(1))) u32x4*)address = value;
}

// The float of these bits.
FMHAGEN_DEVICE f32 float_of_bits(u32 bits) {
  return __builtin_bit_cast(f32, bits);
}

// The bits of a float.
FMHAGEN_DEVICE u32 bits_of_float(f32 value) {
  return __builtin_bit_cast(u32, value);
}

// The bf16 number of these 16 bits.
FMHAGEN_DEVICE f32 float_of_bf16(u32 bits) {
  return __builtin_bit_cast(f32, bits << 16);
}

// The fp16 number of these 16 bits (v_cvt_f32_f16).
FMHAGEN_DEVICE f32 float_of_f16(u32 bits) {
  return static_cast<f32>(__builtin_bit_cast(_Float16, static_cast<u16>(bits)));
}
