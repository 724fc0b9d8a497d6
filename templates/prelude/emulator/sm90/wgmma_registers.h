// wgmma and registers: the accumulators of lanes, fences, and the wait that delivers.
#pragma once
#include "wgmma.h"

namespace emulator {

enum : u32 { REMEMBERED = 16 };  // accumulators of a warp whose last delivery is kept

// The accumulator of the running lane's registers d[0..count): the one in flight, else the one
// that an earlier wait delivered there, else a new one.
FMHAGEN_MODEL Accumulator& find_accumulator(MatrixWarp& matrix, MatrixOp& op, f32* d, u32 n) {
  Accumulator* idle = nullptr;
  u32 remembered = 0;
  for (Accumulator* at = matrix.accumulators; at; at = at->next, remembered++) {
    f32* mine = at->registers[current->lane];
    if (at->in_flight) {
      if (mine == d && at->n == n) return *at;
      if (mine < d + n / 2 && d < mine + at->n / 2) {
        fail(FMHAGEN_MATRIX, op.issuer,
             "its accumulator overlaps another one, of a different shape, that is in flight");
      }
    } else if (at->n == n && !(idle && idle->registers[current->lane] == d)) {
      idle = at;
    }
  }
  op.creates = true;
  bool same_place = idle && idle->registers[current->lane] == d;
  if (same_place || (idle && remembered >= REMEMBERED)) return *idle;
  Accumulator& fresh = take<Accumulator>();
  fresh.n = n;
  fresh.next = matrix.accumulators;
  matrix.accumulators = &fresh;
  return fresh;
}

// A fence must stand between ordinary accesses to registers and the wgmma that reads or writes
// them (9.7.15.7.1). What was accessed is not visible here, but what has changed is; and a D that
// is overwritten has been read since it was delivered, or it was computed for nothing.
FMHAGEN_MODEL void check_fence(MatrixWarp& matrix, MatrixOp& op, const f32* d) {
  u32 lane = current->lane;
  Accumulator& accumulator = *op.accumulator;
  if (accumulator.registers[lane] != d || accumulator.fences[lane] != matrix.fences[lane]) return;
  bool changed = !op.arguments.accumulate;
  for (u32 i = 0; i < accumulator.n / 2 && !changed; i++) {
    changed = bits_of(d[i]) != bits_of(fragment(accumulator, lane, i));
  }
  if (changed) {
    fail(FMHAGEN_MATRIX, issuer_here("wgmma"),
         "ordinary code has accessed its accumulator since the last wait: wgmma_fence is missing");
  }
}

// The running lane hands its accumulator over: values are taken, registers poisoned.
FMHAGEN_MODEL void hand_over(MatrixWarp& matrix, MatrixOp& op, f32* d) {
  u32 lane = current->lane, count = op.arguments.n / 2;
  Accumulator& accumulator = *op.accumulator;
  if (!op.creates) {
    if (accumulator.registers[lane] != d) {
      fail(FMHAGEN_DIVERGENCE, issuer_here("wgmma"),
           "the lanes of the warp have different accumulators in flight");
    }
    return;
  }
  check_fence(matrix, op, d);
  accumulator.registers[lane] = d;
  if (op.arguments.accumulate) {
    for (u32 i = 0; i < count; i++) {
      check_register("wgmma (accumulator)", d[i]);
      fragment(accumulator, lane, i) = d[i];
    }
  }
  if (checking(FMHAGEN_CHECK_POISON)) {
    for (u32 i = 0; i < count; i++) d[i] = float_of(POISON_REGISTER);
  }
}

// wgmma.mma_async by the running lane. `a` is null if A is in shared memory. Registers of A are
// taken by value: in PTX an operand is a value that later writes to the variable do not touch.
FMHAGEN_MODEL void matrix_multiply(f32* d, const MatrixShape& shape, const u32* a, u64 descriptor_a,
                                   u64 descriptor_b, u32 accumulate) {
  MatrixWarp& matrix = matrix_warps[current->warp];
  u32 form = u32(shape.f16) | u32(shape.a_registers) << 1 | u32(shape.b_mn_major) << 2;
  MatrixOp& op = come_to(MatrixArguments{descriptor_a, descriptor_b, MATRIX_MULTIPLY, shape.n,
                                         accumulate != 0, form});
  if (!matrix.fences[current->lane]) {
    fail(FMHAGEN_MATRIX, issuer_here("wgmma"), "no wgmma_fence before the first wgmma");
  }
  if (!op.accumulator) {
    op.accumulator = &find_accumulator(matrix, op, d, shape.n);
    op.accumulator->in_flight = true;
    op.accumulator->last_group = UNCOMMITTED;
  }
  hand_over(matrix, op, d);
  if (a) memcpy(op.a[current->lane], a, sizeof op.a[0]);
  leave_part(op);
}

// ---- the wait -----------------------------------------------------------------------------------

FMHAGEN_MODEL void describe_commit(const Lane& lane, Text& text) {
  text.add("group %llu of every warp of the warpgroup; committed:", lane.wait_a);
  u32 first = lane.warp / WARPGROUP_WARPS * WARPGROUP_WARPS;
  for (u32 i = 0; i < WARPGROUP_WARPS; i++) text.add(" %u", matrix_warps[first + i].committed);
}

// Writes what is complete to the registers of all lanes.
FMHAGEN_MODEL void deliver(MatrixWarp& matrix, Accumulator& accumulator) {
  for (u32 lane = 0; lane < LANES; lane++) {
    f32* d = accumulator.registers[lane];
    for (u32 i = 0; i < accumulator.n / 2; i++) {
      if (bits_of(d[i]) != POISON_REGISTER && checking(FMHAGEN_CHECK_POISON)) {
        fail(FMHAGEN_MATRIX, Issuer{first_block, current->warp * LANES + lane, "wgmma"},
             "element %u of its accumulator was written while it was in flight: a wgmma_wait is "
             "missing", i);
      }
      d[i] = fragment(accumulator, lane, i);
    }
    accumulator.fences[lane] = matrix.fences[lane];
  }
  accumulator.in_flight = false;
}

// A group is the warpgroup's: its wait covers all four quarters.
FMHAGEN_MODEL void complete_groups(u32 target) {
  u32 mine = current->warp, first = mine / WARPGROUP_WARPS * WARPGROUP_WARPS;
  MatrixWarp& matrix = matrix_warps[mine];
  for (u32 warp = first; warp < first + WARPGROUP_WARPS; warp++) {
    MatrixWarp& other = matrix_warps[warp];
    while (other.committed < target) {
      block_on(commit_waiting[mine / WARPGROUP_WARPS], "wgmma_wait", describe_commit, target, 0);
    }
    if (other.committed - target < HASHES && matrix.committed - target < HASHES &&
        other.hashes[target % HASHES] != matrix.hashes[target % HASHES]) {
      fail(FMHAGEN_DIVERGENCE, issuer_here("wgmma_wait"),
           "warps %u and %u of the warpgroup issued different instructions up to group %u", mine,
           warp, target);
    }
    while (other.oldest && other.oldest->number <= target) fire_now(other.oldest->event);
    if (!checking(FMHAGEN_CHECK_RACES)) continue;
    i32& known = known_here().seen.time[other.agent];
    if (known < static_cast<i32>(target)) known = static_cast<i32>(target);
    known_here().touched = true;
  }
  for (Accumulator* at = matrix.accumulators; at; at = at->next) {
    if (at->in_flight && at->last_group <= target) deliver(matrix, *at);
  }
}

FMHAGEN_MODEL void matrix_wait(u32 pending) {
  preempt();
  warp_together("wgmma_wait", pending, [&] {
    MatrixWarp& matrix = matrix_warps[current->warp];
    for (u32 lane = 0; lane < LANES; lane++) {
      if (matrix.sequence[lane] == matrix.issued) continue;
      fail(FMHAGEN_DIVERGENCE, Issuer{first_block, current->warp * LANES + lane, "wgmma_wait"},
           "%u matrix instructions lie behind this lane, but %u behind another lane of the warp",
           matrix.sequence[lane], matrix.issued);
    }
    if (matrix.committed > pending) complete_groups(matrix.committed - pending);
  });
}

// ---- blocks and exits ---------------------------------------------------------------------------

FMHAGEN_MODEL void matrix_begin_block() {
  for (u32 warp = 0; warp < warp_count; warp++) {
    MatrixWarp& matrix = matrix_warps[warp];
    memset(static_cast<void*>(&matrix), 0, sizeof matrix);
  }
  memset(commit_waiting, 0, sizeof commit_waiting);
}

FMHAGEN_MODEL void matrix_end_block() {
  for (u32 warp = 0; warp < warp_count; warp++) {
    MatrixWarp& matrix = matrix_warps[warp];
    if (matrix.open_first) {
      fail(FMHAGEN_UNFINISHED, matrix.open_first->issuer, "the block ends without wgmma_commit");
    }
    for (Accumulator *at = matrix.accumulators, *next; at; at = next) {
      next = at->next;
      if (at->in_flight) {
        fail(FMHAGEN_UNFINISHED, Issuer{first_block, warp * LANES, "wgmma"},
             "the block ends without the wgmma_wait of group %u", at->last_group);
      }
      give(*at);
    }
    if (matrix.snapshot) drop(matrix.snapshot);
  }
}

}  // namespace emulator
