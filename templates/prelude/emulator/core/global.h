// Global memory: host memory, within the buffers that the run was given.
#pragma once
#include "memory.h"

namespace emulator {

// For each byte of a buffer that is written once: 0, or 1 + the block that wrote it, modulo 65535.
FMHAGEN_STATE u16* written_by[FMHAGEN_MAX_BUFFERS];
FMHAGEN_STATE u32 last_buffer;

FMHAGEN_MODEL bool buffers_begin() {
  for (u32 i = 0; i < request->buffer_count; i++) {
    const FmhagenBuffer& buffer = request->buffers[i];
    written_by[i] = nullptr;
    if (!buffer.written_once || !buffer.bytes) continue;
    if (buffer.written_once == FMHAGEN_WRITES_ONCE) {
      memset(reinterpret_cast<void*>(buffer.address), 0xFF, buffer.bytes);
    }
    void* map = mmap(nullptr, buffer.bytes * 2, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return false;
    written_by[i] = static_cast<u16*>(map);
  }
  last_buffer = 0;
  return true;
}

// Reports what of the poisoned buffers is still unwritten, and frees all shadows.
FMHAGEN_MODEL void buffers_end() {
  for (u32 i = 0; i < request->buffer_count; i++) {
    const FmhagenBuffer& buffer = request->buffers[i];
    FmhagenUse& use = report->uses[i];
    if (!written_by[i]) continue;
    for (u64 byte = 0; byte < buffer.bytes; byte++) {
      if (written_by[i][byte] || buffer.written_once == FMHAGEN_WRITES_ONCE_KEPT) continue;
      if (!use.unwritten++) use.first_unwritten = byte;
    }
    munmap(written_by[i], buffer.bytes * 2);
    written_by[i] = nullptr;
  }
}

// The buffer that holds [address, address + bytes); `verb` is "read" or "write".
FMHAGEN_MODEL u32 find_buffer(const Issuer& issuer, u64 address, u64 bytes, const char* verb) {
  const FmhagenBuffer* buffers = request->buffers;
  u32 found = last_buffer;
  u32 count = request->buffer_count;
  for (u32 tried = 0; tried <= count && count; tried++, found = tried - 1) {
    const FmhagenBuffer& buffer = buffers[found];
    if (address - buffer.address >= buffer.bytes) continue;
    u64 offset = address - buffer.address;
    if (offset + bytes > buffer.bytes) {
      fail(FMHAGEN_OUT_OF_BOUNDS, issuer, "a %s of %llu bytes at offset %llu of %s, which has %llu",
           verb, bytes, offset, buffer.name, buffer.bytes);
    }
    if (issuer.is_early && !buffer.settled && checking(FMHAGEN_CHECK_RACES)) {
      fail(FMHAGEN_RACE, issuer,
           "a %s of offset %llu of %s ahead of wait_for_primary: the kernel ahead of this one may "
           "still use it",
           verb, offset, buffer.name);
    }
    return last_buffer = found;
  }
  fail(FMHAGEN_OUT_OF_BOUNDS, issuer, "a %s of %llu bytes at 0x%llx, in no buffer", verb, bytes,
       address);
}

FMHAGEN_MODEL void check_global_alignment(const Issuer& issuer, u64 address, u32 alignment) {
  if (address & (alignment - 1)) {
    fail(FMHAGEN_MISALIGNED, issuer, "global address 0x%llx is not aligned to %u bytes", address,
         alignment);
  }
}

// Checks a read of global memory; the caller reads where the result points.
FMHAGEN_NOINLINE const u8* global_read(const Issuer& issuer, u64 address, u64 bytes) {
  u32 buffer = find_buffer(issuer, address, bytes, "read");
  report->uses[buffer].bytes_read += bytes;
  const u16* written = written_by[buffer];
  const FmhagenBuffer& read = request->buffers[buffer];
  if (written && read.written_once == FMHAGEN_WRITES_ONCE && checking(FMHAGEN_CHECK_POISON)) {
    u64 offset = address - read.address;
    for (u64 byte = offset; byte < offset + bytes; byte++) {
      if (!written[byte]) {
        fail(FMHAGEN_UNINITIALISED, issuer, "a read of byte %llu of %s, which nobody wrote", byte,
             read.name);
      }
    }
  }
  return reinterpret_cast<const u8*>(address);
}

// Checks a write of global memory; the caller writes where the result points.
FMHAGEN_NOINLINE u8* global_write(const Issuer& issuer, u64 address, u64 bytes) {
  u32 index = find_buffer(issuer, address, bytes, "write");
  const FmhagenBuffer& buffer = request->buffers[index];
  if (!buffer.writable) {
    fail(FMHAGEN_OUT_OF_BOUNDS, issuer, "a write of %llu bytes to %s, which is read-only", bytes,
         buffer.name);
  }
  report->uses[index].bytes_written += bytes;
  if (u16* written = written_by[index]) {
    u64 offset = address - buffer.address;
    for (u64 byte = offset; byte < offset + bytes; byte++) {
      if (written[byte]) {
        fail(FMHAGEN_WRITTEN_TWICE, issuer, "byte %llu of %s was already written by block %u",
             byte, buffer.name, written[byte] - 1u);
      }
      written[byte] = static_cast<u16>(block_of(issuer) % 65535 + 1);
    }
  }
  return reinterpret_cast<u8*>(address);
}

// An atomic maximum of a float in global memory. NOTE: it is no write in the sense of "once at most": many threads may
// raise one number, in any order.
FMHAGEN_MODEL void raise_float(const Issuer& issuer, f32* address, f32 value) {
  u64 where = reinterpret_cast<u64>(address);
  check_global_alignment(issuer, where, 4);
  u32 index = find_buffer(issuer, where, 4, "atomic maximum");
  if (!request->buffers[index].writable) {
    fail(FMHAGEN_OUT_OF_BOUNDS, issuer, "an atomic maximum in %s, which is read-only",
         request->buffers[index].name);
  }
  report->uses[index].bytes_written += 4;
  f32 before;
  memcpy(&before, global_read(issuer, where, 4), 4);
  if (value > before) memcpy(reinterpret_cast<u8*>(where), &value, 4);
}

}  // namespace emulator
