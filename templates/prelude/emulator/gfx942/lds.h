// LDS of gfx942: the in-order queue of each wave, s_barrier, and the passes through the banks.
//
// A write sits in its wave's queue until the wave waits for it (lgkmcnt) or reads LDS itself, since
// the operations of one wave are in order. The queue is an agent of its own: what it wrote is
// ordered for another wave only if the writer waited before the barrier.
#pragma once
#include "../core.h"

namespace emulator {

enum : u32 { QUEUE_WRITES = 4096, QUEUE_SNAPSHOTS = 8, BANKS = 32, BANK_WRITE = 256 };

struct PendingWrite {
  u32 address;
  u32 bytes;
  u32 thread;
  i32 time;
  const char* operation;
  const Knowledge* known;  // by the wave, when it issued the write
  u8 value[16];
};

struct LdsQueue {
  Event event;
  bool posted;
  u32 agent;
  i32 time;     // of the agent: ended by a wait
  u32 applied;  // writes [applied, count) are pending
  u32 count;
  u32 snapshot_count;
  i32 snapshot_time;  // the wave's own time at the last snapshot
  Knowledge snapshots[QUEUE_SNAPSHOTS];
  PendingWrite writes[QUEUE_WRITES];
};

FMHAGEN_STATE LdsQueue lds_queues[MAX_WARPS];

FMHAGEN_MODEL void lds_apply(LdsQueue& queue, u32 writes) {
  for (; writes; writes--) {
    const PendingWrite& write = queue.writes[queue.applied++];
    Issuer issuer{first_block, write.thread, write.operation};
    Access access = access_of(queue.agent, write.time, issuer, *write.known, false);
    memcpy(shared_write(access, write.address, write.bytes), write.value, write.bytes);
  }
  if (queue.applied == queue.count) queue.applied = queue.count = queue.snapshot_count = 0;
}

// The moment of some writes has come, in order.
FMHAGEN_MODEL void lds_fire(Event& event) {
  LdsQueue& queue = reinterpret_cast<LdsQueue&>(event);
  queue.posted = false;
  u32 pending = queue.count - queue.applied;
  if (!pending) return;
  lds_apply(queue, 1 + random_below(pending));
  if (queue.count == queue.applied) return;
  queue.posted = true;
  post(queue.event, lds_fire);
}

// Everything that the running wave has written is there, and the wave knows it.
FMHAGEN_MODEL void lds_complete() {
  LdsQueue& queue = lds_queues[current->warp];
  lds_apply(queue, queue.count - queue.applied);
  knowledge[current->warp].seen.time[queue.agent] = queue.time++;
}

FMHAGEN_MODEL void lds_write(const char* operation, u32 address, const void* value, u32 bytes) {
  LdsQueue& queue = lds_queues[current->warp];
  Issuer issuer = issuer_here(operation);
  check_shared_range(issuer, address, bytes);
  check_alignment(issuer, address, bytes);
  i32 now = known_here().seen.time[current->warp];
  if (!queue.snapshot_count || queue.snapshot_time != now) {
    if (queue.snapshot_count == QUEUE_SNAPSHOTS) lds_apply(queue, queue.count - queue.applied);
    queue.snapshot_time = now;
    memcpy(&queue.snapshots[queue.snapshot_count++], &known_here(), sizeof(Knowledge));
  }
  if (queue.count == QUEUE_WRITES) lds_complete();
  const Knowledge* known = &queue.snapshots[queue.snapshot_count ? queue.snapshot_count - 1 : 0];
  PendingWrite& write = queue.writes[queue.count++];
  write = PendingWrite{address, bytes, current->thread, queue.time, operation, known, {}};
  memcpy(write.value, value, bytes);
  if (!queue.posted && checking(FMHAGEN_CHECK_ADVERSARIAL)) {
    queue.posted = true;
    post(queue.event, lds_fire);
  }
}

// A read of bytes that nobody wrote may miss a write that still sits in another wave's queue.
__attribute__((cold)) FMHAGEN_NOINLINE void find_pending(const Access& access, u32 address,
                                                         u32 bytes) {
  for (u32 warp = 0; warp < warp_count; warp++) {
    const LdsQueue& queue = lds_queues[warp];
    for (u32 i = queue.applied; i < queue.count; i++) {
      const PendingWrite& write = queue.writes[i];
      if (write.address >= address + bytes || address >= write.address + write.bytes) continue;
      Text text = fault_text();
      text.add("race at ");
      add_address(text, address);
      text.add(": the read of ");
      add_issuer(text, access.issuer);
      text.add(" is not ordered after the write of ");
      add_issuer(text, Issuer{first_block, write.thread, write.operation});
      text.add(", which is still in its wave's queue: no wait_lds before the barrier");
      fail_written(FMHAGEN_RACE, access.issuer);
    }
  }
}

FMHAGEN_MODEL void lds_read(const char* operation, u32 address, void* value, u32 bytes) {
  LdsQueue& queue = lds_queues[current->warp];
  if (queue.count) lds_complete();
  Access access = access_here(operation);
  check_shared_range(access.issuer, address, bytes);
  check_alignment(access.issuer, address, bytes);
  if ((granule_state[address / GRANULE_BYTES] & STATE_WRITTEN) != STATE_WRITTEN) {
    find_pending(access, address, bytes);
  }
  memcpy(value, shared_read(access, address, bytes), bytes);
}

// ---- s_barrier -------------------------------------------------------------------------------------

struct BlockBarrier {
  u32 arrived;  // waves
  u32 gone;     // waves that have left the kernel: the barrier does not wait for them
  u32 generation;
  WaitQueue waiting;
  Knowledge known;
};

FMHAGEN_STATE BlockBarrier block_barrier_state;

FMHAGEN_MODEL void describe_block_barrier(const Lane&, Text& text) {
  text.add("%u of %u waves have come", block_barrier_state.arrived,
           warp_count - block_barrier_state.gone);
}

FMHAGEN_MODEL void block_barrier_open() {
  BlockBarrier& barrier = block_barrier_state;
  if (!barrier.arrived || barrier.arrived + barrier.gone < warp_count) return;
  for (u32 warp = 0; warp < warp_count; warp++) acquire_from(barrier.known, warp);
  barrier.arrived = 0;
  barrier.generation++;
  wake_all(barrier.waiting);
}

FMHAGEN_MODEL void block_barrier_meet() {
  BlockBarrier& barrier = block_barrier_state;
  u32 generation = barrier.generation;
  preempt();
  warp_together("s_barrier", 0, [] {
    FMHAGEN_COUNT("s_barrier");
    release_to(block_barrier_state.known);
    block_barrier_state.arrived++;
    block_barrier_open();
  });
  while (barrier.generation == generation) {
    block_on(barrier.waiting, "s_barrier", describe_block_barrier, 0, 0);
  }
}

// ---- banks: 16 bytes a lane go through in groups of eight lanes -----------------------------------

static const u8 read_groups[4][8] = {{0, 1, 2, 3, 20, 21, 22, 23},
                                     {4, 5, 6, 7, 16, 17, 18, 19},
                                     {8, 9, 10, 11, 28, 29, 30, 31},
                                     {12, 13, 14, 15, 24, 25, 26, 27}};

// `bytes_per_lane` has BANK_WRITE added for a write, whose lanes go through in another order.
FMHAGEN_MODEL Wavefronts target_wavefronts(const u32* address, u64 present, u32 bytes_per_lane) {
  u32 bytes = bytes_per_lane % BANK_WRITE;
  u32 together = BANKS * 4 / bytes;
  bool is_read_b128 = bytes_per_lane == 16;
  Wavefronts wavefronts{};
  for (u32 first = 0; first < LANES; first += together) {
    u32 group[LANES];
    u64 lanes_present = 0;
    for (u32 i = 0; i < together; i++) {
      u32 lane = is_read_b128 ? first / 32 * 32 + read_groups[first % 32 / 8][i] : first + i;
      group[i] = address[lane];
      lanes_present |= (present >> lane & 1) << i;
    }
    wavefronts.taken += bank_passes(group, lanes_present, 0, together, bytes, BANKS);
    wavefronts.ideal += lanes_present != 0;
  }
  return wavefronts;
}

// ---- the run ------------------------------------------------------------------------------------------

FMHAGEN_MODEL void target_begin_run() {}

FMHAGEN_MODEL void target_begin_block() {
  memset(static_cast<void*>(&block_barrier_state), 0, sizeof block_barrier_state);
  for (u32 warp = 0; warp < warp_count; warp++) {
    LdsQueue& queue = lds_queues[warp];
    queue.posted = false;
    queue.agent = agent_new();
    queue.time = 1;
    queue.applied = queue.count = queue.snapshot_count = 0;
  }
}

// NOTE: writes that nobody waited for are not a fault by themselves: a wave may end with them.
FMHAGEN_MODEL void target_end_block() {}

FMHAGEN_MODEL void target_lane_exit(Lane& lane) {
  if ((warps[lane.warp].done | 1ull << lane.lane) != ALL_LANES) return;
  block_barrier_state.gone++;
  block_barrier_open();
}

}  // namespace emulator
