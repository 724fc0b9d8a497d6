// The emulator's core: what sm90.h and gfx942.h are written on. C headers only.
//
// A target header defines FMHAGEN_WARP_LANES (32 or 64), includes this file, and supplies the
// isa functions at global scope and five hooks in namespace emulator (last section). The emitted
// kernel follows in the same translation unit.
//
// Files: core/abi.h      the C structs of a run and its report (mirrored in Python)
//        core/report.h   faults, random numbers, counters
//        core/context.h  stacks and the switch       core/fibers.h  lanes, warps, rendezvous
//        core/events.h   asynchronous work           core/clocks.h  happens-before
//        core/memory.h   shared memory, its shadow   core/global.h  buffers
//        core/banks.h    bank conflicts              core/poison.h  unwritten registers, 16 bits
//        core/run.h      scheduler, entry point
//
// A function is FMHAGEN_MODEL, and what outlives it FMHAGEN_STATE (core/report.h): kernels are
// compiled apart from the emulator and see both as declarations.
//
// Lanes. Every thread is a fiber. Exactly one runs; `current` is its Lane (thread, warp, lane).
// The blocks of a cluster run together: threads and warps are counted through all of them, and
// lane.rank says which block a lane belongs to.
// A lane runs until it blocks, then the next ready lane of its warp runs, then a random ready
// warp. So plain static data need no locks, and an isa function is atomic up to its next
// `block_on`, `preempt` or `warp_together`.
//     block_on(queue, "mbarrier_wait", describe, a, b)   in a loop: while (!ready) block_on(...)
//     wake_all(queue)                                    the lanes look at their condition again
//     preempt()                                          call it in every barrier operation
//   `describe(lane, text)` explains the wait in a deadlock; lane.wait_a and wait_b are a and b.
//
// Rendezvous. Only where data cross lanes or convergence matters, because each costs a switch a
// lane. All lanes of the warp must come, with the same instruction and argument:
//     warp_together("stmatrix", argument, [&] { ... });  the last lane to come does the work
//     const u32* values = warp_exchange("shuffle", argument, my_value);
//   Where only the *effect* needs all lanes (an asynchronous matrix instruction, a store whose
//   result nobody reads yet), gather each lane's part in a record and let it run on; see
//   sm90/wgmma.h, and keep the wait for it a rendezvous.
//
// Faults. fail(KIND, issuer, format, ...) ends the run; fail_at adds a shared address by name.
// The issuer is who *issued* the operation: take issuer_here("instruction") at issue and keep it.
//
// Counters. FMHAGEN_COUNT("wgmma") where an instruction executes: once a warp for what a warp
// does together, once a lane otherwise.
//
// Events: operations in flight. The first member of the operation is an Event:
//     struct Copy { Event event; Issuer issuer; Knowledge known; ... };
//     Copy& copy = take<Copy>();                  zeroed; give(copy) when done
//     post(copy.event, fire_copy);                takes effect at a seeded moment...
//     fire_now(copy.event);                       ...or here, because a wait guarantees it
//   In `fire`, cast the Event back. An event fires once; order within a queue (LDS, matrix unit)
//   is the target's: fire the older ones first. With adversarial time off, post fires at once.
//   When nothing is ready, a random event fires; when none is left, that is a deadlock.
//
// Clocks (happens-before). Agents 0..warp_count-1 are the warps; agent_new() makes another one in
// target_begin_block or later. A warp's Knowledge is what it has seen, and what of it a proxy
// fence has made visible to the async proxy.
//     release_to(published)                 arrive: publish what this warp knows (joins)
//     acquire_from(published, warp)         wait passed: the warp knows it, too
//     fence_here()                          proxy fence
//     share_lane_writes()                   the lanes of a warp meet (inside warp_together)
//     snapshot_here(operation.known)        issue of an asynchronous operation
//   An asynchronous agent has a time of its own: the target counts it up with each operation (or
//   group), stamps the accesses with it, and lets a wait say
//     knowledge[warp].seen.time[agent] = time of the last operation that the wait covers.
//
// Shared memory: addresses from SMEM_BASE (1024), each block's in a window of its own. On
// a target with clusters, what a kernel takes for an address becomes one of these first
// (sm90/cluster.h). An operation that reaches into another block's says so, note_reach(rank, agent, time, issuer): that block must not
// have left. An access names its operation:
//     Access access = access_here("ds_read");                           an ordinary access
//     Access access = access_of(agent, time, issuer, known, async);     an asynchronous one
//     const u8* bytes = shared_read(access, address, 16);
//     u8* bytes = shared_write(access, address, 16);
//   Both check bounds, never-written bytes and races. check_alignment(issuer, address, 16) is
//   the target's to call, before. Reuse one Access for all pieces of an operation: it caches.
//
// Global memory: host addresses inside the run's buffers:
//     const u8* bytes = global_read(issuer, address, count);   check_global_alignment(...) before
//     u8* bytes = global_write(issuer, address, count);        read-only, written-once
//
// Bank conflicts: static BankKind kind{"ld.shared"}; bank_note(kind, address, bytes) in each lane,
// or bank_count(kind, addresses, lanes present, bytes) where all addresses are at hand.
//
// Poison. Shared memory and written_once buffers start as 0xFF bytes (NaN in every format);
// registers as POISON_REGISTER, or what -ftrivial-auto-var-init=pattern writes. check_register in
// isa functions that consume floats catches both: the NaN keeps its payload through arithmetic.
//
// Hooks: target_begin_run, target_begin_block, target_end_block, target_lane_exit (core/run.h),
// target_wavefronts (core/banks.h).
#pragma once

// What an emitted file says of its functions, its loops and the parameters of its kernel.
#define FMHAGEN_DEVICE static inline
#define FMHAGEN_PARAMS(type) const type& params
#define FMHAGEN_UNROLL


#ifndef FMHAGEN_WARP_LANES
#error "include emulator/sm90.h or emulator/gfx942.h"
#endif

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__clang__) && defined(FMHAGEN_EMULATOR_ELSEWHERE)
#pragma clang diagnostic ignored "-Wstatic-local-in-inline"  // no code is made of those functions
#endif

#ifdef FMHAGEN_EMULATOR_ELSEWHERE
#include "core/poison.h"
#else
#include "core/run.h"
#endif

// The words of the emitted file that mean nothing on a host.
#define __global__ __attribute__((visibility("default")))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
