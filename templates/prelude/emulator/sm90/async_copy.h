// cp.async: a thread's copies of 16 bytes, in groups (PTX ISA 8.8, section 9.7.9.25.3).
#pragma once
#include "operands.h"

namespace emulator {

enum : u32 { MAX_GROUPS_IN_FLIGHT = 32 };

// One copy in flight. It reads and writes at one moment.
struct AsyncCopy {
  Event event;
  AsyncCopy* next;  // of the same thread and group
  Issuer issuer;
  Knowledge known;
  u64 source;
  u32 destination;
  u32 source_bytes;
  i32 time;
  bool done;
};

// A thread's groups: copies since the last commit are those of group `committed`.
struct AsyncGroups {
  AsyncCopy* copies[MAX_GROUPS_IN_FLIGHT];  // by group modulo the length
  i32 committed;                            // groups closed so far
  i32 waited;                               // groups that a wait has covered
};

FMHAGEN_STATE AsyncGroups async_groups[MAX_THREADS];
FMHAGEN_STATE u32 async_agents[MAX_WARPS];  // one a warp: its time is the group's number, plus 1

FMHAGEN_MODEL void async_copies_begin_block() {
  memset(static_cast<void*>(async_groups), 0, sizeof async_groups);
  memset(async_agents, 0, sizeof async_agents);
}

FMHAGEN_MODEL void fire_async_copy(Event& event) {
  AsyncCopy& copy = reinterpret_cast<AsyncCopy&>(event);
  Access access = access_of(async_agents[copy.issuer.thread / LANES], copy.time, copy.issuer,
                            copy.known, false);
  u8 data[CHUNK_BYTES] = {};
  if (copy.source_bytes) {
    memcpy(data, global_read(copy.issuer, copy.source, copy.source_bytes), copy.source_bytes);
  }
  memcpy(shared_write(access, copy.destination, CHUNK_BYTES), data, CHUNK_BYTES);
  copy.done = true;
}

FMHAGEN_MODEL void async_copy(u32 destination, u64 source, u32 source_bytes) {
  Issuer issuer = issuer_here("copy_async_16");
  destination = own_address("copy_async_16", destination);
  check_alignment(issuer, destination, CHUNK_BYTES);
  if (source_bytes > CHUNK_BYTES) {
    fail(FMHAGEN_LIMIT, issuer, "%u bytes of at most %u", source_bytes, u32(CHUNK_BYTES));
  }
  if (source_bytes) check_global_alignment(issuer, source, CHUNK_BYTES);
  u32& agent = async_agents[current->warp];
  if (!agent) agent = agent_new(true);
  AsyncGroups& groups = async_groups[current->thread];
  AsyncCopy& copy = take<AsyncCopy>();
  copy.issuer = issuer;
  copy.source = source;
  copy.destination = destination;
  copy.source_bytes = source_bytes;
  copy.time = groups.committed + 1;
  snapshot_here(copy.known);
  AsyncCopy*& first = groups.copies[groups.committed % MAX_GROUPS_IN_FLIGHT];
  copy.next = first;
  first = &copy;
  post(copy.event, fire_async_copy);
}

FMHAGEN_MODEL void async_copies_commit() {
  AsyncGroups& groups = async_groups[current->thread];
  groups.committed++;
  if (groups.committed - groups.waited >= static_cast<i32>(MAX_GROUPS_IN_FLIGHT)) {
    fail(FMHAGEN_LIMIT, issuer_here("copy_async_commit"), "more than %u groups in flight",
         MAX_GROUPS_IN_FLIGHT - 1);
  }
}

// wait_group: the thread's groups but the `pending` newest are complete. A warp knows of a group
// once all its lanes have waited for theirs.
FMHAGEN_NOINLINE void async_copies_wait(u32 pending) {
  preempt();
  AsyncGroups& groups = async_groups[current->thread];
  for (; groups.waited < groups.committed - static_cast<i32>(pending); groups.waited++) {
    AsyncCopy*& first = groups.copies[groups.waited % MAX_GROUPS_IN_FLIGHT];
    while (first) {
      AsyncCopy& copy = *first;
      first = copy.next;
      if (!copy.done) fire_now(copy.event);
      give(copy);
    }
  }
  u32 agent = async_agents[current->warp];
  if (!agent || !checking(FMHAGEN_CHECK_RACES)) return;
  i32 all = groups.waited;
  for (u32 lane = 0; lane < LANES; lane++) {
    i32 waited = async_groups[current->warp * LANES + lane].waited;
    if (waited < all) all = waited;
  }
  i32& seen = known_here().seen.time[agent];
  if (all > seen) seen = all;
  known_here().touched = true;
}

// The thread leaves: its shared memory may be another block's before a copy has landed.
FMHAGEN_MODEL void async_copies_lane_exit(const Lane& lane) {
  const AsyncGroups& groups = async_groups[lane.thread];
  for (const AsyncCopy* first : groups.copies) {
    if (!first) continue;
    fail(FMHAGEN_UNFINISHED, first->issuer, "the thread ends without copy_async_wait for the copy");
  }
}

}  // namespace emulator
