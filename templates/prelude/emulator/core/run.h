// A run: its clusters one after another (of one block, mostly), the scheduler, and the exported
// entry point.
#pragma once
#include "poison.h"

namespace emulator {

// What the target header defines. A block's beginning and end are those of all blocks of a cluster.
FMHAGEN_MODEL void target_begin_run();
FMHAGEN_MODEL void target_begin_block();
FMHAGEN_MODEL void target_end_block();          // may fail: work that nobody waited for
FMHAGEN_MODEL void target_lane_exit(Lane& lane);  // may fail: the lane's own work

FMHAGEN_STATE u32 busy;         // one static state: runs of one library take turns
FMHAGEN_STATE int running_tid;  // whose signals are ours

FMHAGEN_MODEL void lane_main() {
  request->kernel(request->params);
  Lane& lane = *current;
  Warp& warp = current_warp();
  if (warp.rendezvous.arrived) {
    fail(FMHAGEN_DIVERGENCE, issuer_here("exit"), "lane %u of the warp is at %s",
         warp.rendezvous.first_thread % LANES, warp.rendezvous.instruction);
  }
  target_lane_exit(lane);
  note_exit(lane);
  lane.done = true;
  warp.done |= 1ull << lane.lane;
  lanes_done++;
  leave_lane(lane);
  __builtin_unreachable();
}

FMHAGEN_MODEL void run_cluster() {
  clocks_begin_block();
  memory_begin_block();
  in_flight_count = 0;
  ready_warps = 0;
  lanes_done = 0;
  memset(static_cast<void*>(warps), 0, sizeof warps);
  for (u32 thread = 0; thread < thread_count; thread++) {
    Lane& lane = lanes[thread];
    lane.thread = thread;
    lane.warp = thread / LANES;
    lane.lane = thread % LANES;
    lane.rank = thread / request->threads;
    lane.done = false;
    lane.has_waited = false;
    lane.operation = nullptr;
    lane.describe = nullptr;
    lane.wait_is_whole_warp = false;
    context_make(lane.context, stack_low(thread), stack_top(thread), lane_main);
    make_ready(lane);
  }
  target_begin_block();
  while (lanes_done < thread_count) {
    report->steps++;
    if (request->step_limit && report->steps > request->step_limit) {
      fail(FMHAGEN_LIMIT, issuer_here("scheduler"), "more than %llu steps", request->step_limit);
    }
    advance_time();
    if (!ready_warps) {
      if (!fire_any()) fail_deadlock();
      continue;
    }
    u64 choice = ready_warps;
    for (u32 skip = random_below(static_cast<u32>(__builtin_popcountll(choice))); skip; skip--) {
      choice &= choice - 1;
    }
    u32 warp = static_cast<u32>(__builtin_ctzll(choice));
    warps[warp].rotation = random_below(LANES);
    current = &take_ready_lane(warp);
    context_switch(scheduler_context, current->context);
  }
  for (u32 warp = 0; warp < warp_count; warp++) rendezvous_released(warp);
  target_end_block();
  check_lives();
  if (agent_count > report->agents) report->agents = agent_count;
}

FMHAGEN_MODEL void scheduler_main() {
  target_begin_run();
  for (first_block = 0; first_block < request->grid; first_block += cluster_size) run_cluster();
  leave_run();
}

// ---- signals: a wild pointer or an overflowing stack is a report, not the end of the process ----

static const int caught_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
FMHAGEN_STATE struct sigaction earlier_actions[4];
FMHAGEN_STATE u8 signal_stack[32 << 10];

FMHAGEN_MODEL void on_signal(int number, siginfo_t* info, void*) {
  if (static_cast<int>(gettid()) != running_tid) {
    signal(number, SIG_DFL);  // not ours: the instruction runs again and gets its default
    return;
  }
  fail(FMHAGEN_CRASH, issuer_here("the kernel's own code"), "%s, address %p",
       number == SIGSEGV && is_guard_page(info->si_addr) ? "stack overflow" : strsignal(number),
       info->si_addr);
}

FMHAGEN_MODEL void signals_begin(stack_t& earlier_stack) {
  running_tid = static_cast<int>(gettid());
  stack_t stack{};
  stack.ss_sp = signal_stack;
  stack.ss_size = sizeof signal_stack;
  sigaltstack(&stack, &earlier_stack);
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // left by a switch, never returned from
  for (u32 i = 0; i < 4; i++) sigaction(caught_signals[i], &action, &earlier_actions[i]);
}

FMHAGEN_MODEL void signals_end(const stack_t& earlier_stack) {
  for (u32 i = 0; i < 4; i++) sigaction(caught_signals[i], &earlier_actions[i], nullptr);
  sigaltstack(&earlier_stack, nullptr);
  running_tid = 0;
}

// ---- the entry point ----------------------------------------------------------------------------

// Memory that is mapped once and kept for the library's next run; pages cost when first touched.
template <class Object>
static bool keep_mapped(Object*& memory, u64 bytes) {
  if (memory) return true;
  void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return false;
  memory = static_cast<Object*>(map);
  return true;
}

enum : u64 { ENTRIES_BYTES = sizeof(Entry) * MAX_ENTRIES, SETS_BYTES = sizeof(ReadSet) * MAX_SETS };

FMHAGEN_MODEL bool memory_map() {
  arena_used = 0;
  return keep_mapped(arena, ARENA_BYTES) && keep_mapped(entries, ENTRIES_BYTES) &&
         keep_mapped(read_sets, SETS_BYTES) &&
         stacks_map(thread_count + 1, request->stack_bytes);
}

// When the library is unloaded.
__attribute__((destructor)) static void memory_unmap() {
  if (arena) munmap(arena, ARENA_BYTES);
  if (entries) munmap(entries, ENTRIES_BYTES);
  if (read_sets) munmap(read_sets, SETS_BYTES);
  stacks_unmap();
}

FMHAGEN_MODEL void fail_launch(const char* text) {
  report->status = FMHAGEN_LAUNCH;
  report->kind = kind_names[FMHAGEN_LAUNCH];
  snprintf(report->message, sizeof report->message, "%s", text);
}

FMHAGEN_MODEL bool request_is_good() {
  if (request->abi_version != FMHAGEN_ABI_VERSION) {
    fail_launch("the library and its caller have different versions of FmhagenRun");
  } else if (!request->kernel) {
    fail_launch("no kernel");
  } else if (!request->threads || request->threads > MAX_BLOCK_THREADS || request->threads % LANES) {
    fail_launch("threads: not a multiple of the warp size, or more than 1024");
  } else if (request->cluster > MAX_CLUSTER || request->cluster * request->threads > MAX_THREADS) {
    fail_launch("cluster: more than 8 blocks, or more than 2048 threads");
  } else if (request->cluster > 1 && request->grid % request->cluster) {
    fail_launch("grid: not a multiple of the cluster");
  } else if (request->smem_bytes > SMEM_MAX_BYTES) {
    fail_launch("smem_bytes: more than the emulator has");
  } else if (request->buffer_count > FMHAGEN_MAX_BUFFERS) {
    fail_launch("buffers: more than 64");
  } else {
    return true;
  }
  return false;
}

FMHAGEN_MODEL void run_request() {
  if (!request_is_good()) return;
  run_number++;
  cluster_size = request->cluster ? request->cluster : 1;
  thread_count = cluster_size * request->threads;
  warp_count = thread_count / LANES;
  random_seed(request->seed);
  u32 scheduler_stack = thread_count;
  if (!memory_map() || !buffers_begin()) {
    fail_launch("out of memory");
  } else {
    stack_t earlier_stack;
    signals_begin(earlier_stack);
    current = nullptr;
    context_make(scheduler_context, stack_low(scheduler_stack), stack_top(scheduler_stack),
                 scheduler_main);
    context_switch(outer_context, scheduler_context);
    signals_end(earlier_stack);
  }
  stacks_join();
  buffers_end();
}

}  // namespace emulator

// Runs a grid. Returns the report's status: 0, or what kind of fault ended the run.
extern "C" __attribute__((visibility("default"), used)) int fmhagen_emulator_run(
    const FmhagenRun* run, FmhagenReport* report) {
  while (__atomic_exchange_n(&emulator::busy, 1u, __ATOMIC_ACQUIRE)) usleep(200);
  emulator::request = run;
  emulator::report = report;
  memset(static_cast<void*>(report), 0, sizeof *report);
  report->kind = emulator::kind_names[FMHAGEN_OK];
  emulator::run_request();
  int status = static_cast<int>(report->status);
  __atomic_store_n(&emulator::busy, 0u, __ATOMIC_RELEASE);
  return status;
}
