// The tile layer of gfx942, second part: what the kernels that read a key/value cache say besides.
// A matrix instruction of 16 x 16 x 16: lane l has row (or column) l % 16 of an operand and, of its depth,
// 4 * (l / 16) and the three behind it; of D it has column l % 16 and these four rows.

// Which of the four quarters of a wave this lane is in.
FMHAGEN_DEVICE u32 lane_quarter() {
  return thread_index() % 64 / 16;
}

// All waves of the block meet; what they wrote to LDS is there.
FMHAGEN_DEVICE void block_sync() {
  wait_lds();
  block_barrier();
}

// The value of lane `lane`, which is the same number in all lanes.
FMHAGEN_DEVICE u32 shuffle_from(u32 value, u32 lane) {
  return read_lane(value, lane);
}

// As shuffle_from, of a float.
FMHAGEN_DEVICE f32 shuffle_f32_from(f32 value, u32 lane) {
  return float_of_bits(read_lane(bits_of_float(value), lane));
}

// Sum over the lanes of half a wave, of which both have the same values.
FMHAGEN_DEVICE u32 warp_add(u32 value) {
  return read_lane(prefix_sum(value), 31);
}

// Largest value of the lanes of the wave.
FMHAGEN_DEVICE u32 warp_maximum(u32 value) {
  const u32 lane = thread_index() % 64;
#pragma unroll
  for (u32 lane_mask = 1; lane_mask < 64; lane_mask *= 2) {
    const u32 other = from_lane(value, lane ^ lane_mask);
    value = value > other ? value : other;
  }
  return wave_uniform(value);
}

// Sets every element to zero.
template <u32 COUNT>
FMHAGEN_DEVICE void set_to_zero(f32 (&values)[COUNT]) {
#pragma unroll
  for (u32 i = 0; i < COUNT; ++i) {
    values[i] = 0.0f;
  }
}

// Sets every element to zero.
template <u32 COUNT>
FMHAGEN_DEVICE void set_to_zero(f32x4 (&blocks)[COUNT]) {
#pragma unroll
  for (u32 i = 0; i < COUNT * 4; ++i) {
    blocks[i / 4][i % 4] = 0.0f;
  }
}

// Loads four floats of LDS; `address` is 16-byte aligned.
FMHAGEN_DEVICE void load_shared_f32x4(f32 (&values)[4], u32 address) {
  const u32x4 bits = lds_read_b128(address);
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    values[i] = float_of_bits(bits[i]);
  }
}

// Stores four floats to LDS; `address` is 16-byte aligned.
FMHAGEN_DEVICE void store_shared_f32x4(u32 address, f32 v0, f32 v1, f32 v2, f32 v3) {
  const u32x4 bits = {bits_of_float(v0), bits_of_float(v1), bits_of_float(v2), bits_of_float(v3)};
  lds_write_b128(address, bits);
}

// Loads SIZE bytes of global memory to as many words as they fill, at a multiple of SIZE.
template <u32 SIZE>
FMHAGEN_DEVICE void load_piece(u32* words, const u8* address) {
  if constexpr (SIZE == 16) {
    load_global_16(words, address);
  } else if constexpr (SIZE == 8) {
    load_global_8(words, address);
  } else if constexpr (SIZE == 4) {
    words[0] = load_global_4(address);
  } else if constexpr (SIZE == 2) {
    words[0] = load_global_2(address);
  } else {
    words[0] = load_global_1(address);
  }
}

// Loads share number `index` of a row that is dealt to LANES lanes, BYTES bytes each: in pieces, the widest first,
// and neighbours have neighbouring pieces.
template <u32 LANES, u32 BYTES>
FMHAGEN_DEVICE void load_share(u32* words, const u8* row, u32 index) {
  constexpr u32 SIZE = BYTES >= 16 ? 16 : BYTES >= 8 ? 8 : BYTES >= 4 ? 4 : BYTES >= 2 ? 2 : 1;
  load_piece<SIZE>(words, row + index * SIZE);
  if constexpr (BYTES > SIZE) {
    load_share<LANES, BYTES - SIZE>(words + (SIZE + 3) / 4, row + LANES * SIZE, index);
  }
}

// Where element `element` of share number `index` stands in such a row of elements of ELEMENT_BYTES bytes.
template <u32 LANES, u32 BYTES>
FMHAGEN_DEVICE u32 place_in_row(u32 element, u32 index) {
  constexpr u32 SIZE = BYTES >= 16 ? 16 : BYTES >= 8 ? 8 : BYTES >= 4 ? 4 : BYTES >= 2 ? 2 : 1;
  constexpr u32 COUNT = SIZE / ELEMENT_BYTES;
  if constexpr (BYTES > SIZE) {
    if (element >= COUNT) {
      return LANES * COUNT + place_in_row<LANES, BYTES - SIZE>(element - COUNT, index);
    }
  }
  return index * COUNT + element;
}
