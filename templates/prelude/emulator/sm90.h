// The emulator of sm90 (H100, H200): include it before an emitted file, with FMHAGEN_EMULATOR set.
// What is emulated and what is not: docs/emulator.md.
#pragma once
#define FMHAGEN_WARP_LANES 32

#include "core.h"
#include "core/append.h"
#include "core/map.h"
#include "core/merge.h"
#include "sm90/params.h"
#include "sm90/cache.h"
#include "sm90/map.h"
#include "sm90/quantise.h"

namespace emulator {

FMHAGEN_MODEL void target_begin_run() { choose_multiply(); }

FMHAGEN_MODEL void target_begin_block() {
  cluster_begin_block();
  barriers_begin_block();
  registers_begin_block();
  matrix_begin_block();
  async_copies_begin_block();
  memset(static_cast<void*>(thread_stores), 0, sizeof thread_stores);
}

FMHAGEN_MODEL void target_lane_exit(Lane& lane) {
  stores_lane_exit(lane);
  async_copies_lane_exit(lane);
  cluster_lane_exit(lane);
}

FMHAGEN_MODEL void target_end_block() {
  mbarriers_end_block();
  matrix_end_block();
  while (fire_any()) {  // stores whose writes nobody needed to wait for
  }
  registers_end_block();
}

}  // namespace emulator
