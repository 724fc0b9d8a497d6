// Bank conflicts, counted from real addresses. Lanes run one after another, so an instruction's
// addresses are gathered: the n-th access of a lane since the warp last met belongs to the n-th
// access of the others.
#pragma once
#include "global.h"

namespace emulator {

// Passes through the banks that one instruction of a warp takes, and how few it could take.
struct Wavefronts {
  u32 taken;
  u32 ideal;
};

// The target says how an access is cut into passes: `address[lane]` for the lanes in `present`.
FMHAGEN_MODEL Wavefronts target_wavefronts(const u32* address, u64 present, u32 bytes_per_lane);

enum : u32 { BANK_GROUPS = 16, MAX_BANK_KINDS = FMHAGEN_MAX_BANKS };

// A kind of access. A function keeps one in a static variable: `static BankKind kind{"ld.shared"};`
struct BankKind {
  const char* name;
  u32 run;
  u32 slot;
  struct BankGathering* warp;  // [MAX_WARPS], of this run
};

// What a warp's lanes have noted of a kind.
struct BankGathering {
  u32 lane_count[LANES];  // accesses of each lane since the warp last met
  u64 present[BANK_GROUPS];
  u32 bytes[BANK_GROUPS];
  u32 address[BANK_GROUPS][LANES];
  bool open;
};

struct BankGatherings {
  BankGathering warp[MAX_WARPS];
};

FMHAGEN_STATE BankKind* bank_kinds[MAX_BANK_KINDS];

// Gives the kind a row of the report. False if the report is full.
FMHAGEN_MODEL bool bank_register(BankKind& kind) {
  if (kind.run == run_number) return true;
  if (report->bank_count == FMHAGEN_MAX_BANKS) return false;
  kind.run = run_number;
  kind.slot = report->bank_count++;
  report->banks[kind.slot].name = kind.name;
  bank_kinds[kind.slot] = &kind;
  kind.warp = take<BankGatherings>().warp;
  return true;
}

// Counts one whole instruction of a warp.
FMHAGEN_MODEL void bank_count(BankKind& kind, const u32* address, u64 present, u32 bytes) {
  if (!checking(FMHAGEN_CHECK_BANKS) || !bank_register(kind)) return;
  Wavefronts wavefronts = target_wavefronts(address, present, bytes);
  FmhagenBanks& banks = report->banks[kind.slot];
  banks.accesses++;
  banks.wavefronts += wavefronts.taken;
  banks.extra_wavefronts += wavefronts.taken - wavefronts.ideal;
}

FMHAGEN_MODEL void bank_close(BankKind& kind, u32 warp, u32 group) {
  auto& gathered = kind.warp[warp];
  if (!gathered.present[group]) return;
  bank_count(kind, gathered.address[group], gathered.present[group], gathered.bytes[group]);
  gathered.present[group] = 0;
}

// Notes the running lane's part of an instruction.
FMHAGEN_MODEL void bank_note(BankKind& kind, u32 address, u32 bytes) {
  if (!checking(FMHAGEN_CHECK_BANKS) || !bank_register(kind)) return;
  auto& gathered = kind.warp[current->warp];
  u32 group = gathered.lane_count[current->lane]++ % BANK_GROUPS;
  u64 bit = 1ull << current->lane;
  if (gathered.present[group] & bit) bank_close(kind, current->warp, group);
  gathered.address[group][current->lane] = address;
  gathered.bytes[group] = bytes;
  gathered.present[group] |= bit;
  gathered.open = true;
  if (gathered.present[group] == ALL_LANES) bank_close(kind, current->warp, group);
}

// The warp has met: instructions that some lanes skipped are complete, and lanes count alike.
FMHAGEN_MODEL void rendezvous_released(u32 warp) {
  for (u32 i = 0; i < report->bank_count; i++) {
    BankKind& kind = *bank_kinds[i];
    auto& gathered = kind.warp[warp];
    if (!gathered.open) continue;
    for (u32 group = 0; group < BANK_GROUPS; group++) bank_close(kind, warp, group);
    memset(gathered.lane_count, 0, sizeof gathered.lane_count);
    gathered.open = false;
  }
}

// Passes of lanes [first, first + count) through `banks` banks of 4 bytes: the most distinct
// words that one bank must give.
FMHAGEN_MODEL u32 bank_passes(const u32* address, u64 present, u32 first, u32 count,
                              u32 bytes_per_lane, u32 banks) {
  u32 words[LANES * 4], used = 0, load[64] = {}, most = 0;
  for (u32 lane = first; lane < first + count; lane++) {
    if (!(present >> lane & 1)) continue;
    for (u32 offset = 0; offset < bytes_per_lane; offset += 4) {
      u32 word = (address[lane] + offset) / 4, seen = 0;
      while (seen < used && words[seen] != word) seen++;
      if (seen < used) continue;
      words[used++] = word;
      u32& passes = load[word % banks];
      if (++passes > most) most = passes;
    }
  }
  return most;
}

}  // namespace emulator
