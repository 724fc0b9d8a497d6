// The isa layer of gfx942, continued: what block maps are written and read with.

// Whether a predicate holds in any lane of the wave; all lanes take part (v_cmp).
FMHAGEN_DEVICE bool any_lane(bool predicate) {
  return __builtin_amdgcn_ballot_w64(predicate) != 0;
}

// Stores one byte to global memory (global_store_byte).
FMHAGEN_DEVICE void store_global_u8(u8* address, u32 value) {
  *(__attribute__((address_space(1))) u8*)address = static_cast<u8>(value);
}

// The place of the lowest bit of a word that is not 0 (s_ff1_i32_b32).
FMHAGEN_DEVICE u32 lowest_bit(u32 word) {
  return static_cast<u32>(__builtin_ctz(word));
}

// The place of the highest bit of a word that is not 0 (s_flbit_i32_b32).
FMHAGEN_DEVICE u32 highest_bit(u32 word) {
  return 31 - static_cast<u32>(__builtin_clz(word));
}
