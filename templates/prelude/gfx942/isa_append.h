// The isa layer of gfx942, continued: what the kernel that appends rows to a cache uses besides.

// Loads BYTES bytes of global memory, aligned to as many (global_load_dwordx4, .., global_load_ubyte).
template <u32 BYTES>
FMHAGEN_DEVICE void load_bytes(u32 (&r)[(BYTES + 3) / 4], const void* address) {
  if constexpr (BYTES == 16) {
    const u32x4 value = *(const __attribute__((address_space(1))) u32x4*)address;
    for (u32 i = 0; i < 4; ++i) {
      r[i] = value[i];
    }
  } else if constexpr (BYTES == 8) {
    const u32x2 value = *(const __attribute__((address_space(1))) u32x2*)address;
    r[0] = value[0];
    r[1] = value[1];
  } else if constexpr (BYTES == 4) {
    r[0] = *(const __attribute__((address_space(1))) u32*)address;
  } else if constexpr (BYTES == 2) {
    r[0] = *(const __attribute__((address_space(1))) u16*)address;
  } else {
    r[0] = *(const __attribute__((address_space(1))) u8*)address;
  }
}

// Stores BYTES bytes to global memory, aligned to as many (global_store_dwordx4, .., global_store_byte).
template <u32 BYTES>
FMHAGEN_DEVICE void store_bytes(void* address, const u32 (&r)[(BYTES + 3) / 4]) {
  if constexpr (BYTES == 16) {
    *(__attribute__((address_space(1))) u32x4*)address = u32x4{r[0], r[1], r[2], r[3]};
  } else if constexpr (BYTES == 8) {
    *(__attribute__((address_space(1))) u32x2*)address = u32x2{r[0], r[1]};
  } else if constexpr (BYTES == 4) {
    *(__attribute__((address_space(1))) u32*)address = r[0];
  } else if constexpr (BYTES == 2) {
    *(__attribute__((address_space(1))) u16*)address = static_cast<u16>(r[0]);
  } else {
    *(__attribute__((address_space(1))) u8*)address = static_cast<u8>(r[0]);
  }
}
