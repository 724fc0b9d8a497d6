// mbarriers and named barriers of sm90 (PTX ISA 8.8, section 9.7.13).
#pragma once
#include "cluster.h"

namespace emulator {

// ---- mbarriers (9.7.13.15) ----------------------------------------------------------------------

enum : u32 { MBARRIER_BYTES = 8, MAX_MBARRIERS = 256, MBARRIER_MAX = (1 << 20) - 1 };
enum : u32 { MAX_LOADS = 1024 };  // copies in flight on one barrier

// The object that hardware keeps in 8 bytes of shared memory. A phase completes when no arrivals
// and no bytes are pending; `tx_bytes` may be negative for a while, when a copy overtakes the
// arrival that expects it.
struct Mbarrier {
  u32 address;
  u32 count;    // arrivals of a phase
  u32 pending;  // arrivals that this phase still lacks
  i32 tx_bytes;
  u32 phase;
  WaitQueue waiting;
  Issuer initialiser;
  i32 initialised_at;  // time of the initialiser's warp
  bool fenced;         // its initialisation is visible to the async proxy
  u32 loads;           // the agent of the copies that complete here
  i32 loads_time;      // of the last copy issued
  i32 loads_done;      // all copies up to this time are complete
  u64 loads_done_beyond[MAX_LOADS / 64];  // bit t % MAX_LOADS: the copy at time t is complete, too
  u32 loads_in_flight;
  u32 loaded_phase;  // 1 + the phase in which a copy last completed
  u32 waited_phase;  // the most phases that a wait has seen complete
  Issuer last_load;
  Knowledge gathering;                // what arrivals have published
  Knowledge completed;                // the same, up to the last complete phase
  u32 acquired_phase[MAX_WARPS];  // phases whose knowledge a warp has
};

FMHAGEN_STATE Mbarrier mbarriers[MAX_MBARRIERS];
FMHAGEN_STATE u32 mbarrier_count;
FMHAGEN_STATE u16 mbarrier_at[GRANULES];  // index by address / 4

FMHAGEN_MODEL void describe_mbarrier(const Lane& lane, Text& text) {
  const Mbarrier& barrier = mbarriers[lane.wait_a];
  add_address(text, barrier.address);
  text.add(", parity %llu; phase %u is in progress: %u of %u arrivals and %d bytes pending",
           lane.wait_b, barrier.phase, barrier.pending, barrier.count, barrier.tx_bytes);
}

FMHAGEN_NOINLINE void mbarrier_create(u32 address, u32 count) {
  Access access = access_here("mbarrier_init");
  const Issuer& issuer = access.issuer;
  address = own_address("mbarrier_init", address);
  check_alignment(issuer, address, MBARRIER_BYTES);
  check_shared_range(issuer, address, MBARRIER_BYTES);
  u32 granule = address / GRANULE_BYTES;
  if (granule_state[granule] & STATE_BARRIER) {
    fail_at(FMHAGEN_BARRIER, issuer, address, "initialises a barrier a second time");
  }
  if (count == 0 || count > MBARRIER_MAX) {
    fail_at(FMHAGEN_BARRIER, issuer, address, "a count of %u arrivals", count);
  }
  if (mbarrier_count == MAX_MBARRIERS) {
    fail(FMHAGEN_LIMIT, issuer, "more than %u barriers", u32(MAX_MBARRIERS));
  }
  shared_write(access, address, MBARRIER_BYTES);
  granule_state[granule] = granule_state[granule + 1] = STATE_BARRIER;
  Mbarrier& barrier = mbarriers[mbarrier_count];
  mbarrier_at[granule] = static_cast<u16>(mbarrier_count++);
  memset(static_cast<void*>(&barrier), 0, sizeof barrier);
  barrier.address = address;
  barrier.count = barrier.pending = count;
  barrier.initialiser = issuer;
  barrier.initialised_at = known_here().seen.time[current->warp];
  barrier.loads = agent_new();
  tick(current->warp);
}

// The barrier at `address`; its initialisation must be ordered before.
FMHAGEN_NOINLINE Mbarrier& find_mbarrier(const char* operation, u32 address) {
  Issuer issuer = issuer_here(operation);
  check_alignment(issuer, address, MBARRIER_BYTES);
  check_shared_range(issuer, address, MBARRIER_BYTES);
  u32 granule = address / GRANULE_BYTES;
  Mbarrier& barrier = mbarriers[mbarrier_at[granule]];
  if (!(granule_state[granule] & STATE_BARRIER) || barrier.address != address) {
    fail_at(FMHAGEN_BARRIER, issuer, address, "no barrier was initialised here");
  }
  u32 initialiser = barrier.initialiser.thread / LANES;
  if (checking(FMHAGEN_CHECK_RACES) &&
      known_here().seen.time[initialiser] < barrier.initialised_at) {
    fail_at(FMHAGEN_RACE, issuer, address,
            "not ordered after the barrier's initialisation by thread %u",
            thread_of(barrier.initialiser));
  }
  return barrier;
}

FMHAGEN_NOINLINE void mbarrier_complete(Mbarrier& barrier) {
  if (barrier.pending || barrier.tx_bytes) return;
  barrier.phase++;
  barrier.pending = barrier.count;
  if (checking(FMHAGEN_CHECK_RACES)) join(barrier.completed, barrier.gathering);
  wake_all(barrier.waiting);
}

// A copy is complete: whoever waits for the phase knows its writes, and those of older copies.
FMHAGEN_MODEL void mbarrier_load_done(Mbarrier& barrier, const Issuer& issuer, i32 time) {
  u32 ahead = static_cast<u32>(time - barrier.loads_done - 1);
  if (ahead >= MAX_LOADS) {
    fail(FMHAGEN_LIMIT, issuer, "more than %u copies in flight on one barrier", MAX_LOADS);
  }
  u32 place = static_cast<u32>(time) % MAX_LOADS;
  barrier.loads_done_beyond[place / 64] |= 1ull << place % 64;
  for (place = static_cast<u32>(barrier.loads_done + 1) % MAX_LOADS;
       barrier.loads_done_beyond[place / 64] >> place % 64 & 1; place = (place + 1) % MAX_LOADS) {
    barrier.loads_done_beyond[place / 64] &= ~(1ull << place % 64);
    barrier.loads_done++;
  }
  barrier.gathering.seen.time[barrier.loads] = barrier.loads_done;
  barrier.loads_in_flight--;
}

FMHAGEN_MODEL void mbarrier_add_tx(Mbarrier& barrier, const Issuer& issuer, i64 bytes) {
  i64 sum = barrier.tx_bytes + bytes;
  if (sum > MBARRIER_MAX || sum < -i64(MBARRIER_MAX)) {
    fail_at(FMHAGEN_BARRIER, issuer, barrier.address, "%lld bytes pending: out of range", sum);
  }
  barrier.tx_bytes = static_cast<i32>(sum);
}

FMHAGEN_NOINLINE void mbarrier_arrive_with(const char* operation, u32 address, u32 expected_bytes) {
  Mbarrier& barrier = find_mbarrier(operation, address);
  Issuer issuer = issuer_here(operation);
  if (!barrier.pending) {
    fail_at(FMHAGEN_BARRIER, issuer, address,
            "more than %u arrivals in phase %u, which still has %d bytes pending", barrier.count,
            barrier.phase, barrier.tx_bytes);
  }
  mbarrier_add_tx(barrier, issuer, expected_bytes);
  note_reach(rank_of(address), current->warp, known_here().seen.time[current->warp], issuer);
  release_to(barrier.gathering);
  barrier.pending--;
  mbarrier_complete(barrier);
  preempt();
}

// try_wait.parity: true when the phase of that parity is the one before the phase in progress.
FMHAGEN_NOINLINE void mbarrier_wait_for(u32 address, u32 parity) {
  preempt();
  address = own_address("mbarrier_wait", address);
  Mbarrier& barrier = find_mbarrier("mbarrier_wait", address);
  if (parity > 1) {
    fail_at(FMHAGEN_BARRIER, issuer_here("mbarrier_wait"), address, "a parity of %u", parity);
  }
  while ((barrier.phase & 1) == parity) {
    block_on(barrier.waiting, "mbarrier_wait", describe_mbarrier,
             static_cast<u64>(&barrier - mbarriers), parity);
  }
  if (barrier.phase > barrier.waited_phase) barrier.waited_phase = barrier.phase;
  u32& acquired = barrier.acquired_phase[current->warp];
  if (acquired == barrier.phase) return;
  acquired = barrier.phase;
  acquire_from(barrier.completed, current->warp);
}

// fence.mbarrier_init: the running warp's initialisations become visible to the async proxy.
FMHAGEN_MODEL void mbarriers_fence() {
  for (u32 i = 0; i < mbarrier_count; i++) {
    if (mbarriers[i].initialiser.thread / LANES == current->warp) mbarriers[i].fenced = true;
  }
}

FMHAGEN_MODEL void mbarriers_end_block() {
  for (u32 i = 0; i < mbarrier_count; i++) {
    const Mbarrier& barrier = mbarriers[i];
    if (barrier.loads_in_flight || barrier.waited_phase < barrier.loaded_phase) {
      fail_at(FMHAGEN_UNFINISHED, barrier.last_load, barrier.address,
              "the block ends, and nobody waited for the copy to complete");
    }
  }
}

// ---- named barriers (9.7.13.1) ------------------------------------------------------------------

enum : u32 { NAMED_BARRIERS = 16 };

struct NamedBarrier {
  u32 expected;  // threads, said by the first to come
  u32 arrived;
  u32 generation;
  bool reduces;  // the first to come said bar.red, not bar.sync or bar.arrive
  bool votes;    // any predicate of those that have come (bar.red.or)
  bool verdict;  // of the last generation; stable until all its waiters have come again
  WaitQueue waiting;
  Knowledge gathering;
};

FMHAGEN_STATE NamedBarrier named_barriers[MAX_CLUSTER][NAMED_BARRIERS];

FMHAGEN_MODEL void describe_named_barrier(const Lane& lane, Text& text) {
  const NamedBarrier& barrier = named_barriers[lane.rank][lane.wait_a];
  text.add("barrier %llu: %u of %u threads have come", lane.wait_a, barrier.arrived,
           barrier.expected);
}

// What the running lane does at a named barrier.
enum NamedBarrierUse : u32 { BARRIER_SYNC, BARRIER_ARRIVE, BARRIER_ANY };

// Comes to a named barrier; with BARRIER_ANY, returns whether any predicate held.
FMHAGEN_NOINLINE bool named_barrier_come(const char* operation, u32 id, u32 threads,
                                      NamedBarrierUse use, bool predicate) {
  Issuer issuer = issuer_here(operation);
  if (id >= NAMED_BARRIERS) fail(FMHAGEN_BARRIER, issuer, "barrier %u of 16", id);
  if (!threads || threads % LANES || threads > request->threads) {
    fail(FMHAGEN_BARRIER, issuer, "barrier %u: %u threads", id, threads);
  }
  preempt();
  NamedBarrier& barrier = named_barriers[current->rank][id];
  bool wait = use != BARRIER_ARRIVE, reduces = use == BARRIER_ANY;
  if (!barrier.arrived) {
    barrier.expected = threads;
    barrier.reduces = reduces;
  }
  if (barrier.reduces != reduces) {
    fail(FMHAGEN_BARRIER, issuer, "barrier %u: bar.red and bar.sync or bar.arrive are mixed", id);
  }
  if (barrier.expected != threads) {
    fail(FMHAGEN_BARRIER, issuer, "barrier %u: %u threads, but the first to come said %u", id,
         threads, barrier.expected);
  }
  release_to(barrier.gathering);
  barrier.votes |= predicate;
  u32 generation = barrier.generation;
  if (++barrier.arrived < threads) {
    while (wait && barrier.generation == generation) {
      current->wait_is_whole_warp = true;
      block_on(barrier.waiting, operation, describe_named_barrier, id, 0);
    }
    return barrier.verdict;
  }
  // All have come. Those that wait learn what all have published; those that only arrived do not.
  u64 warps_waiting = wait ? 1ull << current->warp : 0;
  for (Lane* lane = barrier.waiting.head; lane; lane = lane->next) {
    warps_waiting |= 1ull << lane->warp;
  }
  for (; warps_waiting; warps_waiting &= warps_waiting - 1) {
    acquire_from(barrier.gathering, static_cast<u32>(__builtin_ctzll(warps_waiting)));
  }
  barrier.arrived = 0;
  barrier.generation++;
  barrier.verdict = barrier.votes;
  barrier.votes = false;
  memset(static_cast<void*>(&barrier.gathering), 0, sizeof barrier.gathering);
  wake_all(barrier.waiting);
  return barrier.verdict;
}

FMHAGEN_MODEL void barriers_begin_block() {
  mbarrier_count = 0;
  memset(static_cast<void*>(named_barriers), 0, sizeof named_barriers[0] * cluster_size);
}

}  // namespace emulator
