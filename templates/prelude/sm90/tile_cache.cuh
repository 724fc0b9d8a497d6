// The tile layer of sm90, second part: what the kernels that read a key/value cache say besides tile.cuh.

// Address of the 16-byte chunk 2 * step + chunk % 2 of row n of a tile in shared memory: pieces of BOX_ROWS rows,
// each of BOXES boxes of columns under the 128-byte swizzle.
template <u32 BOXES>
FMHAGEN_DEVICE u32 tile_address(u32 tile, u32 n, u32 chunk, u32 step) {
  const u32 row = tile + n / BOX_ROWS * (BOX_ROWS * ROW_BYTES * BOXES) + n % BOX_ROWS * ROW_BYTES;
  return (row + (chunk ^ n % 8) * 16 ^ step % 4 * 32) + step / 4 * (BOX_ROWS * ROW_BYTES);
}

// The same of a tile of 8-bit elements: address of the 16-byte chunk `step` of row n.
template <u32 BOXES>
FMHAGEN_DEVICE u32 small_tile_address(u32 tile, u32 n, u32 step) {
  const u32 row = tile + n / BOX_ROWS * (BOX_ROWS * ROW_BYTES * BOXES) + n % BOX_ROWS * ROW_BYTES;
  return (row + n % 8 * 16 ^ step % 8 * 16) + step / 8 * (BOX_ROWS * ROW_BYTES);
}

// Address of the 16-byte chunk 2 * step + chunk of row `row` of the tile of Q in shared memory, laid out likewise.
FMHAGEN_DEVICE u32 query_address(u32 tile, u32 row, u32 chunk, u32 step) {
  return (tile + row * ROW_BYTES + (chunk ^ row % 8) * 16 ^ step % 4 * 32) + step / 4 * (TILE_M * ROW_BYTES);
}

// The upper half of an address: below 2^31.
FMHAGEN_DEVICE u32 high_word(const f32* address) {
  return u32(reinterpret_cast<u64>(address) >> 32);
}

// Sum over this lane and those below it.
FMHAGEN_DEVICE u32 prefix_sum(u32 value) {
  const u32 lane = thread_index() % 32;
  FMHAGEN_UNROLL for (u32 distance = 1; distance < 32; distance *= 2) {
    const u32 below = shuffle_up(value, distance);
    value += lane >= distance ? below : 0;
  }
  return value;
}
