// The tile layer of gfx942: what a kernel body says, in terms of the isa layer.
// An accumulator block of 32 x 32 whose rows were read through `operand_row`: element i of lane l
// belongs to row 16 * (i / 8) + 8 * (l / 32) + i % 8 and to column l % 32 (v_mfma_f32_32x32x8, D
// layout). So S^T gives a lane eight consecutive keys at a time, and those are operands of P V.

// Row of a tile that row `row` of a matrix operand holds: bits 2 and 3 change places.
FMHAGEN_DEVICE u32 operand_row(u32 row) {
  return (row & 0x13u) | (row & 4u) << 1 | (row & 8u) >> 1;
}

// First of the eight consecutive rows in 16 that this lane holds of an operand or accumulator.
FMHAGEN_DEVICE u32 lane_eight() {
  return thread_index() % 64 / 32 * 8;
}

// XORed with the 16-byte column of a K row in LDS: reads by `operand_row` meet no bank conflict.
FMHAGEN_DEVICE u32 k_swizzle(u32 row) {
  return (row & 3u) | (row & 8u) >> 1;
}

// XORed with the 16-byte column of a V^T row in LDS: the same, and for writes of every other row.
FMHAGEN_DEVICE u32 v_swizzle(u32 row) {
  return (row >> 1 & 7u) ^ (row & 1u) << 2 ^ (row >> 3 & 2u);
}

// XORed with the 16-byte column of V^T in a unit of 64 keys, or of two rows of 32: the same.
FMHAGEN_DEVICE u32 v_unit_swizzle(u32 row) {
  return (row >> 1 & 1u) | (row >> 2 & 2u) | ((row ^ row >> 2) & 1u) << 2;
}

// The number in [low, high] nearest to `value`.
FMHAGEN_DEVICE i32 clamp(i32 value, i32 low, i32 high) {
  return value < low ? low : value > high ? high : value;
}

// Rows [first, first + most) of a 16-bit tensor of `rows` rows: a resource that ends with the last.
// NOTE: a resource spans less than 4 GB; one of a few rows each lets a tensor be of any size.
FMHAGEN_DEVICE BufferResource row_buffer(const u16* base, i64 stride, u32 rows, u32 columns,
                                         u32 first, u32 most) {
  const u32 left = rows > first ? rows - first : 0;
  const u32 count = left < most ? left : most;
  // NOTE: (count - 1) rows and a last one; or nothing, without a branch.
  const u32 any = count < 1 ? count : 1;
  const u32 bytes = count * row_bytes(stride) + any * (columns * 2 - row_bytes(stride));
  return make_buffer(base + static_cast<i64>(first) * stride, wave_uniform(bytes));
}

// Bytes from one row of a 16-bit tensor to the next.
FMHAGEN_DEVICE u32 row_bytes(i64 stride) {
  return static_cast<u32>(stride) * 2;
}

// The same of an 8-bit tensor.
FMHAGEN_DEVICE u32 row_bytes_of_8(i64 stride) {
  return static_cast<u32>(stride);
}

// Sets every element to zero.
template <u32 COUNT>
FMHAGEN_DEVICE void clear(f32x16 (&blocks)[COUNT]) {
#pragma unroll
  for (u32 i = 0; i < COUNT * 16; ++i) {
    blocks[i / 16][i % 16] = 0.0f;
  }
}

// Elements of a fragment of eight that one matrix instruction takes: the first or the last four.
FMHAGEN_DEVICE u32x2 four_of(u32x4 eight, u32 last) {
  const u32x2 four = {eight[2 * last], eight[2 * last + 1]};
  return four;
}

// Two columns of eight rows, two in a register, become two rows of eight: row `odd` of them.
FMHAGEN_DEVICE u32x4 transpose_eight(const u32 (&pairs)[8], u32 odd) {
  const u32 halves = odd ? 0x07060302u : 0x05040100u;
  u32x4 row;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    row[i] = byte_permute(pairs[2 * i + 1], pairs[2 * i], halves);
  }
  return row;
}

// Two columns of four rows, two in a register, become two rows of four: row `odd` of them.
FMHAGEN_DEVICE u32x2 transpose_four(const u32 (&pairs)[4], u32 odd) {
  const u32 halves = odd ? 0x07060302u : 0x05040100u;
  u32x2 row;
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    row[i] = byte_permute(pairs[2 * i + 1], pairs[2 * i], halves);
  }
  return row;
}

// Largest element of this lane's query row, over this lane's keys.
template <u32 COUNT>
FMHAGEN_DEVICE f32 lane_maximum(const f32x16 (&s)[COUNT]) {
  f32 largest = s[0][0];
#pragma unroll
  for (u32 i = 1; i < COUNT * 16; ++i) {
    largest = maximum(largest, s[i / 16][i % 16]);
  }
  return largest;
}

// True if a scaled score is more than a factor 2^GROWTH_LOG2 above the row's reference.
FMHAGEN_DEVICE bool outgrows_reference(f32 largest, const Row& row) {
  return largest > row.maximum + GROWTH_LOG2;
}

// Moves the reference of the rows that outgrew it: (O, l) = alpha * (O, l).
// NOTE: alpha of the other rows is 1, so a row's bits do not depend on its neighbours.
template <u32 COUNT>
FMHAGEN_DEVICE void rescale(f32x16 (&o)[COUNT], Row& row, f32 largest) {
  largest = maximum(largest, shuffle_xor(largest, 32));
  if (!outgrows_reference(largest, row)) {
    largest = row.maximum;
  }
  // NOTE: a row that has seen no key has O = l = 0; -inf - (-inf) would be NaN.
  row.reference = largest == -infinity() ? 0.0f : largest;
  const f32 alpha = exp2_approx(row.maximum - row.reference);
  row.maximum = largest;
  row.sum *= alpha;
#pragma unroll
  for (u32 i = 0; i < COUNT * 16; ++i) {
    o[i / 16][i % 16] *= alpha;
  }
}

// s = exp2(scale_log2 * s - reference), sum += this lane's part of the row sum.
template <u32 COUNT>
FMHAGEN_DEVICE void softmax(f32x16 (&s)[COUNT], Row& row, f32 scale_log2) {
#pragma unroll
  for (u32 i = 0; i < COUNT * 16; ++i) {
    const f32 p = exp2_approx(fused_multiply_add(s[i / 16][i % 16], scale_log2, -row.reference));
    s[i / 16][i % 16] = p;
    row.sum += p;
  }
}

// tanh(x) = 1 - 2 / (1 + e^2x), to 2^-23.
FMHAGEN_DEVICE f32 tanh_approx(f32 x) {
  return 1.0f - 2.0f * reciprocal_approx(1.0f + exp2_approx(2.8853901f * x));
}

// 2^x of two numbers.
FMHAGEN_DEVICE f32x2 exp2_pair(f32x2 x) {
  const f32x2 powers = {exp2_approx(x[0]), exp2_approx(x[1])};
  return powers;
}

// 1 / x of two numbers.
FMHAGEN_DEVICE f32x2 reciprocal_pair(f32x2 x) {
  const f32x2 inverse = {reciprocal_approx(x[0]), reciprocal_approx(x[1])};
  return inverse;
}

// 1 / x, or 0 where x is 0: of the row sum of a row that saw no key.
FMHAGEN_DEVICE f32 inverse_or_zero(f32 x) {
  return x == 0.0f ? 0.0f : reciprocal_approx(x);
}

// Hides the keys from `end` on, where this lane's first key is 0.
// NOTE: unsigned, lest the compiler compare with 64 large constants, each in a scalar register; and
// fenced, lest it make all comparisons first, each with its result in two scalar registers.
template <u32 COUNT>
FMHAGEN_DEVICE void hide_keys(f32x16 (&s)[COUNT], u32 end) {
#pragma unroll
  for (u32 i = 0; i < COUNT * 2; ++i) {
    const i32 left = static_cast<i32>(end - i * 16);
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
      const u32 element = i % 2 * 8 + j;
      s[i / 2][element] = static_cast<i32>(j) < left ? s[i / 2][element] : -infinity();
    }
    schedule_fence();
  }
}
