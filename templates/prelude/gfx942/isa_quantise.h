// The isa layer of gfx942, continued: two floats rounded to 8 bits each, to nearest even; `low` goes to
// bits 0-7. What is too large becomes the largest number, a NaN stays one. Fenced, lest the compiler make
// the comparisons of many pairs first, each with its result in two scalar registers.

// e4m3fnuz, up to 240 (v_med3_f32, v_cvt_pk_fp8_f32).
FMHAGEN_DEVICE u32 pack_e4m3x2(f32 low, f32 high) {
  low = low != low ? low : __builtin_amdgcn_fmed3f(low, -240.0f, 240.0f);
  high = high != high ? high : __builtin_amdgcn_fmed3f(high, -240.0f, 240.0f);
  const u32 pair = static_cast<u32>(__builtin_amdgcn_cvt_pk_fp8_f32(low, high, 0, false)) & 0xffffu;
  __builtin_amdgcn_sched_barrier(0);
  return pair;
}

// e5m2fnuz, up to 57344 (v_med3_f32, v_cvt_pk_bf8_f32).
FMHAGEN_DEVICE u32 pack_e5m2x2(f32 low, f32 high) {
  low = low != low ? low : __builtin_amdgcn_fmed3f(low, -57344.0f, 57344.0f);
  high = high != high ? high : __builtin_amdgcn_fmed3f(high, -57344.0f, 57344.0f);
  const u32 pair = static_cast<u32>(__builtin_amdgcn_cvt_pk_bf8_f32(low, high, 0, false)) & 0xffffu;
  __builtin_amdgcn_sched_barrier(0);
  return pair;
}

// Whole numbers from -128 to 127; a NaN becomes 0 (v_rndne_f32, v_med3_f32, v_cvt_i32_f32).
FMHAGEN_DEVICE u32 pack_int8x2(f32 low, f32 high) {
  low = low != low ? 0.0f : __builtin_amdgcn_fmed3f(__builtin_rintf(low), -128.0f, 127.0f);
  high = high != high ? 0.0f : __builtin_amdgcn_fmed3f(__builtin_rintf(high), -128.0f, 127.0f);
  return (static_cast<u32>(static_cast<i32>(low)) & 0xffu) | (static_cast<u32>(static_cast<i32>(high)) & 0xffu) << 8;
}
