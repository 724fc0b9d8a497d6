// wgmma: asynchronous products of a warpgroup (PTX ISA 8.8, section 9.7.15).
//
// A lane that comes to a matrix instruction leaves its part in a record (accumulator registers by
// reference, A registers by value) and runs on. When all 32 lanes have come, the instruction is
// issued; when the group is committed, the warp's chain gets one moment, at which it reads shared
// memory and computes, in order. Results reach the registers at the wait that guarantees them, and
// until then the registers hold poison: the latest moment, which every early reader and every
// early writer meets, whatever the seed.
#pragma once
#include "operands.h"

namespace emulator {

// ---- accumulators -------------------------------------------------------------------------------

enum : u32 { UNCOMMITTED = ~0u };

// One warp's 16 x n part of D, the registers it lives in, and what the last wait delivered.
struct Accumulator {
  Accumulator* next;
  u32 n;
  bool in_flight;
  u32 last_group;  // that writes it, or UNCOMMITTED
  f32* registers[LANES];
  u32 fences[LANES];  // of the lane, at the delivery
  alignas(64) f32 c[QUARTER_ROWS * WGMMA_MAX_N];  // rows of n
};

// The D fragment (9.7.15.5.1.1): element i of a lane is row lane / 4 + 8 * (i / 2 % 2), column
// 8 * (i / 4) + 2 * (lane % 4) + i % 2.
FMHAGEN_MODEL f32& fragment(Accumulator& accumulator, u32 lane, u32 i) {
  u32 row = lane / 4 + i / 2 % 2 * 8;
  return accumulator.c[row * accumulator.n + i / 4 * 8 + lane % 4 * 2 + i % 2];
}

// ---- instructions, chains, warps ----------------------------------------------------------------

// What the issuing warp knew; instructions share one while the warp learns nothing new.
struct Snapshot {
  Knowledge known;
  u32 users;
};

enum MatrixKind : u32 { MATRIX_MULTIPLY, MATRIX_FENCE, MATRIX_COMMIT };

// What must be the same in every lane; compared as bytes.
struct MatrixArguments {
  u64 descriptor_a;
  u64 descriptor_b;
  u32 kind;
  u32 n;
  u32 accumulate;
  u32 form;  // f16 | a_registers << 1 | b_mn_major << 2
};

struct MatrixOp {
  MatrixOp* next;
  MatrixArguments arguments;
  Issuer issuer;
  Snapshot* snapshot;
  Accumulator* accumulator;
  bool creates;  // the accumulator was not in flight before
  u32 arrived;
  u32 a[LANES][4];
};

struct MatrixGroup {
  Event event;
  MatrixGroup* next;
  MatrixOp* first;
  u32 warp;
  u32 number;  // of the warp's groups, from 1
};

enum : u32 { RING = 256, HASHES = 64 };

struct MatrixWarp {
  MatrixOp* ring[RING];  // issued by some lanes, not yet by all
  u32 sequence[LANES];   // instructions that each lane has come to
  u32 fences[LANES];     // fences that each lane has passed
  u32 issued;            // instructions that all lanes have come to
  WaitQueue ring_waiting;
  MatrixOp* open_first;  // the chain that is not yet committed
  MatrixOp* open_last;
  MatrixGroup* oldest;  // committed, not yet executed
  MatrixGroup* youngest;
  u32 committed;
  u64 hash;
  u64 hashes[HASHES];  // of the warp's instructions up to each group
  u32 agent;
  Snapshot* snapshot;
  Accumulator* accumulators;
};

FMHAGEN_STATE MatrixWarp matrix_warps[MAX_WARPS];
FMHAGEN_STATE WaitQueue commit_waiting[MAX_WARPS / WARPGROUP_WARPS];
static const char* const matrix_names[] = {"wgmma", "wgmma_fence", "wgmma_commit"};

FMHAGEN_MODEL void drop(Snapshot* snapshot) {
  if (snapshot && --snapshot->users == 0) give(*snapshot);
}

FMHAGEN_MODEL Snapshot* share_snapshot(MatrixWarp& matrix) {
  Knowledge& mine = known_here();
  if (!matrix.snapshot || mine.touched) {
    drop(matrix.snapshot);
    matrix.snapshot = &take<Snapshot>();
    matrix.snapshot->users = 1;
    snapshot_here(matrix.snapshot->known);
    mine.touched = false;
  }
  matrix.snapshot->users++;
  return matrix.snapshot;
}

// ---- execution ----------------------------------------------------------------------------------

FMHAGEN_MODEL void execute(MatrixOp& op, u32 warp, u32 group) {
  const MatrixArguments& arguments = op.arguments;
  MatrixShape shape{arguments.n, (arguments.form & 1) != 0, (arguments.form & 2) != 0,
                    (arguments.form & 4) != 0};
  Access access = access_of(matrix_warps[warp].agent, static_cast<i32>(group), op.issuer,
                            op.snapshot->known, true);
  if (shape.a_registers) {
    load_a_registers(op.a, shape.f16);
  } else {
    Descriptor a = decode_descriptor(op.issuer, arguments.descriptor_a, "A");
    load_a(access, a, warp % WARPGROUP_WARPS, shape.f16);
  }
  load_b(access, decode_descriptor(op.issuer, arguments.descriptor_b, "B"), shape);
  f32* c = op.accumulator->c;
  if (!arguments.accumulate) memset(c, 0, sizeof(f32) * QUARTER_ROWS * shape.n);
  multiply(c, shape.n);
}

FMHAGEN_MODEL void fire_group(Event& event) {
  MatrixGroup& group = reinterpret_cast<MatrixGroup&>(event);
  MatrixWarp& matrix = matrix_warps[group.warp];
  while (matrix.oldest != &group) fire_now(matrix.oldest->event);  // a warp's chains keep order
  matrix.oldest = group.next;
  for (MatrixOp* op = group.first; op;) {
    MatrixOp* next = op->next;
    execute(*op, group.warp, group.number);
    drop(op->snapshot);
    give(*op);
    op = next;
  }
  give(group);
}

// All lanes have come to a commit: the open chain is a group.
FMHAGEN_MODEL void commit_group(MatrixWarp& matrix) {
  MatrixGroup& group = take<MatrixGroup>();
  group.warp = current->warp;
  group.number = ++matrix.committed;
  group.first = matrix.open_first;
  matrix.open_first = matrix.open_last = nullptr;
  for (MatrixOp* op = group.first; op; op = op->next) op->accumulator->last_group = group.number;
  matrix.hashes[group.number % HASHES] = matrix.hash;
  (matrix.oldest ? matrix.youngest->next : matrix.oldest) = &group;
  matrix.youngest = &group;
  wake_all(commit_waiting[current->warp / WARPGROUP_WARPS]);
  post(group.event, fire_group);
}

// ---- issue --------------------------------------------------------------------------------------

FMHAGEN_MODEL void describe_ring(const Lane&, Text& text) {
  text.add("other lanes of the warp are %u instructions behind", u32(RING));
}

// The record of the running lane's next matrix instruction.
FMHAGEN_NOINLINE MatrixOp& come_to(const MatrixArguments& arguments) {
  MatrixWarp& matrix = matrix_warps[current->warp];
  const char* name = matrix_names[arguments.kind];
  u32 block_warps = request->threads / LANES;
  if (cluster_size > 1 && block_warps % WARPGROUP_WARPS) {
    fail(FMHAGEN_LIMIT, issuer_here(name), "blocks of a cluster are not whole warpgroups");
  }
  if ((current->warp / WARPGROUP_WARPS + 1) * WARPGROUP_WARPS > warp_count) {
    fail(FMHAGEN_MATRIX, issuer_here(name), "the warpgroup has fewer than four warps");
  }
  u32 index = matrix.sequence[current->lane];
  while (index - matrix.issued >= RING) {
    block_on(matrix.ring_waiting, name, describe_ring, 0, 0);
  }
  matrix.sequence[current->lane]++;
  MatrixOp*& slot = matrix.ring[index % RING];
  if (!slot) {
    slot = &take<MatrixOp>();
    slot->arguments = arguments;
    slot->issuer = issuer_here(name);
    if (!matrix.agent) matrix.agent = agent_new();
    if (arguments.kind == MATRIX_MULTIPLY) slot->snapshot = share_snapshot(matrix);
  } else if (memcmp(&slot->arguments, &arguments, sizeof arguments)) {
    const MatrixArguments& other = slot->arguments;
    fail(FMHAGEN_DIVERGENCE, issuer_here(name),
         "lane %u of the warp is at %s: n %u, A 0x%llx, B 0x%llx, accumulate %u; this lane: n %u, "
         "A 0x%llx, B 0x%llx, accumulate %u",
         slot->issuer.thread % LANES, matrix_names[other.kind], other.n, other.descriptor_a,
         other.descriptor_b, other.accumulate, arguments.n, arguments.descriptor_a,
         arguments.descriptor_b, arguments.accumulate);
  }
  return *slot;
}

// The running lane has left its part; the last one issues the instruction.
FMHAGEN_NOINLINE void leave_part(MatrixOp& op) {
  if (++op.arrived < LANES) return;
  MatrixWarp& matrix = matrix_warps[current->warp];
  matrix.ring[matrix.issued++ % RING] = nullptr;
  wake_all(matrix.ring_waiting);
  const u64* words = reinterpret_cast<const u64*>(&op.arguments);
  for (u32 i = 0; i < sizeof op.arguments / 8; i++) {
    matrix.hash = (matrix.hash ^ words[i]) * 0x9E3779B97F4A7C15ull;
    matrix.hash ^= matrix.hash >> 29;
  }
  if (op.arguments.kind == MATRIX_MULTIPLY) {
    (matrix.open_first ? matrix.open_last->next : matrix.open_first) = &op;
    matrix.open_last = &op;
    FMHAGEN_COUNT("wgmma");
    return;
  }
  if (op.arguments.kind == MATRIX_COMMIT) commit_group(matrix);
  give(op);
}

FMHAGEN_NOINLINE void matrix_fence() {
  MatrixOp& op = come_to(MatrixArguments{0, 0, MATRIX_FENCE, 0, 0, 0});
  matrix_warps[current->warp].fences[current->lane]++;
  leave_part(op);
}

FMHAGEN_NOINLINE void matrix_commit() {
  leave_part(come_to(MatrixArguments{0, 0, MATRIX_COMMIT, 0, 0, 0}));
}

}  // namespace emulator
