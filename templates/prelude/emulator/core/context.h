// Contexts: a stack and the registers that a call preserves. A switch costs about 3 ns.
#pragma once
#include "report.h"

#if !defined(__x86_64__)
#define FMHAGEN_EMULATOR_UCONTEXT
#endif
#ifdef FMHAGEN_EMULATOR_UCONTEXT
#include <ucontext.h>
#endif

#if !defined(FMHAGEN_EMULATOR_UCONTEXT) && !defined(FMHAGEN_EMULATOR_ELSEWHERE)
// System V x86-64: a call preserves rbx, rbp, r12-r15 and the stack pointer; the rest is dead
// across it, so that six pushes save a fiber. (swapcontext also saves the signal mask, by a
// system call: 177 ns.)
__asm__(
    ".text\n"
    ".globl fmhagen_emulator_switch\n"
    ".hidden fmhagen_emulator_switch\n"
    ".type fmhagen_emulator_switch, @function\n"
    "fmhagen_emulator_switch:\n"
    "  pushq %rbp\n"
    "  pushq %rbx\n"
    "  pushq %r12\n"
    "  pushq %r13\n"
    "  pushq %r14\n"
    "  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n"
    "  popq %r14\n"
    "  popq %r13\n"
    "  popq %r12\n"
    "  popq %rbx\n"
    "  popq %rbp\n"
    "  ret\n"
    ".size fmhagen_emulator_switch, . - fmhagen_emulator_switch\n");
#endif
#ifndef FMHAGEN_EMULATOR_UCONTEXT
extern "C" __attribute__((visibility("hidden"))) void fmhagen_emulator_switch(void** save,
                                                                              void* load);
#endif

namespace emulator {

#ifndef FMHAGEN_EMULATOR_UCONTEXT

struct Context {
  void* stack_pointer;
};

FMHAGEN_MODEL void context_switch(Context& from, Context& to) {
  fmhagen_emulator_switch(&from.stack_pointer, to.stack_pointer);
}

// A context that starts in `entry` (which never returns) on the stack [low, top).
FMHAGEN_MODEL void context_make(Context& context, u8*, u8* top, void (*entry)()) {
  void** slot = reinterpret_cast<void**>(top);
  *--slot = nullptr;  // a return address that stops a backtrace, and the alignment of a call
  *--slot = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; i++) *--slot = nullptr;
  context.stack_pointer = slot;
}

#else

struct Context {
  ucontext_t state;
};

FMHAGEN_MODEL void context_switch(Context& from, Context& to) {
  swapcontext(&from.state, &to.state);
}

FMHAGEN_MODEL void context_make(Context& context, u8* low, u8* top, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = low;
  context.state.uc_stack.ss_size = static_cast<size_t>(top - low);
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}

#endif

// ---- stacks: one mapping, kept for the next run, a guard page below each while one runs ---------

enum : u32 { DEFAULT_STACK_BYTES = 128 << 10, PAGE_BYTES = 4096, COLOURS = 64, LINE_BYTES = 64 };

FMHAGEN_STATE u8* stacks;
FMHAGEN_STATE u64 stack_pitch;
FMHAGEN_STATE u32 stack_count;

FMHAGEN_MODEL void stacks_unmap() {
  if (stacks) munmap(stacks, stack_pitch * stack_count);
  stacks = nullptr;
}

FMHAGEN_MODEL bool stacks_map(u32 count, u32 bytes) {
  if (!bytes) bytes = DEFAULT_STACK_BYTES;
  u64 pitch = (bytes + 2 * PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
  if (!stacks || stack_count < count || stack_pitch != pitch) {
    stacks_unmap();
    stack_pitch = pitch;
    stack_count = count;
    void* map = mmap(nullptr, pitch * count, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return false;
    stacks = static_cast<u8*>(map);
    // NOTE: a page that is touched before the first guard, so that all pieces count as one mapping's
    // and are joined again.
    stacks[0] = 0;
  }
  for (u32 i = 0; i < count; i++) mprotect(stacks + i * pitch, PAGE_BYTES, PROT_NONE);
  return true;
}

// Between runs there are no guards: each splits the mapping, Linux allows a process 65530 pieces by
// default, and a process may keep many kernels.
FMHAGEN_MODEL void stacks_join() {
  if (stacks) mprotect(stacks, stack_pitch * stack_count, PROT_READ | PROT_WRITE);
}

static inline u8* stack_low(u32 index) { return stacks + index * stack_pitch + PAGE_BYTES; }

// The top of a stack, coloured: equal offsets in equal-sized stacks would share a cache set.
FMHAGEN_MODEL u8* stack_top(u32 index) {
  return stacks + (index + 1) * stack_pitch - (index * 5 % COLOURS) * LINE_BYTES;
}

FMHAGEN_MODEL bool is_guard_page(const void* address) {
  const u8* byte = static_cast<const u8*>(address);
  if (!stacks || byte < stacks || byte >= stacks + stack_pitch * stack_count) return false;
  return static_cast<u64>(byte - stacks) % stack_pitch < PAGE_BYTES;
}

}  // namespace emulator
