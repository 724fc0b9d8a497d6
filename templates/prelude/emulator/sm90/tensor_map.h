// Tensor maps, boxes and swizzles of sm90 (PTX ISA 8.8, sections 5.5 and 9.7.9.27).
#pragma once
#include "registers.h"

// Opaque to kernels; see emulator::EncodedMap.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

namespace emulator {

enum : u32 { MAX_RANK = 5 };

// What fmhagen.runtime.emulator.encode_tensor_map packs into a TensorMap. Dimensions are counted
// from the innermost, which has unit stride.
struct EncodedMap {
  u64 magic;
  u64 base;
  u32 rank;
  u32 element_bytes;
  u32 swizzle_bytes;  // 0, 32, 64 or 128
  u32 reserved;
  u64 size[MAX_RANK];              // elements; 1 beyond the rank
  u64 stride_bytes[MAX_RANK - 1];  // of dimensions 1 and up; 0 repeats
  u32 box[MAX_RANK];               // elements; 1 beyond the rank
};

enum : u64 { TENSOR_MAP_MAGIC = 0x50414D524F534E54ull };
enum : u32 { TMA_ALIGNMENT = 128, CHUNK_BYTES = 16, MAX_ROW_BYTES = 2048, SWIZZLE_ROWS = 8 };

// The 16-byte chunk index within a swizzle span is XORed with the index of the 128-byte line:
// 3, 2 or 1 bits from bit 7 of the address on, for 128, 64 or 32 bytes. Hardware does this to
// addresses, so patterns repeat every 1024, 512 or 256 bytes of shared memory.
FMHAGEN_MODEL u32 swizzle(u32 address, u32 swizzle_bytes) {
  u32 lines = swizzle_bytes / CHUNK_BYTES - 1;
  return swizzle_bytes ? address ^ (address >> 7 & lines) << 4 : address;
}

static inline u32 row_bytes(const EncodedMap& map) { return map.box[0] * map.element_bytes; }

FMHAGEN_MODEL u32 box_rows(const EncodedMap& map) {
  return map.box[1] * map.box[2] * map.box[3] * map.box[4];
}

// The map, once it is one that cuTensorMapEncodeTiled would have made; of any rank if `rank` is 0.
FMHAGEN_NOINLINE const EncodedMap& check_map(const Issuer& issuer, const TensorMap* opaque,
                                             u32 rank) {
  const EncodedMap& map = *reinterpret_cast<const EncodedMap*>(opaque);
  const char* fault = nullptr;
  if (reinterpret_cast<u64>(opaque) % 64) {
    fault = "not at a multiple of 64 bytes";
  } else if (map.magic != TENSOR_MAP_MAGIC) {
    fault = "not a tensor map";
  } else if (rank ? map.rank != rank : map.rank != 4 && map.rank != 5) {
    fault = "not of the instruction's rank";
  } else if (map.base % 16) {
    fault = "base address not a multiple of 16";
  } else if (row_bytes(map) % 16 || row_bytes(map) > MAX_ROW_BYTES) {
    fault = "inner box not a multiple of 16 bytes";
  } else if (map.swizzle_bytes && row_bytes(map) != map.swizzle_bytes) {
    fault = "inner box not as wide as the swizzle (narrower ones are not modelled)";
  }
  for (u32 i = 0; i < MAX_RANK; i++) {
    if (!map.box[i] || map.box[i] > 256) fault = "a box dimension not from 1 to 256";
    if (!map.size[i] || map.size[i] > 1ull << 32) fault = "a size not from 1 to 2^32";
    if (i + 1 < MAX_RANK && (map.stride_bytes[i] % 16 || map.stride_bytes[i] >> 40)) {
      fault = "a stride not a multiple of 16 below 2^40";
    }
  }
  if (fault) fail(FMHAGEN_TENSOR_MAP, issuer, "tensor map: %s", fault);
  return map;
}

// The box in shared memory: 128-byte aligned, and with a swizzle at the start of its pattern.
FMHAGEN_NOINLINE void check_box(const Issuer& issuer, const EncodedMap& map, u32 address) {
  u32 alignment = TMA_ALIGNMENT;
  if (map.swizzle_bytes && box_rows(map) >= SWIZZLE_ROWS) {
    alignment = map.swizzle_bytes * SWIZZLE_ROWS;
  }
  check_alignment(issuer, address, alignment);
  check_shared_range(issuer, address, box_rows(map) * row_bytes(map));
}

// One row of a box: which of its bytes [begin, end) lie in the tensor, and where the row's first
// element would be.
struct BoxRow {
  u64 address;
  u32 begin;
  u32 end;
};

FMHAGEN_NOINLINE BoxRow find_row(const EncodedMap& map, const i32* corner, u32 row) {
  u32 index[MAX_RANK - 1];
  for (u32 i = 0; i + 1 < MAX_RANK; row /= map.box[++i]) index[i] = row % map.box[i + 1];
  BoxRow found{map.base, 0, 0};
  for (u32 i = 0; i + 1 < MAX_RANK; i++) {
    i64 at = i64(corner[i + 1]) + index[i];
    if (at < 0 || at >= static_cast<i64>(map.size[i + 1])) return found;
    found.address += static_cast<u64>(at) * map.stride_bytes[i];
  }
  i64 first = corner[0] < 0 ? -i64(corner[0]) : 0;
  i64 last = static_cast<i64>(map.size[0]) - corner[0];
  if (last > map.box[0]) last = map.box[0];
  found.address += static_cast<u64>(i64(corner[0]) * map.element_bytes);
  if (first >= last) return found;
  found.begin = static_cast<u32>(first) * map.element_bytes;
  found.end = static_cast<u32>(last) * map.element_bytes;
  return found;
}

}  // namespace emulator
