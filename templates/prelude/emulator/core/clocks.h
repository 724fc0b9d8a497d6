// Happens-before: vector clocks of agents, and the accesses that they order.
//
// An agent is anything with an order of its own: each warp, each warp's matrix unit, the loads of
// each mbarrier, the bulk stores of each warp. `clock.time[a] >= t` means: everything that agent
// `a` did up to its time t happens before. A release ends the current time of an agent; an acquire
// joins the clock that was released.
#pragma once
#include "events.h"

namespace emulator {

enum : u32 { MAX_AGENTS = 256, MAX_ENTRIES = 1 << 22, MAX_SETS = 1 << 22, SET_CACHE = 4096 };

struct alignas(64) Clock {
  i32 time[MAX_AGENTS];
};

FMHAGEN_STATE u32 agent_count;  // agents 0 to warp_count - 1 are the warps
FMHAGEN_STATE bool writes_generically[MAX_AGENTS];  // the warps do, and what copies for lanes

typedef i32 Times __attribute__((vector_size(16)));

// a = the later of a and b, agent by agent: a now knows all that b knows.
FMHAGEN_NOINLINE void join(Clock& a, const Clock& b) {
  Times* mine = reinterpret_cast<Times*>(a.time);
  const Times* other = reinterpret_cast<const Times*>(b.time);
  for (u32 i = 0; i * 4 < agent_count; i++) {
    Times later = mine[i] > other[i];
    mine[i] = (mine[i] & later) | (other[i] & ~later);
  }
}

// A new asynchronous agent.
FMHAGEN_MODEL u32 agent_new(bool is_generic = false) {
  if (agent_count == MAX_AGENTS) {
    fail(FMHAGEN_LIMIT, issuer_here("emulator"), "more than %u agents", u32(MAX_AGENTS));
  }
  writes_generically[agent_count] = is_generic;
  return agent_count++;
}

// What a warp knows, and what of that a proxy fence has made visible to the async proxy.
struct Knowledge {
  Clock seen;
  Clock fenced;
  bool touched;  // of a warp: it has accessed or learnt something since its last snapshot
};

FMHAGEN_MODEL void join(Knowledge& a, const Knowledge& b) {
  join(a.seen, b.seen);
  join(a.fenced, b.fenced);
}

FMHAGEN_STATE Knowledge knowledge[MAX_WARPS];

// Which lanes of a warp have written shared memory since their last fence or meeting.
struct LaneWrites {
  u64 unfenced_lanes;
  i32 shared_until;  // time up to which all lanes know of the warp's writes
  i32 last;          // time of the last write
};

FMHAGEN_STATE LaneWrites lane_writes[MAX_WARPS];

static inline Knowledge& known_here() { return knowledge[current->warp]; }

// Ends the current time of a warp: later accesses are not part of what was released before.
FMHAGEN_MODEL void tick(u32 warp) {
  knowledge[warp].seen.time[warp]++;
  knowledge[warp].touched = true;
}

// What the running warp knows when it issues an asynchronous operation. Lanes run one after
// another, so time must end here, too: what another lane does later is not known.
FMHAGEN_MODEL void snapshot_here(Knowledge& known) {
  if (!checking(FMHAGEN_CHECK_RACES)) return;
  known = known_here();
  tick(current->warp);
}

// Publishes what the running warp knows.
FMHAGEN_NOINLINE void release_to(Knowledge& published) {
  if (!checking(FMHAGEN_CHECK_RACES)) return;
  join(published, known_here());
  tick(current->warp);
}

// Makes `warp` know what was published.
FMHAGEN_NOINLINE void acquire_from(const Knowledge& published, u32 warp) {
  if (!checking(FMHAGEN_CHECK_RACES)) return;
  LaneWrites& writes = lane_writes[warp];
  if (published.seen.time[warp] >= writes.last) {  // its own writes come back to all its lanes
    writes.unfenced_lanes = 0;
    writes.shared_until = published.seen.time[warp];
  }
  join(knowledge[warp], published);
  knowledge[warp].touched = true;
}

// ---- proxy fences -------------------------------------------------------------------------------

// The lanes of the running warp meet, and their memory accesses with them.
FMHAGEN_MODEL void share_lane_writes() {
  if (!checking(FMHAGEN_CHECK_RACES)) return;
  u32 warp = current->warp;
  lane_writes[warp].unfenced_lanes = 0;
  lane_writes[warp].shared_until = knowledge[warp].seen.time[warp];
  tick(warp);
}

// All that the running lane knows to be written becomes visible to the async proxy. What other
// lanes of its warp have written since they last met is theirs to fence: a warp that fences lane
// by lane and lets one lane arrive must meet in between.
FMHAGEN_NOINLINE void fence_here() {
  if (!checking(FMHAGEN_CHECK_RACES)) return;
  u32 warp = current->warp;
  Knowledge& mine = knowledge[warp];
  LaneWrites& writes = lane_writes[warp];
  i32 fenced = mine.fenced.time[warp];
  join(mine.fenced, mine.seen);
  writes.unfenced_lanes &= ~(1ull << current->lane);
  if (writes.unfenced_lanes) {
    mine.fenced.time[warp] = fenced > writes.shared_until ? fenced : writes.shared_until;
  }
  tick(warp);
}

// ---- entries: accesses that a granule remembers, by number --------------------------------------

struct Entry {
  const char* operation;
  u32 agent;
  i32 time;
  u32 thread;
  u32 previous;
};

FMHAGEN_STATE Entry* entries;  // entries[0] is nobody
FMHAGEN_STATE u32 entry_count;
FMHAGEN_STATE u32 last_entry[MAX_AGENTS];

// The number of the access `operation` by `agent` at `time`. One number serves a warp until it
// releases, or an asynchronous agent until its next operation.
FMHAGEN_MODEL u32 entry_of(u32 agent, i32 time, const char* operation, u32 thread) {
  const Entry& last = entries[last_entry[agent]];
  if (last_entry[agent] && last.time == time && last.operation == operation) {
    return last_entry[agent];
  }
  if (entry_count == MAX_ENTRIES) {
    fail(FMHAGEN_LIMIT, issuer_here("emulator"), "the race detector's history is full");
  }
  entries[entry_count] = Entry{operation, agent, time, thread, 0};
  last_entry[agent] = entry_count;
  return entry_count++;
}

// ---- read sets: who has read a granule since it was written -------------------------------------
// Granules are read in the same patterns, so the sets are few: a set is a number, and reading maps
// one number to another. A set is a list of entries; lists share their tails.

struct ReadSet {
  u32 entry;
  u32 rest;
};

FMHAGEN_STATE ReadSet* read_sets;  // read_sets[0] is the empty set
FMHAGEN_STATE u32 read_set_count;

struct SetStep {
  u32 from;
  u32 entry;
  u32 to;
};

FMHAGEN_STATE SetStep set_cache[SET_CACHE];

FMHAGEN_MODEL u32 set_new(u32 entry, u32 rest) {
  if (read_set_count == MAX_SETS) {
    fail(FMHAGEN_LIMIT, issuer_here("emulator"), "the race detector's history is full");
  }
  read_sets[read_set_count] = ReadSet{entry, rest};
  return read_set_count++;
}

// `set` without the accesses of `agent`.
FMHAGEN_MODEL u32 set_without(u32 set, u32 agent) {
  bool found = false;
  for (u32 at = set; at && !found; at = read_sets[at].rest) {
    found = entries[read_sets[at].entry].agent == agent;
  }
  if (!found) return set;
  if (entries[read_sets[set].entry].agent == agent) return set_without(read_sets[set].rest, agent);
  return set_new(read_sets[set].entry, set_without(read_sets[set].rest, agent));
}

// `set` with one more access. It replaces an earlier one of the same agent: who has waited for
// the later one has waited for the earlier one, too.
FMHAGEN_NOINLINE u32 set_with(u32 set, u32 entry) {
  u32 hash = (set * 2654435761u ^ entry * 2246822519u) >> 7 & (SET_CACHE - 1);
  auto& cached = set_cache[hash];
  if (cached.entry == entry && cached.from == set) return cached.to;
  u32 to = read_sets[set].entry == entry && set
               ? set
               : set_new(entry, set_without(set, entries[entry].agent));
  cached = {set, entry, to};
  return to;
}

// ---- accesses -----------------------------------------------------------------------------------

// One operation's accesses to shared memory, with what its issuer knew at issue.
struct Access {
  Issuer issuer;
  const Clock* seen;
  const Clock* fenced;  // not null: the async proxy, which sees only fenced generic writes
  u32 entry;
  u32 ordered_writer;   // caches: the last writer and read set that were found to be ordered,
  u32 ordered_readers;  // and the last step from one read set to the next
  u32 set_from;
  u32 set_to;
};

// An ordinary (generic-proxy) access of the running lane.
FMHAGEN_NOINLINE Access access_here(const char* operation) {
  Access access{};
  access.issuer = issuer_here(operation);
  if (checking(FMHAGEN_CHECK_RACES)) {
    u32 warp = current->warp;
    access.seen = &knowledge[warp].seen;
    access.entry = entry_of(warp, access.seen->time[warp], operation, current->thread);
    knowledge[warp].touched = true;
  }
  return access;
}

// An access of asynchronous agent `agent` at its time `time`; the issuer knew `known`.
FMHAGEN_MODEL Access access_of(u32 agent, i32 time, const Issuer& issuer, const Knowledge& known,
                               bool async_proxy) {
  Access access{};
  access.issuer = issuer;
  if (checking(FMHAGEN_CHECK_RACES)) {
    access.seen = &known.seen;
    access.fenced = async_proxy ? &known.fenced : nullptr;
    access.entry = entry_of(agent, time, issuer.operation, issuer.thread);
  }
  return access;
}

// Notes an ordinary write of shared memory by the access's issuer.
FMHAGEN_MODEL void note_lane_write(const Access& access) {
  LaneWrites& writes = lane_writes[access.issuer.thread / LANES];
  writes.unfenced_lanes |= 1ull << access.issuer.thread % LANES;
  writes.last = entries[access.entry].time;
}

// ---- lives: a block's shared memory is there until its last thread leaves -------------------------

// Of one block of a cluster: what its threads knew when they left, and for each agent the last
// operation by which another block reached in.
struct Life {
  Clock known;
  i32 time[MAX_AGENTS];
  Issuer user[MAX_AGENTS];
};

FMHAGEN_STATE Life lives[MAX_CLUSTER];

// `issuer` reaches into the shared memory of block `rank`, at time `time` of `agent`.
FMHAGEN_MODEL void note_reach(u32 rank, u32 agent, i32 time, const Issuer& issuer) {
  if (rank_of(issuer) == rank) return;
  lives[rank].time[agent] = time;
  lives[rank].user[agent] = issuer;
}

FMHAGEN_MODEL void note_exit(const Lane& lane) {
  if (cluster_size > 1) join(lives[lane.rank].known, knowledge[lane.warp].seen);
}

// What reached into a block must have happened before its last thread left.
FMHAGEN_MODEL void check_lives() {
  if (!checking(FMHAGEN_CHECK_RACES)) return;
  for (u32 rank = 0; rank < cluster_size; rank++) {
    const Life& life = lives[rank];
    for (u32 agent = 0; agent < agent_count; agent++) {
      if (life.time[agent] <= life.known.time[agent]) continue;
      fail(FMHAGEN_RACE, life.user[agent],
           "reaches into the shared memory of block %u, whose exit is not ordered after it",
           first_block + rank);
    }
  }
}

FMHAGEN_MODEL void clocks_begin_block() {
  agent_count = warp_count;
  if (cluster_size > 1) memset(lives, 0, sizeof lives);
  entry_count = read_set_count = 1;
  memset(last_entry, 0, sizeof last_entry);
  memset(set_cache, 0, sizeof set_cache);
  memset(knowledge, 0, sizeof(Knowledge) * warp_count);
  memset(lane_writes, 0, sizeof lane_writes);
  for (u32 warp = 0; warp < warp_count; warp++) {
    knowledge[warp].seen.time[warp] = 1;
    writes_generically[warp] = true;
  }
}

}  // namespace emulator
