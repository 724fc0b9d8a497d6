// The isa layer of sm90, continued: what the kernel that appends rows to a cache uses besides.

// Loads BYTES bytes of global memory, aligned to as many (9.7.9.8, ld.global).
template <u32 BYTES>
FMHAGEN_DEVICE void load_bytes(u32 (&r)[(BYTES + 3) / 4], const void* address) {
  if constexpr (BYTES == 16) {
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(address) : "memory");
  } else if constexpr (BYTES == 8) {
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "l"(address) : "memory");
  } else if constexpr (BYTES == 4) {
    r[0] = *static_cast<const u32*>(address);
  } else if constexpr (BYTES == 2) {
    r[0] = *static_cast<const u16*>(address);
  } else {
    r[0] = *static_cast<const u8*>(address);
  }
}

// Stores BYTES bytes to global memory, aligned to as many (9.7.9.11, st.global).
template <u32 BYTES>
FMHAGEN_DEVICE void store_bytes(void* address, const u32 (&r)[(BYTES + 3) / 4]) {
  if constexpr (BYTES == 16) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 ::"l"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
  } else if constexpr (BYTES == 8) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(r[0]), "r"(r[1]) : "memory");
  } else if constexpr (BYTES == 4) {
    *static_cast<u32*>(address) = r[0];
  } else if constexpr (BYTES == 2) {
    *static_cast<u16*>(address) = static_cast<u16>(r[0]);
  } else {
    *static_cast<u8*>(address) = static_cast<u8>(r[0]);
  }
}
