// Bulk tensor copies of sm90 (PTX ISA 8.8, section 9.7.9.27): bounds, moments, completion.
#pragma once
#include "tensor_map.h"

namespace emulator {

// ---- loads --------------------------------------------------------------------------------------

enum : u32 { MAX_PARTS = 4 };

// A load takes effect in parts of whole rows, each at a moment of its own, each completing its
// bytes on the barrier.
struct Load {
  Issuer issuer;
  Knowledge known;
  const EncodedMap* map;
  Mbarrier* barrier;
  u32 destination;
  i32 corner[MAX_RANK];
  i32 time;
  u32 parts_left;
};

struct LoadPart {
  Event event;
  Load* load;
  u32 first_row;
  u32 end_row;
};

FMHAGEN_MODEL void fire_load(Event& event) {
  LoadPart& part = reinterpret_cast<LoadPart&>(event);
  Load& load = *part.load;
  const EncodedMap& map = *load.map;
  Mbarrier& barrier = *load.barrier;
  Access access = access_of(barrier.loads, load.time, load.issuer, load.known, true);
  u32 bytes = row_bytes(map);
  for (u32 row = part.first_row; row < part.end_row; row++) {
    alignas(16) static u8 data[MAX_ROW_BYTES];
    BoxRow source = find_row(map, load.corner, row);
    if (source.begin != 0 || source.end != bytes) memset(data, 0, bytes);
    if (source.begin < source.end) {
      u32 count = source.end - source.begin;
      memcpy(data + source.begin, global_read(load.issuer, source.address + source.begin, count),
             count);
    }
    for (u32 offset = 0; offset < bytes; offset += CHUNK_BYTES) {
      u32 to = swizzle(load.destination + row * bytes + offset, map.swizzle_bytes);
      memcpy(shared_write(access, to, CHUNK_BYTES), data + offset, CHUNK_BYTES);
    }
  }
  barrier.loaded_phase = barrier.phase + 1;
  mbarrier_add_tx(barrier, load.issuer, -i64((part.end_row - part.first_row) * bytes));
  if (--load.parts_left == 0) {
    mbarrier_load_done(barrier, load.issuer, load.time);
    give(load);
  }
  give(part);
  mbarrier_complete(barrier);
}

// Starts the copy of a box to one block.
FMHAGEN_NOINLINE void load_box(const Issuer& issuer, u32 destination, const EncodedMap& map,
                               u32 barrier_address, const i32 (&corner)[MAX_RANK]) {
  check_box(issuer, map, destination);
  Mbarrier& barrier = find_mbarrier(issuer.operation, barrier_address);
  if (!barrier.fenced) {
    fail_at(FMHAGEN_PROXY, issuer, barrier_address,
            "no mbarrier_init_fence after the barrier's initialisation");
  }
  Load& load = take<Load>();
  load.issuer = barrier.last_load = issuer;
  load.map = &map;
  load.barrier = &barrier;
  load.destination = destination;
  memcpy(load.corner, corner, sizeof load.corner);
  load.time = ++barrier.loads_time;
  note_reach(rank_of(destination), barrier.loads, load.time, issuer);
  snapshot_here(load.known);
  barrier.loads_in_flight++;
  u32 rows = box_rows(map);
  u32 parts = checking(FMHAGEN_CHECK_ADVERSARIAL) ? 2 + random_below(MAX_PARTS - 1) : 1;
  if (parts > rows) parts = rows;
  load.parts_left = parts;
  for (u32 i = 0; i < parts; i++) {
    LoadPart& part = take<LoadPart>();
    part.load = &load;
    part.first_row = rows * i / parts;
    part.end_row = rows * (i + 1) / parts;
    post(part.event, fire_load);
  }
}

// To the running block, or to another of its cluster.
FMHAGEN_MODEL void tma_load(const char* operation, u32 destination, const TensorMap* opaque,
                            u32 barrier, const i32 (&corner)[MAX_RANK], u32 rank) {
  Issuer issuer = issuer_here(operation);
  u32 to = cluster_address_of(issuer.operation, destination);
  u32 completes = cluster_address_of(issuer.operation, barrier);
  if (rank_of(to) != rank_of(completes)) {
    fail_at(FMHAGEN_BARRIER, issuer, completes, "the barrier is another block's than the data");
  }
  load_box(issuer, to, check_map(issuer, opaque, rank), completes, corner);
  preempt();
}

// .multicast::cluster: to the same place in every block of `blocks`, and completes on the barrier in
// the same place there.
FMHAGEN_MODEL void tma_load_multicast(u32 destination, const TensorMap* opaque, u32 barrier,
                                      const i32 (&corner)[MAX_RANK], u32 blocks) {
  Issuer issuer = issuer_here("tma_load_4d_multicast");
  if (!blocks || blocks >> cluster_size) {
    fail(FMHAGEN_OUT_OF_BOUNDS, issuer, "blocks 0x%x of a cluster of %u", blocks, cluster_size);
  }
  const EncodedMap& map = check_map(issuer, opaque, 4);
  u32 to = own_address(issuer.operation, destination) % WINDOW_BYTES;
  u32 completes = own_address(issuer.operation, barrier) % WINDOW_BYTES;
  for (u32 rank = 0; rank < cluster_size; rank++) {
    u32 window = rank * WINDOW_BYTES;
    if (blocks >> rank & 1) load_box(issuer, window + to, map, window + completes, corner);
  }
  preempt();
}

// ---- stores -------------------------------------------------------------------------------------

enum : u32 { MAX_STORE_BYTES = 64 << 10 };

// A store first reads its whole box, then writes it: two moments. wait_read guarantees the
// first, wait the second. Stores belong to the thread that issued them.
struct Store {
  Event event;
  Store* next;  // younger store of the thread
  Issuer issuer;
  Knowledge known;
  const EncodedMap* map;
  u32 source;
  i32 corner[MAX_RANK];
  i32 time;
  bool committed;
  bool has_read;
  bool has_written;
  u8 data[MAX_STORE_BYTES];
};

// The bulk stores of one thread, oldest first.
struct Stores {
  Store* oldest;
  Store* youngest;
  u32 agent;
  i32 time;
  i32 committed_time;
};

FMHAGEN_STATE Stores thread_stores[MAX_THREADS];  // of a cluster

FMHAGEN_MODEL void fire_store_write(Event& event) {
  Store& store = reinterpret_cast<Store&>(event);
  const EncodedMap& map = *store.map;
  u32 bytes = row_bytes(map);
  for (u32 row = 0; row < box_rows(map); row++) {
    BoxRow target = find_row(map, store.corner, row);
    if (target.begin >= target.end) continue;
    u32 count = target.end - target.begin;
    memcpy(global_write(store.issuer, target.address + target.begin, count),
           store.data + row * bytes + target.begin, count);
  }
  store.has_written = true;
}

FMHAGEN_MODEL void fire_store_read(Event& event) {
  Store& store = reinterpret_cast<Store&>(event);
  const EncodedMap& map = *store.map;
  u32 agent = thread_stores[store.issuer.thread].agent;
  Access access = access_of(agent, store.time, store.issuer, store.known, true);
  u32 bytes = row_bytes(map) * box_rows(map);
  for (u32 offset = 0; offset < bytes; offset += CHUNK_BYTES) {
    u32 from = swizzle(store.source + offset, map.swizzle_bytes);
    memcpy(store.data + offset, shared_read(access, from, CHUNK_BYTES), CHUNK_BYTES);
  }
  store.has_read = true;
  post(store.event, fire_store_write);
}

FMHAGEN_MODEL void tma_store(const TensorMap* opaque, u32 source, const i32 (&corner)[MAX_RANK]) {
  Issuer issuer = issuer_here("tma_store_4d");
  source = own_address(issuer.operation, source);
  const EncodedMap& map = check_map(issuer, opaque, 4);
  check_box(issuer, map, source);
  if (row_bytes(map) * box_rows(map) > MAX_STORE_BYTES) {
    fail(FMHAGEN_LIMIT, issuer, "a box of more than %u bytes", u32(MAX_STORE_BYTES));
  }
  Stores& stores = thread_stores[current->thread];
  if (!stores.agent) stores.agent = agent_new();
  Store& store = take<Store>();
  store.issuer = issuer;
  store.map = &map;
  store.source = source;
  memcpy(store.corner, corner, sizeof store.corner);
  store.time = ++stores.time;
  snapshot_here(store.known);
  (stores.oldest ? stores.youngest->next : stores.oldest) = &store;
  stores.youngest = &store;
  post(store.event, fire_store_read);
  preempt();
}

// cp.async.bulk.commit_group
FMHAGEN_MODEL void stores_commit() {
  Stores& stores = thread_stores[current->thread];
  for (Store* store = stores.oldest; store; store = store->next) store->committed = true;
  stores.committed_time = stores.time;
}

// cp.async.bulk.wait_group(.read) 0: only committed groups are waited for.
FMHAGEN_MODEL void stores_wait(bool writes) {
  preempt();
  Stores& stores = thread_stores[current->thread];
  for (Store* store = stores.oldest; store && store->committed; store = store->next) {
    if (!store->has_read) fire_now(store->event);
    if (writes && !store->has_written) fire_now(store->event);
  }
  while (stores.oldest && stores.oldest->committed && stores.oldest->has_written) {
    Store* done = stores.oldest;
    stores.oldest = done->next;
    give(*done);
  }
  if (!stores.agent || !checking(FMHAGEN_CHECK_RACES)) return;
  known_here().seen.time[stores.agent] = stores.committed_time;
  known_here().touched = true;
}

// The thread leaves: its shared memory may be another block's before a store has read it.
FMHAGEN_MODEL void stores_lane_exit(const Lane& lane) {
  const Stores& stores = thread_stores[lane.thread];
  if (!stores.oldest) return;
  const Store& youngest = *stores.youngest;
  if (!youngest.committed) {
    fail(FMHAGEN_UNFINISHED, youngest.issuer, "the thread ends without tma_store_commit");
  }
  if (known_here().seen.time[stores.agent] < youngest.time && checking(FMHAGEN_CHECK_RACES)) {
    fail(FMHAGEN_UNFINISHED, youngest.issuer,
         "the thread ends without tma_store_wait_read, so the block may end before its shared "
         "memory has been read");
  }
}

}  // namespace emulator
