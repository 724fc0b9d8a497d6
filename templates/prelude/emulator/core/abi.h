// The emulator's C interface: what a run is given and what it reports.
// Mirrored field by field with ctypes in fmhagen/runtime/emulator.py; change both together.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
using f32 = float;

enum : u32 { FMHAGEN_ABI_VERSION = 3 };

// Bits of FmhagenRun::checks.
enum : u32 {
  FMHAGEN_CHECK_RACES = 1,        // vector clocks: unordered accesses to shared memory
  FMHAGEN_CHECK_POISON = 2,       // reads of bytes and registers that nobody wrote
  FMHAGEN_CHECK_BANKS = 4,        // count bank conflicts
  FMHAGEN_CHECK_ADVERSARIAL = 8,  // asynchronous operations take effect at seeded moments
  FMHAGEN_CHECK_PREEMPTION = 16,  // warps are interleaved at barrier operations
};

// What a fault is. The names are in report.h, in this order.
enum FmhagenKind : u32 {
  FMHAGEN_OK,
  FMHAGEN_RACE,           // two unordered accesses, one of which writes, or one ahead of a wait
  FMHAGEN_DEADLOCK,       // nobody can run
  FMHAGEN_DIVERGENCE,     // the lanes of a warp-wide instruction do not agree
  FMHAGEN_UNINITIALISED,  // a read of a byte or register that nobody wrote
  FMHAGEN_OUT_OF_BOUNDS,  // an address outside shared memory or every buffer
  FMHAGEN_MISALIGNED,     // an address that the instruction does not accept
  FMHAGEN_BARRIER,        // misuse of a barrier
  FMHAGEN_PROXY,          // a proxy fence is missing
  FMHAGEN_MATRIX,         // misuse of asynchronous matrix operations or their registers
  FMHAGEN_REGISTERS,      // misuse of setmaxnreg
  FMHAGEN_WRITTEN_TWICE,  // an output byte written twice
  FMHAGEN_TENSOR_MAP,     // a tensor map that hardware would refuse
  FMHAGEN_UNFINISHED,     // asynchronous work that nobody waited for
  FMHAGEN_CRASH,          // a signal: a wild pointer, a stack overflow
  FMHAGEN_LIMIT,          // a limit of the emulator, or something that it does not model
  FMHAGEN_LAUNCH,         // a bad run request
  FMHAGEN_KINDS,
};

// How often bytes of a buffer may be written.
enum : u32 {
  FMHAGEN_WRITES_ANY = 0,
  FMHAGEN_WRITES_ONCE = 1,       // filled with poison at the start, and nobody reads that
  FMHAGEN_WRITES_ONCE_KEPT = 2,  // what is there may be read and may stay
};

// A piece of global memory that the kernel may touch.
struct FmhagenBuffer {
  u64 address;
  u64 bytes;
  const char* name;
  u32 writable;
  u32 written_once;  // FMHAGEN_WRITES: a second write of a byte is a fault
  u32 settled;       // of a dependent launch: no kernel that may still run writes it
};

// A named piece of shared memory, for messages: a tile, a stage, a barrier.
struct FmhagenRegion {
  u32 offset;  // from smem_base()
  u32 bytes;
  const char* name;
};

struct FmhagenRun {
  u32 abi_version;
  u32 grid;     // blocks
  u32 threads;  // of a block
  u32 smem_bytes;
  void (*kernel)(const void*);
  const void* params;
  u64 seed;
  u32 checks;
  u32 entry_registers;  // registers a thread at entry; 0 = unknown, setmaxnreg is not accounted
  const FmhagenBuffer* buffers;
  const FmhagenRegion* regions;
  u32 buffer_count;
  u32 region_count;
  u32 stack_bytes;  // of one thread; 0 = the default
  u32 cluster;      // blocks that run together and reach one another's shared memory; 0 = 1
  u64 step_limit;  // scheduler steps after which a run is given up; 0 = none
  u32 dependent;   // the launch may begin before the kernel ahead of it has ended
  u32 leads;       // the launch behind it reads settled buffers ahead of its wait
};

struct FmhagenCounter {
  const char* name;
  u64 value;
};

struct FmhagenBanks {
  const char* name;
  u64 accesses;          // instructions of one warp
  u64 wavefronts;        // passes through the banks that they took
  u64 extra_wavefronts;  // how many of those are conflicts
};

struct FmhagenUse {
  u64 bytes_read;
  u64 bytes_written;
  u64 unwritten;        // bytes of a written_once buffer that nobody wrote
  u64 first_unwritten;  // offset of the first of them
};

enum : u32 { FMHAGEN_MAX_BUFFERS = 64, FMHAGEN_MAX_COUNTERS = 96, FMHAGEN_MAX_BANKS = 16 };

struct FmhagenReport {
  u32 status;  // FmhagenKind; 0 = no fault
  u32 block;   // of the operation at fault
  u32 thread;
  u32 counter_count;
  u32 bank_count;
  u32 agents;  // the most agents that a block, or a cluster, needed
  u64 steps;   // scheduler steps
  u64 switches;
  const char* kind;
  FmhagenCounter counters[FMHAGEN_MAX_COUNTERS];
  FmhagenBanks banks[FMHAGEN_MAX_BANKS];
  FmhagenUse uses[FMHAGEN_MAX_BUFFERS];
  char message[4096];
};
