// The isa layer of sm90, continued: what block maps are written and read with.

// Whether a predicate holds in any lane of the warp; all lanes take part (9.7.13.5, vote.sync.any).
FMHAGEN_DEVICE bool any_lane(bool predicate) { return __any_sync(0xffffffffu, predicate); }

// Stores one byte to global memory (9.7.9.11, st.global.u8).
FMHAGEN_DEVICE void store_global_u8(u8* address, u32 value) { *address = static_cast<u8>(value); }

// The place of the highest bit of a word that is not 0 (9.7.1.22, clz).
FMHAGEN_DEVICE u32 highest_bit(u32 word) { return 31 - __clz(static_cast<i32>(word)); }
FMHAGEN_DEVICE u32 count_bits(u32 word) { return static_cast<u32>(__popc(word)); }

// The value of the first lane (9.7.9.6, shfl.sync.idx).
FMHAGEN_DEVICE u32 wave_uniform(u32 value) { return __shfl_sync(0xffffffffu, value, 0); }
