// Faults, messages, counters and the random numbers of a run.
#pragma once
#include "abi.h"

// The emulator and a kernel are one translation unit, or two: then the emulator is compiled once and
// well (FMHAGEN_EMULATOR_ALONE), and each kernel without it, at -O0 (FMHAGEN_EMULATOR_ELSEWHERE).
// The kernel's unit sees the same text, as declarations: no code is made of a gnu_inline function
// that is not inlined. Templates and functions of one line are compiled where they are called.
#if defined(FMHAGEN_EMULATOR_ALONE)
#define FMHAGEN_MODEL inline __attribute__((used))
#define FMHAGEN_NOINLINE __attribute__((noinline))
#define FMHAGEN_STATE
#define FMHAGEN_FROM_THE_START(...) = __VA_ARGS__
#elif defined(FMHAGEN_EMULATOR_ELSEWHERE)
#define FMHAGEN_MODEL extern inline __attribute__((gnu_inline))
#define FMHAGEN_NOINLINE FMHAGEN_MODEL
#define FMHAGEN_STATE extern
#define FMHAGEN_FROM_THE_START(...)
#else
#define FMHAGEN_MODEL static inline
// For functions that many places call: inlining them costs compile time, which is what a user of
// the emulator waits for, and saves little.
#define FMHAGEN_NOINLINE __attribute__((noinline)) static
#define FMHAGEN_STATE static
#define FMHAGEN_FROM_THE_START(...) = __VA_ARGS__
#endif

namespace emulator {

FMHAGEN_STATE FmhagenReport* report;      // of the run in progress
FMHAGEN_STATE const FmhagenRun* request;  // of the run in progress

static const char* const kind_names[FMHAGEN_KINDS] = {
    "ok",       "race",       "deadlock",      "divergence",   "uninitialised", "out_of_bounds",
    "misaligned", "barrier",  "proxy",         "matrix",       "registers",     "written_twice",
    "tensor_map", "unfinished", "crash",       "limit",        "launch",
};

// Whether the run asked for the check FMHAGEN_CHECK_*.
static inline bool checking(u32 check) { return (request->checks & check) != 0; }

// ---- random numbers: xorshift64*, one stream a run ----------------------------------------------

FMHAGEN_STATE u64 random_state;

FMHAGEN_MODEL u64 random_next() {
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return random_state * 0x2545F4914F6CDD1Dull;
}

// A number in [0, limit).
FMHAGEN_MODEL u32 random_below(u32 limit) {
  return static_cast<u32>(((random_next() >> 32) * limit) >> 32);
}

// splitmix64's mixing: seeds 0, 1, 2... give unrelated streams.
FMHAGEN_MODEL void random_seed(u64 seed) {
  seed += 0x9E3779B97F4A7C15ull;
  seed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9ull;
  seed = (seed ^ (seed >> 27)) * 0x94D049BB133111EBull;
  random_state = (seed ^ (seed >> 31)) | 1;
}

// ---- text ---------------------------------------------------------------------------------------

// A bounded text that is appended to; what does not fit is dropped.
struct Text {
  char* at;
  u32 left;

  __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    add_list(format, arguments);
    va_end(arguments);
  }

  void add_list(const char* format, va_list arguments) {
    int count = vsnprintf(at, left, format, arguments);
    u32 used = count < 0 ? 0 : static_cast<u32>(count);
    if (used >= left) used = left - 1;
    at += used;
    left -= used;
  }
};

// Who issued an operation. Faults name the issuer, not the lane that happened to run when the
// operation took effect. `block` is the first of the cluster; `thread` counts through its blocks.
struct Issuer {
  u32 block;
  u32 thread;
  const char* operation;
  bool is_early = false;  // of a dependent launch: the thread has not waited for the kernel ahead
};

static inline u32 rank_of(const Issuer& issuer) { return issuer.thread / request->threads; }

static inline u32 block_of(const Issuer& issuer) { return issuer.block + rank_of(issuer); }

static inline u32 thread_of(const Issuer& issuer) { return issuer.thread % request->threads; }

FMHAGEN_MODEL void add_issuer(Text& text, const Issuer& issuer) {
  u32 thread = thread_of(issuer);
  text.add("%s by block %u, warp %u, lane %u (thread %u)", issuer.operation, block_of(issuer),
           thread / FMHAGEN_WARP_LANES, thread % FMHAGEN_WARP_LANES, thread);
}

FMHAGEN_MODEL void add_address(Text& text, u32 address);  // memory.h
[[noreturn]] FMHAGEN_MODEL void leave_run();               // fibers.h

FMHAGEN_MODEL Text fault_text() {
  return Text{report->message, static_cast<u32>(sizeof report->message)};
}

// Marks the run as failed and leaves it; report->message is already written.
[[noreturn]] FMHAGEN_MODEL void fail_written(u32 kind, const Issuer& issuer) {
  report->status = kind;
  report->kind = kind_names[kind];
  report->block = block_of(issuer);
  report->thread = thread_of(issuer);
  leave_run();
}

// Ends the run with a fault: "<operation> by block b, warp w, lane l (thread t): <text>".
[[noreturn]] __attribute__((format(printf, 3, 4), cold)) FMHAGEN_NOINLINE void fail(
    u32 kind, const Issuer& issuer, const char* format, ...) {
  Text text = fault_text();
  add_issuer(text, issuer);
  text.add(": ");
  va_list arguments;
  va_start(arguments, format);
  text.add_list(format, arguments);
  va_end(arguments);
  fail_written(kind, issuer);
}

// The same, and names the shared-memory address at the end.
[[noreturn]] __attribute__((format(printf, 4, 5), cold)) FMHAGEN_NOINLINE void fail_at(
    u32 kind, const Issuer& issuer, u32 address, const char* format, ...) {
  Text text = fault_text();
  add_issuer(text, issuer);
  text.add(": ");
  va_list arguments;
  va_start(arguments, format);
  text.add_list(format, arguments);
  va_end(arguments);
  text.add(" at ");
  add_address(text, address);
  fail_written(kind, issuer);
}

// ---- counters -----------------------------------------------------------------------------------

// Finds or makes the counter called `name`; past the last slot if the report is full.
FMHAGEN_NOINLINE u32 find_counter(const char* name) {
  u32 slot = 0;
  while (slot < report->counter_count && strcmp(report->counters[slot].name, name)) slot++;
  if (slot == report->counter_count && slot < FMHAGEN_MAX_COUNTERS) {
    report->counters[report->counter_count++] = {name, 0};
  }
  return slot;
}

// Adds to the counter called `name`, a literal that outlives the run. The caller keeps the slot,
// which is looked up anew when a run has started a new report.
FMHAGEN_MODEL void count(u32& slot, const char* name, u64 amount = 1) {
  if (slot >= report->counter_count || report->counters[slot].name != name) {
    slot = find_counter(name);
    if (slot >= report->counter_count) return;
  }
  report->counters[slot].value += amount;
}

}  // namespace emulator

// Counts `amount` executions of the instruction `name`.
#define FMHAGEN_COUNT_MANY(name, amount)          \
  do {                                            \
    static u32 counter_slot = ~0u;                \
    emulator::count(counter_slot, name, (amount)); \
  } while (0)
#define FMHAGEN_COUNT(name) FMHAGEN_COUNT_MANY(name, 1)
