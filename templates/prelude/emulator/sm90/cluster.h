// Clusters of sm90: addresses of other blocks' shared memory, and the barrier of a cluster.
#pragma once
#include "../core.h"

namespace emulator {

// ---- addresses (PTX ISA 8.8, section 9.7.9.23, mapa) ---------------------------------------------
// The windows of a cluster's blocks lie 2^24 bytes apart, and a block's own addresses are those of
// its window, as on hardware: only in block 0 are they small. mapa moves one to another window.

enum : u32 { RANK_SHIFT = 24, PLACE_MASK = (1u << RANK_SHIFT) - 1 };

// An address of any block's memory, as the emulator counts them.
FMHAGEN_MODEL u32 cluster_address_of(const char* operation, u32 address) {
  u32 rank = address >> RANK_SHIFT, place = address & PLACE_MASK;
  if (rank >= cluster_size || place >= WINDOW_BYTES) {
    fail(FMHAGEN_OUT_OF_BOUNDS, issuer_here(operation), "0x%x is no address of shared memory",
         address);
  }
  return rank * WINDOW_BYTES + place;
}

// The same; it must be of the block's own memory.
FMHAGEN_MODEL u32 own_address(const char* operation, u32 address) {
  if (address >> RANK_SHIFT != current->rank) {
    fail(FMHAGEN_OUT_OF_BOUNDS, issuer_here(operation),
         "0x%x is no address of the block's own shared memory", address);
  }
  return cluster_address_of(operation, address);
}

FMHAGEN_NOINLINE u32 map_address(u32 address, u32 rank) {
  own_address("cluster_address", address);
  if (rank >= cluster_size) {
    fail(FMHAGEN_OUT_OF_BOUNDS, issuer_here("cluster_address"), "block %u of a cluster of %u", rank,
         cluster_size);
  }
  return rank << RANK_SHIFT | (address & PLACE_MASK);
}

// ---- the barrier (9.7.13.3) ---------------------------------------------------------------------
// A phase ends when every thread that has not left has arrived in it.

struct ClusterBarrier {
  u32 arrived;
  u32 phase;
  u32 arrivals[MAX_THREADS];  // phases in which a thread has arrived
  u32 waits[MAX_THREADS];     // phases that it has waited for
  WaitQueue waiting;
  Knowledge gathering;  // what arrivals have published
  Knowledge completed;  // the same, up to the last complete phase
};

FMHAGEN_STATE ClusterBarrier cluster_barrier;

FMHAGEN_MODEL void describe_cluster_barrier(const Lane&, Text& text) {
  text.add("%u of %u threads have arrived", cluster_barrier.arrived, thread_count - lanes_done);
}

FMHAGEN_MODEL void cluster_complete(u32 threads_left) {
  ClusterBarrier& barrier = cluster_barrier;
  if (!barrier.arrived || barrier.arrived < threads_left) return;
  barrier.arrived = 0;
  barrier.phase++;
  if (checking(FMHAGEN_CHECK_RACES)) join(barrier.completed, barrier.gathering);
  wake_all(barrier.waiting);
}

FMHAGEN_NOINLINE void cluster_barrier_arrive() {
  ClusterBarrier& barrier = cluster_barrier;
  u32 thread = current->thread;
  if (barrier.arrivals[thread] != barrier.waits[thread]) {
    fail(FMHAGEN_BARRIER, issuer_here("cluster_arrive"),
         "the thread has arrived before, and not waited since");
  }
  barrier.arrivals[thread]++;
  barrier.arrived++;
  release_to(barrier.gathering);
  cluster_complete(thread_count - lanes_done);
  preempt();
}

FMHAGEN_NOINLINE void cluster_barrier_wait() {
  preempt();
  ClusterBarrier& barrier = cluster_barrier;
  u32 thread = current->thread;
  if (barrier.arrivals[thread] == barrier.waits[thread]) {
    fail(FMHAGEN_BARRIER, issuer_here("cluster_wait"), "the thread has not arrived");
  }
  while (barrier.phase < barrier.arrivals[thread]) {
    block_on(barrier.waiting, "cluster_wait", describe_cluster_barrier, 0, 0);
  }
  barrier.waits[thread]++;
  acquire_from(barrier.completed, current->warp);
}

// A thread leaves: the others do not wait for it.
FMHAGEN_MODEL void cluster_lane_exit(const Lane& lane) {
  if (cluster_barrier.arrivals[lane.thread] != cluster_barrier.waits[lane.thread]) {
    fail(FMHAGEN_BARRIER, issuer_here("exit"), "the thread ends without cluster_wait");
  }
  cluster_complete(thread_count - lanes_done - 1);
}

FMHAGEN_MODEL void cluster_begin_block() {
  memset(static_cast<void*>(&cluster_barrier), 0, sizeof cluster_barrier);
}

}  // namespace emulator
