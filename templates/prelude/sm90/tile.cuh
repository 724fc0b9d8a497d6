// The tile layer of sm90: what a kernel body says, in terms of the isa layer.

// A number for each row of this thread's in an accumulator: lane / 4 and lane / 4 + 8 of its warp's 16.
using Rows = f32[2];

// S, then P: element i is of row half i / 2 % 2 and column 8 * (i / 4) + lane % 4 * 2 + i % 2 (PTX ISA 9.7.15.5.1,
// wgmma.mma_async, D fragment; mma.m16n8 has the same).
using Scores = f32[TILE_N / 2];

// O, likewise.
using Output = f32[HEAD_DIM_V / 2];

// P in 16 bits, two a register: the D fragment of S is the A fragment of P V.
using Packed = u32[TILE_N / 4];

// Row of this thread's first accumulator element in its warpgroup's 64.
FMHAGEN_DEVICE u32 thread_row() { return thread_index() % GROUP_THREADS / 32 * 16 + thread_index() % 32 / 4; }

// Column of this thread's first element.
FMHAGEN_DEVICE u32 thread_column() { return thread_index() % 4 * 2; }

FMHAGEN_DEVICE i32 clamp(i32 value, i32 low, i32 high) { return value < low ? low : value > high ? high : value; }

// Until use number `use` has been filled.
template <u32 COUNT> FMHAGEN_DEVICE void wait_full(u32 barriers, u32 use) {
  mbarrier_wait(barriers + use % COUNT * BARRIER_BYTES, use / COUNT % 2);
}

// Until its buffer is free; at first it is.
template <u32 COUNT> FMHAGEN_DEVICE void wait_empty(u32 barriers, u32 use) {
  mbarrier_wait(barriers + use % COUNT * BARRIER_BYTES, use / COUNT % 2 ^ 1);
}

// This warp is done with use number `use`.
template <u32 COUNT> FMHAGEN_DEVICE void release(u32 barriers, u32 use) {
  if (thread_index() % 32 == 0) { mbarrier_arrive(barriers + use % COUNT * BARRIER_BYTES); }
}

// Fills the buffer of use number `use`, once it is empty, with rows [row, row + rows of a box) of one head, a box of
// columns at a time. Columns beyond the head's depth and rows beyond its end arrive as zeros.
template <u32 COUNT, u32 BOXES, u32 BOX_BYTES>
FMHAGEN_DEVICE void load_tile(u32 tiles, u32 full, u32 empty, u32 use, const TensorMap* map, u32 row, i32 h, i32 b) {
  const u32 barrier = full + use % COUNT * BARRIER_BYTES;
  mbarrier_wait(empty + use % COUNT * BARRIER_BYTES, use / COUNT % 2 ^ 1);  // at first it is empty
  mbarrier_arrive_expect_tx(barrier, BOXES * BOX_BYTES);
  FMHAGEN_UNROLL for (u32 box = 0; box < BOXES; ++box) {
    const u32 destination = tiles + use % COUNT * (BOXES * BOX_BYTES) + box * BOX_BYTES;
    tma_load_4d(destination, map, barrier, i32(box * BOX_COLUMNS), i32(row), h, b);
  }
}

// As load_tile: this block loads its share of the rows for every block of its cluster, each of which expects all.
template <u32 COUNT, u32 BOXES, u32 BOX_BYTES>
FMHAGEN_DEVICE void load_share(u32 tiles, u32 full, u32 empty, u32 use, const TensorMap* map, u32 row, i32 head,
                               i32 batch) {
  const u32 rank = cluster_rank(), barrier = full + use % COUNT * BARRIER_BYTES;
  mbarrier_wait(empty + use % COUNT * BARRIER_BYTES, use / COUNT % 2 ^ 1);  // at first it is empty
  mbarrier_arrive_expect_tx(barrier, BOXES * BOX_BYTES);
  FMHAGEN_UNROLL for (u32 box = 0; box < BOXES; ++box) {
    const u32 destination = tiles + use % COUNT * (BOXES * BOX_BYTES) + box * BOX_BYTES + rank * (BOX_BYTES / CLUSTER);
    tma_load_4d_multicast(destination, map, barrier, i32(box * BOX_COLUMNS), i32(row + rank * (TILE_N / CLUSTER)),
                          head, batch, (1u << CLUSTER) - 1);
  }
}

// As release, in every block of the cluster, since each fills a share of the buffer.
template <u32 COUNT> FMHAGEN_DEVICE void release_in_cluster(u32 barriers, u32 use) {
  const u32 lane = thread_index() % 32;
  if (lane < CLUSTER) { mbarrier_arrive_cluster(cluster_address(barriers + use % COUNT * BARRIER_BYTES, lane)); }
}

// Index of this block's cluster.
FMHAGEN_DEVICE u32 cluster_index() { return block_index() / CLUSTER; }

// Number of clusters in the grid.
FMHAGEN_DEVICE u32 cluster_count() { return grid_size() / CLUSTER; }

// All threads of the cluster meet.
FMHAGEN_DEVICE void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// Descriptor of a K-major operand under the 128-byte swizzle (PTX ISA 9.7.15.5.1.2.2): its address / 16 in bits 0-13,
// where all of shared memory fits, stride between groups of eight rows / 16 in bits 32-45, swizzle mode in bits 62-63.
FMHAGEN_DEVICE u64 descriptor_k_major(u32 start) { return u64(8 * ROW_BYTES >> 4 | 1u << 30) << 32 | start; }

// The same of an MN-major operand: the distance between boxes of 64 columns / 16 is in bits 16-29.
FMHAGEN_DEVICE u64 descriptor_mn_major(u32 start) { return descriptor_k_major(KV_BOX_BYTES >> 4 << 16 | start); }

// Sets every element to zero.
template <u32 COUNT> FMHAGEN_DEVICE void clear(f32 (&values)[COUNT]) {
  FMHAGEN_UNROLL for (u32 i = 0; i < COUNT; ++i) { values[i] = 0.0f; }
}

FMHAGEN_DEVICE void clear_output(Output& o) { FMHAGEN_UNROLL for (f32& element : o) { element = 0.0f; } }

template <u32 COUNT> FMHAGEN_DEVICE void copy(u32 (&to)[COUNT], const u32 (&from)[COUNT]) {
  FMHAGEN_UNROLL for (u32 i = 0; i < COUNT; ++i) { to[i] = from[i]; }
}

FMHAGEN_DEVICE void add_up(Rows& sum, const Rows& part) { sum[0] += part[0]; sum[1] += part[1]; }

// Largest element of each row, over the four threads that share it, in units of log2.
FMHAGEN_DEVICE void row_maximum(Rows& largest, const Scores& s, f32 scale_log2) {
  FMHAGEN_UNROLL for (u32 i = 0; i < TILE_N / 2; i += 2) {
    const f32 pair = maximum(s[i], s[i + 1]);
    largest[i / 2 % 2] = i < 4 ? pair : maximum(largest[i / 2 % 2], pair);
  }
  FMHAGEN_UNROLL for (f32& x : largest) { x = maximum(x, shuffle_xor(x, 1)); x = maximum(x, shuffle_xor(x, 2)); }
  FMHAGEN_UNROLL for (f32& x : largest) { x *= scale_log2; }
}

// s = exp2(scale_log2 * s - reference), sum += this thread's part of the row sums.
// NOTE: two at a time, since sums that wait for one another hold up the exponentials.
FMHAGEN_DEVICE void softmax(Scores& s, const Rows& reference, Rows& sum, f32 scale_log2) {
  FMHAGEN_UNROLL for (u32 i = 0; i < TILE_N / 2; i += 2) {
    s[i] = exp2_approx(fused_multiply_add(s[i], scale_log2, -reference[i / 2 % 2]));
    s[i + 1] = exp2_approx(fused_multiply_add(s[i + 1], scale_log2, -reference[i / 2 % 2]));
    sum[i / 2 % 2] += s[i] + s[i + 1];
  }
}

// As `softmax`, where a row may have seen no key yet: -inf - (-inf) would be NaN, and its P is 0.
FMHAGEN_DEVICE void softmax_masked(Scores& s, const Rows& reference, Rows& sum, f32 scale_log2) {
  Rows finite;
  FMHAGEN_UNROLL for (u32 i = 0; i < 2; ++i) { finite[i] = reference[i] == -infinity() ? 0.0f : reference[i]; }
  softmax(s, finite, sum, scale_log2);
}

// As `softmax_masked`, where scores may be numbers that stand for -inf, such as -1e30: a row of such scores alone has
// seen no key. NOTE: the rounding of so large a reference is larger than any exponent.
FMHAGEN_DEVICE void softmax_floored(Scores& s, const Rows& reference, Rows& sum, f32 scale_log2) {
  const f32 least = -134217728.0f;  // -2^27: rounded to 8
  const Rows guarded = {reference[0] < least ? 0.0f : reference[0], reference[1] < least ? 0.0f : reference[1]};
  softmax(s, guarded, sum, scale_log2);
}

// True if this thread saw an element that is more than a factor 2^8 above the reference.
FMHAGEN_DEVICE bool outgrows_reference(const Scores& s, const Rows& reference, f32 scale_log2) {
  const f32 growth_log2 = 8.0f;  // P stays below 2^8, so l and the 16-bit P keep their accuracy
  Rows largest;
  FMHAGEN_UNROLL for (u32 i = 0; i < TILE_N / 2; i += 2) {
    const f32 pair = maximum(s[i], s[i + 1]);
    largest[i / 2 % 2] = i < 4 ? pair : maximum(largest[i / 2 % 2], pair);
  }
  return largest[0] * scale_log2 - reference[0] > growth_log2 || largest[1] * scale_log2 - reference[1] > growth_log2;
}

// Moves the reference up to `least`, and O and l with it: (O, l) = alpha * (O, l), a factor a row.
FMHAGEN_DEVICE void move_reference(const Rows& least, Rows& reference, Output& o, Rows& sum, Rows& alpha) {
  FMHAGEN_UNROLL for (u32 half = 0; half < 2; ++half) {
    const f32 moved = maximum(least[half], reference[half]);
    // NOTE: a row that has seen no key has O = l = 0; -inf - (-inf) would be NaN.
    alpha[half] = moved == -infinity() ? 1.0f : exp2_approx(reference[half] - moved);
    reference[half] = moved;
    sum[half] *= alpha[half];
  }
  FMHAGEN_UNROLL for (u32 i = 0; i < HEAD_DIM_V / 2; ++i) { o[i] *= alpha[i / 2 % 2]; }
}

// Moves the reference up to the row maximum.
FMHAGEN_DEVICE void rescale(const Scores& s, Output& o, Rows& reference, Rows& sum, f32 scale_log2) {
  Rows largest, alpha;
  row_maximum(largest, s, scale_log2);
  move_reference(largest, reference, o, sum, alpha);
}

// NOTE: the vote tells the compiler that the answer is uniform; without it, loop state is held in every thread's
// registers and moved to uniform ones before each matrix instruction.
FMHAGEN_DEVICE bool group_any(u32 group, bool predicate) {  // in any thread of the warpgroup
  return warp_any(named_barrier_any(1 + group, GROUP_THREADS, predicate));
}

// Waits until it is this warpgroup's turn on the tensor cores.
// NOTE: a warp is held at a matrix instruction until the tensor cores take it, so it cannot compute its softmax
// under its own O += P V. With turns, one warpgroup computes its softmax under the products of the others.
FMHAGEN_DEVICE void wait_turn(u32 group) { named_barrier_sync(1 + CONSUMERS + group, 2 * GROUP_THREADS); }

// Hands the tensor cores to the next warpgroup.
FMHAGEN_DEVICE void pass_turn(u32 group) {
  named_barrier_arrive(1 + CONSUMERS + (group + 1 == CONSUMERS ? 0 : group + 1), 2 * GROUP_THREADS);
}

// True unless this thread's part of a step's row sums is small enough for P in 16 bits.
// NOTE: a row without a finite reference sums to +inf, and so counts as overflow, as does a NaN.
FMHAGEN_DEVICE bool overflows(const Rows& step_sum, f32 limit) { return !(step_sum[0] < limit && step_sum[1] < limit); }

// Adds up over the four threads that share a row.
FMHAGEN_DEVICE void reduce_sum(Rows& sum) {
  FMHAGEN_UNROLL for (u32 i = 0; i < 2; ++i) { sum[i] += shuffle_xor(sum[i], 1); sum[i] += shuffle_xor(sum[i], 2); }
}

// P of this step grew too large but is finite: brings P, O and l down, and the reference up.
FMHAGEN_DEVICE void shrink(Scores& s, Output& o, Rows& reference, Rows& sum, Rows& step_sum) {
  Rows alpha, moved = {step_sum[0], step_sum[1]};
  reduce_sum(moved);
  // NOTE: alpha comes from the reference as rounded, so that older keys keep their weights exactly.
  FMHAGEN_UNROLL for (u32 i = 0; i < 2; ++i) { moved[i] = reference[i] + log2_approx(moved[i]); }
  move_reference(moved, reference, o, sum, alpha);
  FMHAGEN_UNROLL for (u32 i = 0; i < 2; ++i) { step_sum[i] *= alpha[i]; }
  FMHAGEN_UNROLL for (u32 i = 0; i < TILE_N / 2; ++i) { s[i] *= alpha[i / 2 % 2]; }
}

// Gives a thread's two rows one reference, the larger one, if both have had a weight of 2^-64 under it; `magnitude` is
// log2 of the largest that each has had. Rows further apart keep their own: exp2 flushes what is below 2^-126 to zero.
FMHAGEN_DEVICE void join(Rows& reference, const Rows& magnitude) {
  const f32 larger = maximum(reference[0], reference[1]);
  const bool is_near = magnitude[0] >= larger - 64.0f && magnitude[1] >= larger - 64.0f;
  reference[0] = is_near ? larger : reference[0];
  reference[1] = is_near ? larger : reference[1];
}

// Moves references that are joined up to the largest scores, and O and l with them. What each row has had is told by
// its largest score here, and by l.
FMHAGEN_DEVICE void rescale_joined(const Scores& s, Output& o, Rows& reference, Rows& sum, f32 scale_log2) {
  Rows moved, alpha, magnitude = {sum[0], sum[1]};
  row_maximum(moved, s, scale_log2);
  reduce_sum(magnitude);
  FMHAGEN_UNROLL for (u32 i = 0; i < 2; ++i) {
    magnitude[i] = maximum(moved[i], reference[i] + log2_approx(magnitude[i]));
    moved[i] = maximum(moved[i], reference[i]);
  }
  join(moved, magnitude);
  move_reference(moved, reference, o, sum, alpha);
}

// Transposes a 4 x 4 block over the four lanes that share a row: register i of lane j and j of i change places.
FMHAGEN_DEVICE void transpose(u32 (&r)[4]) {
  FMHAGEN_UNROLL for (u32 i = 0; i < 4; ++i) {  // pairs 0 1 and 2 3 of neighbouring lanes, then 0 2 and 1 3
    const u32 distance = 1 + i / 2, low = i < 2 ? 2 * i : i - 2, high = low + distance;
    const bool upper = (thread_index() & distance) != 0;
    const u32 received = shuffle_xor(upper ? r[low] : r[high], distance);
    r[low] = upper ? received : r[low];
    r[high] = upper ? r[high] : received;
  }
}
