// Lanes are fibers, warps are groups of lanes that the scheduler picks at random.
#pragma once
#include "context.h"

namespace emulator {

enum : u32 {
  LANES = FMHAGEN_WARP_LANES,
  MAX_BLOCK_THREADS = 1024,
  MAX_CLUSTER = 8,
  MAX_THREADS = 2048,  // of a cluster
  MAX_WARPS = MAX_THREADS / LANES,
};

struct Lane;

// Lanes that wait for one thing. A woken lane looks at its condition again.
struct WaitQueue {
  Lane* head;
};

struct Lane {
  Context context;
  u32 thread;  // in its cluster, as is the warp
  u32 warp;
  u32 lane;
  u32 rank;  // of its block in the cluster
  bool done;
  bool has_waited;  // for the kernels ahead of a dependent launch
  // While blocked: the instruction, and what to say about it if nobody can run.
  Lane* next;
  const char* operation;
  void (*describe)(const Lane& lane, Text& text);
  u64 wait_a;
  u64 wait_b;
  bool wait_is_whole_warp;  // the instruction means all lanes of the warp, though lanes come singly
};

// A meeting of all lanes of a warp.
struct Rendezvous {
  const char* instruction;  // the one that the first lane came with
  u64 argument;             // what must be the same in every lane
  u32 arrived;
  u32 first_thread;
  u32 generation;
  WaitQueue waiting;
  u32 values[2][LANES];  // what lanes hand over; two generations, for a slow reader
};

struct Warp {
  u64 ready;  // lanes that can run
  u64 done;   // lanes that have left the kernel
  u32 rotation;
  Rendezvous rendezvous;
};

FMHAGEN_STATE Lane lanes[MAX_THREADS];
FMHAGEN_STATE Warp warps[MAX_WARPS];
FMHAGEN_STATE u64 ready_warps;
FMHAGEN_STATE u32 cluster_size;  // blocks that run together
FMHAGEN_STATE u32 thread_count;  // of a cluster
FMHAGEN_STATE u32 warp_count;    // of a cluster
FMHAGEN_STATE u32 lanes_done;
FMHAGEN_STATE u32 first_block;  // of the cluster that runs
FMHAGEN_STATE Lane* current;   // the lane that runs, or null in the scheduler
FMHAGEN_STATE Context scheduler_context;
FMHAGEN_STATE Context outer_context;  // the caller of fmhagen_emulator_run
FMHAGEN_STATE Context abandoned;      // where a failed fiber is left

enum : u64 { ALL_LANES = LANES == 64 ? ~0ull : (1ull << (LANES & 63)) - 1 };

static inline Warp& current_warp() { return warps[current->warp]; }

// The running lane as the issuer of an operation.
FMHAGEN_MODEL Issuer issuer_here(const char* operation) {
  if (!current) return Issuer{first_block, 0, operation};
  bool is_early = request->dependent && !current->has_waited;
  return Issuer{first_block, current->thread, operation, is_early};
}

FMHAGEN_MODEL void leave_run() {
  context_switch(abandoned, outer_context);
  __builtin_unreachable();
}

// ---- switching ----------------------------------------------------------------------------------

FMHAGEN_MODEL void make_ready(Lane& lane) {
  warps[lane.warp].ready |= 1ull << lane.lane;
  ready_warps |= 1ull << lane.warp;
}

// The next ready lane of a warp, cyclically from its rotation; it is no longer ready.
FMHAGEN_MODEL Lane& take_ready_lane(u32 warp_index) {
  Warp& warp = warps[warp_index];
  u64 later = warp.ready & (~0ull << warp.rotation);
  u32 lane = static_cast<u32>(__builtin_ctzll(later ? later : warp.ready));
  warp.ready &= ~(1ull << lane);
  if (!warp.ready) ready_warps &= ~(1ull << warp_index);
  return lanes[warp_index * LANES + lane];
}

// Leaves the running lane for the next ready lane of its warp, else for the scheduler.
FMHAGEN_NOINLINE void leave_lane(Lane& lane) {
  report->switches++;
  if (warps[lane.warp].ready) {
    Lane& next = take_ready_lane(lane.warp);
    current = &next;
    context_switch(lane.context, next.context);
  } else {
    current = nullptr;
    context_switch(lane.context, scheduler_context);
  }
}

// Blocks the running lane until somebody wakes the queue. `describe` explains the wait.
FMHAGEN_MODEL void block_on(WaitQueue& queue, const char* operation,
                            void (*describe)(const Lane&, Text&), u64 a, u64 b) {
  Lane& lane = *current;
  lane.operation = operation;
  lane.describe = describe;
  lane.wait_a = a;
  lane.wait_b = b;
  lane.next = queue.head;
  queue.head = &lane;
  leave_lane(lane);
  lane.operation = nullptr;
  lane.wait_is_whole_warp = false;
}

FMHAGEN_NOINLINE void wake_all(WaitQueue& queue) {
  Lane* lane = queue.head;
  queue.head = nullptr;
  while (lane) {
    Lane* next = lane->next;
    make_ready(*lane);
    lane = next;
  }
}

// One time in eight, lets another warp run: called at every barrier operation.
FMHAGEN_NOINLINE void preempt() {
  if (!checking(FMHAGEN_CHECK_PREEMPTION) || random_below(8)) return;
  Lane& lane = *current;
  make_ready(lane);
  report->switches++;
  current = nullptr;
  context_switch(lane.context, scheduler_context);
}

// ---- rendezvous ---------------------------------------------------------------------------------

FMHAGEN_MODEL void describe_rendezvous(const Lane& lane, Text& text) {
  const Rendezvous& meeting = warps[lane.warp].rendezvous;
  text.add("%u of %u lanes of the warp have come", meeting.arrived, u32(LANES));
}

FMHAGEN_MODEL void rendezvous_released(u32 warp);  // banks.h

// All lanes of the warp meet; the last one to come calls `work`, then all go on. `argument` must
// be the same in all of them.
template <class Work>
static inline void warp_together(const char* instruction, u64 argument, Work work) {
  Warp& warp = current_warp();
  Rendezvous& meeting = warp.rendezvous;
  if (warp.done) {
    fail(FMHAGEN_DIVERGENCE, issuer_here(instruction), "lane %d has left the kernel",
         __builtin_ctzll(warp.done));
  }
  if (!meeting.arrived) {
    meeting.instruction = instruction;
    meeting.argument = argument;
    meeting.first_thread = current->thread;
  } else if (meeting.instruction != instruction && strcmp(meeting.instruction, instruction)) {
    fail(FMHAGEN_DIVERGENCE, issuer_here(instruction), "lane %u of the warp is at %s",
         meeting.first_thread % LANES, meeting.instruction);
  } else if (meeting.argument != argument) {
    fail(FMHAGEN_DIVERGENCE, issuer_here(instruction),
         "argument %llu, but lane %u of the warp has %llu", argument,
         meeting.first_thread % LANES, meeting.argument);
  }
  if (++meeting.arrived == LANES) {
    work();
    rendezvous_released(current->warp);
    meeting.arrived = 0;
    meeting.generation++;
    wake_all(meeting.waiting);
    return;
  }
  u32 generation = meeting.generation;
  while (meeting.generation == generation) {
    block_on(meeting.waiting, instruction, describe_rendezvous, 0, 0);
  }
}

// Every lane hands over `value`; returns the warp's values, valid until the next exchange.
FMHAGEN_NOINLINE const u32* warp_exchange(const char* instruction, u64 argument, u32 value) {
  Rendezvous& meeting = current_warp().rendezvous;
  u32* values = meeting.values[meeting.generation & 1];
  values[current->lane] = value;
  warp_together(instruction, argument, [] {});
  return values;
}

// ---- the end of nobody's turn -------------------------------------------------------------------

FMHAGEN_MODEL bool same_wait(const Lane& a, const Lane& b) {
  return a.warp == b.warp && a.done == b.done && a.operation == b.operation &&
         a.describe == b.describe && a.wait_a == b.wait_a && a.wait_b == b.wait_b;
}

// Reports a deadlock: every group of lanes and what it waits for.
[[noreturn]] FMHAGEN_MODEL void fail_deadlock() {
  Text text = fault_text();
  text.add("block %u: no lane can run and nothing is in flight", first_block);
  u32 threads = warp_count * LANES;
  Issuer issuer{first_block, 0, "deadlock"};
  u32 kind = FMHAGEN_DEADLOCK;
  bool named = false;
  for (u32 first = 0, last; first < threads; first = last + 1) {
    const Lane& lane = lanes[first];
    last = first;
    while (last + 1 < threads && same_wait(lane, lanes[last + 1])) last++;
    if (lane.done) continue;
    // Some lanes of the warp meet here while others meet there.
    if (lane.wait_is_whole_warp && warps[lane.warp].rendezvous.arrived) kind = FMHAGEN_DIVERGENCE;
    if (!named) issuer.thread = first;
    named = true;
    text.add("\n  ");
    if (cluster_size > 1) text.add("block %u, ", first_block + lane.rank);
    text.add("warp %u, ", lane.warp % (request->threads / LANES));
    if (first == last) {
      text.add("lane %u: ", lane.lane);
    } else {
      text.add("lanes %u-%u: ", lane.lane, last % LANES);
    }
    text.add("%s: ", lane.operation ? lane.operation : "?");
    if (lane.describe) lane.describe(lane, text);
  }
  fail_written(kind, issuer);
}

}  // namespace emulator
