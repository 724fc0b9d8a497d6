// The isa layer of sm90, continued: what the kernel that merges parts of attention uses besides.

// Loads 16 bytes of global memory, 16-byte aligned (9.7.9.8, ld.global.v4).
FMHAGEN_DEVICE void load_global_v4(u32 (&r)[4], const void* address) {
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(address) : "memory");
}

// Loads one float of global memory that this kernel may overwrite later (9.7.9.8, ld.global).
FMHAGEN_DEVICE f32 load_lse(const f32* address) { return *address; }

// The float of these bits.
FMHAGEN_DEVICE f32 float_of_bits(u32 bits) { return __uint_as_float(bits); }

// The bits of a float.
FMHAGEN_DEVICE u32 bits_of_float(f32 value) { return __float_as_uint(value); }

// The bf16 number of these 16 bits.
FMHAGEN_DEVICE f32 float_of_bf16(u32 bits) { return __uint_as_float(bits << 16); }

// The fp16 number of these 16 bits (9.7.9.22, cvt.f32.f16).
FMHAGEN_DEVICE f32 float_of_f16(u32 bits) {
  f32 value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(bits)));
  return value;
}
