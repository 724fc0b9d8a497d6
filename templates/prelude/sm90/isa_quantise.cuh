// The isa layer of sm90, continued: two floats rounded to 8 bits each, to nearest even; `low` goes to
// bits 0-7. What is too large becomes the largest number (9.7.9.22, cvt).

// e4m3 of OCP, up to 448 (cvt.rn.satfinite.e4m3x2.f32).
FMHAGEN_DEVICE u32 pack_e4m3x2(f32 low, f32 high) {
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

// e5m2 of OCP, up to 57344 (cvt.rn.satfinite.e5m2x2.f32).
FMHAGEN_DEVICE u32 pack_e5m2x2(f32 low, f32 high) {
  u16 pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

// Whole numbers from -128 to 127; a NaN becomes 0 (cvt.rni.sat.s8.f32).
FMHAGEN_DEVICE u32 pack_int8x2(f32 low, f32 high) {
  i32 first, second;
  asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(first) : "f"(low));
  asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(second) : "f"(high));
  return (static_cast<u32>(first) & 0xffu) | (static_cast<u32>(second) & 0xffu) << 8;
}
