// Shared memory with its shadow, and global memory with its bounds.
//
// Shared memory is reached through 32-bit addresses from SMEM_BASE, so that 0 is invalid and
// swizzles are address bits. Each block of a cluster has a window of such addresses; here the
// windows follow one another, so that an address also says whose memory it is. A granule is 4
// bytes: small enough that neighbours do not share one falsely. Order of checks: bounds,
// alignment, never-written bytes, races; then the access.
#pragma once
#include "clocks.h"

namespace emulator {

enum : u32 {
  SMEM_BASE = 1024,
  WINDOW_BYTES = 256 << 10,
  SMEM_MAX_BYTES = WINDOW_BYTES - 2 * SMEM_BASE,
  GRANULE_BYTES = 4,
  WINDOW_GRANULES = WINDOW_BYTES / GRANULE_BYTES,
  GRANULES = MAX_CLUSTER * WINDOW_GRANULES,
  STATE_WRITTEN = 0x0F,  // one bit a byte
  STATE_BARRIER = 0x10,  // the granule belongs to a barrier
};

alignas(64) FMHAGEN_STATE u8 shared_bytes[MAX_CLUSTER * WINDOW_BYTES];
FMHAGEN_STATE u32 granule_writer[GRANULES];   // entry of the last write
FMHAGEN_STATE u32 granule_readers[GRANULES];  // read set since then
alignas(8) FMHAGEN_STATE u8 granule_state[GRANULES];

FMHAGEN_MODEL void memory_begin_block() {
  u32 granules = (request->smem_bytes + SMEM_BASE + GRANULE_BYTES - 1) / GRANULE_BYTES;
  for (u32 rank = 0; rank < cluster_size; rank++) {
    u32 first = rank * WINDOW_GRANULES;
    memset(shared_bytes + rank * WINDOW_BYTES + SMEM_BASE, 0xFF, request->smem_bytes);
    memset(granule_writer + first, 0, granules * sizeof granule_writer[0]);
    memset(granule_readers + first, 0, granules * sizeof granule_readers[0]);
    memset(granule_state + first, 0, granules);
  }
}

// Whose shared memory an address is.
static inline u32 rank_of(u32 address) { return address / WINDOW_BYTES; }

FMHAGEN_MODEL void add_address(Text& text, u32 address) {
  u32 offset = address % WINDOW_BYTES - SMEM_BASE;
  if (cluster_size > 1) text.add("block %u's ", first_block + rank_of(address));
  for (u32 i = 0; i < request->region_count; i++) {
    const FmhagenRegion& region = request->regions[i];
    if (offset - region.offset >= region.bytes) continue;
    text.add("%s", region.name);
    if (offset != region.offset) text.add(" + %u", offset - region.offset);
    text.add(" (shared address %u)", address % WINDOW_BYTES);
    return;
  }
  text.add("shared address %u", address % WINDOW_BYTES);
  if (address % WINDOW_BYTES >= SMEM_BASE) text.add(" (offset %u)", offset);
}

// ---- races --------------------------------------------------------------------------------------

[[noreturn]] __attribute__((cold)) FMHAGEN_NOINLINE void fail_race(
    const Access& access, u32 address, const char* verb, u32 entry, const char* earlier_verb) {
  const Entry& earlier = entries[entry];
  Text text = fault_text();
  text.add("race at ");
  add_address(text, address);
  text.add(": %s of ", verb);
  add_issuer(text, access.issuer);
  text.add(" is not ordered after %s of ", earlier_verb);
  add_issuer(text, Issuer{first_block, earlier.thread, earlier.operation});
  fail_written(FMHAGEN_RACE, access.issuer);
}

[[noreturn]] __attribute__((cold)) FMHAGEN_NOINLINE void fail_proxy(const Access& access,
                                                                    u32 address, u32 entry) {
  const Entry& earlier = entries[entry];
  Text text = fault_text();
  text.add("no proxy fence at ");
  add_address(text, address);
  text.add(": async-proxy ");
  add_issuer(text, access.issuer);
  text.add(" follows the generic-proxy write of ");
  add_issuer(text, Issuer{first_block, earlier.thread, earlier.operation});
  text.add(" without a proxy fence between them");
  fail_written(FMHAGEN_PROXY, access.issuer);
}

// The last write of a granule must happen before the access, and be visible to its proxy.
FMHAGEN_MODEL void order_after_writer(Access& access, u32 granule, const char* verb) {
  u32 writer = granule_writer[granule];
  if (writer == access.ordered_writer) return;
  const Entry& earlier = entries[writer];
  if (access.seen->time[earlier.agent] < earlier.time) {
    fail_race(access, granule * GRANULE_BYTES, verb, writer, "the write");
  }
  if (access.fenced && writes_generically[earlier.agent] &&
      access.fenced->time[earlier.agent] < earlier.time) {
    fail_proxy(access, granule * GRANULE_BYTES, writer);
  }
  access.ordered_writer = writer;
}

FMHAGEN_MODEL void note_read(Access& access, u32 granule) {
  order_after_writer(access, granule, "the read");
  u32& readers = granule_readers[granule];
  if (readers != access.set_from || !access.set_to) {
    access.set_from = readers;
    access.set_to = set_with(readers, access.entry);
  }
  readers = access.set_to;
}

FMHAGEN_MODEL void note_write(Access& access, u32 granule) {
  order_after_writer(access, granule, "the write");
  u32& readers = granule_readers[granule];
  if (readers != access.ordered_readers) {
    for (u32 at = readers; at; at = read_sets[at].rest) {
      const Entry& earlier = entries[read_sets[at].entry];
      if (access.seen->time[earlier.agent] < earlier.time) {
        fail_race(access, granule * GRANULE_BYTES, "the write", read_sets[at].entry, "the read");
      }
    }
    access.ordered_readers = readers;
  }
  readers = 0;
  granule_writer[granule] = access.entry;
}

// ---- shared memory ------------------------------------------------------------------------------

FMHAGEN_MODEL void check_shared_range(const Issuer& issuer, u32 address, u32 bytes) {
  u32 offset = address % WINDOW_BYTES - SMEM_BASE;  // huge if it lies below the base
  if (offset + u64(bytes) > request->smem_bytes || rank_of(address) >= cluster_size) {
    fail_at(FMHAGEN_OUT_OF_BOUNDS, issuer, address,
            "%u bytes outside the block's %u bytes of shared memory", bytes, request->smem_bytes);
  }
}

FMHAGEN_MODEL void check_alignment(const Issuer& issuer, u32 address, u32 alignment) {
  if (address & (alignment - 1)) {
    fail_at(FMHAGEN_MISALIGNED, issuer, address, "not aligned to %u bytes", alignment);
  }
}

// The bits of a granule's state that bytes [address, address + bytes) occupy.
FMHAGEN_MODEL u32 byte_mask(u32 granule, u32 address, u32 bytes) {
  u32 begin = granule * GRANULE_BYTES, mask = STATE_WRITTEN;
  if (address > begin) mask &= mask << (address - begin);
  if (address + bytes < begin + 4) mask &= STATE_WRITTEN >> (begin + 4 - address - bytes);
  return mask & STATE_WRITTEN;
}

FMHAGEN_NOINLINE void check_readable(const Access& access, u32 granule, u32 mask) {
  u32 state = granule_state[granule], address = granule * GRANULE_BYTES;
  if (state & STATE_BARRIER) {
    fail_at(FMHAGEN_BARRIER, access.issuer, address, "an ordinary read of a barrier");
  }
  if ((state & mask) != mask && checking(FMHAGEN_CHECK_POISON)) {
    fail_at(FMHAGEN_UNINITIALISED, access.issuer, address, "a read of bytes that nobody wrote");
  }
}

// Reads bytes of shared memory; the result is where they lie on the host.
FMHAGEN_MODEL const u8* shared_read(Access& access, u32 address, u32 bytes) {
  check_shared_range(access.issuer, address, bytes);
  u32 first = address / GRANULE_BYTES, last = (address + bytes - 1) / GRANULE_BYTES;
  bool races = checking(FMHAGEN_CHECK_RACES);
  for (u32 granule = first; granule <= last; granule++) {
    if (granule_state[granule] != STATE_WRITTEN) {
      check_readable(access, granule, byte_mask(granule, address, bytes));
    }
    if (races) note_read(access, granule);
  }
  return shared_bytes + address;
}

// Claims bytes of shared memory for writing; the caller writes them where the result points.
FMHAGEN_MODEL u8* shared_write(Access& access, u32 address, u32 bytes) {
  check_shared_range(access.issuer, address, bytes);
  u32 first = address / GRANULE_BYTES, last = (address + bytes - 1) / GRANULE_BYTES;
  bool races = checking(FMHAGEN_CHECK_RACES);
  if (races && entries[access.entry].agent < warp_count) note_lane_write(access);
  for (u32 granule = first; granule <= last; granule++) {
    if (granule_state[granule] & STATE_BARRIER) {
      fail_at(FMHAGEN_BARRIER, access.issuer, granule * GRANULE_BYTES, "a write over a barrier");
    }
    granule_state[granule] |= static_cast<u8>(byte_mask(granule, address, bytes));
    if (races) note_write(access, granule);
  }
  return shared_bytes + address;
}

}  // namespace emulator
