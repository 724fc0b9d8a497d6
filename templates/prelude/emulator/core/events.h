// Asynchronous work: events that the scheduler fires at seeded moments.
#pragma once
#include "fibers.h"

namespace emulator {

// ---- objects that live as long as an operation --------------------------------------------------

enum : u64 { ARENA_BYTES = 1ull << 30 };

FMHAGEN_STATE u8* arena;
FMHAGEN_STATE u64 arena_used;
FMHAGEN_STATE u32 run_number;  // pools of an earlier run are void

template <class Object>
struct Pool {
  Object* free;
  u32 run;
};

template <class Object>
static inline Pool<Object>& pool_of() {
  static Pool<Object> pool;
  if (pool.run != run_number) pool = Pool<Object>{nullptr, run_number};
  return pool;
}

// A zeroed object; give it back with `give`. All are gone at the end of the run.
template <class Object>
static inline Object& take() {
  Pool<Object>& pool = pool_of<Object>();
  Object* object = pool.free;
  if (object) {
    memcpy(&pool.free, object, sizeof(void*));
  } else {
    if (arena_used + sizeof(Object) > ARENA_BYTES) {
      fail(FMHAGEN_LIMIT, issuer_here("emulator"), "too many operations in flight");
    }
    object = reinterpret_cast<Object*>(arena + arena_used);
    arena_used += (sizeof(Object) + 63) / 64 * 64;
  }
  memset(static_cast<void*>(object), 0, sizeof *object);
  return *object;
}

template <class Object>
static inline void give(Object& object) {
  Pool<Object>& pool = pool_of<Object>();
  memcpy(static_cast<void*>(&object), &pool.free, sizeof(void*));
  pool.free = &object;
}

// ---- events -------------------------------------------------------------------------------------

// The first member of an operation in flight. `fire` makes it take effect.
struct Event {
  void (*fire)(Event& event);
  u32 countdown;  // scheduler steps, or LAST
  u32 slot;       // in `in_flight`
};

enum : u32 { MAX_EVENTS = 8192, LAST = ~0u };

FMHAGEN_STATE Event* in_flight[MAX_EVENTS];
FMHAGEN_STATE u32 in_flight_count;

FMHAGEN_MODEL void withdraw(Event& event) {
  in_flight[event.slot] = in_flight[--in_flight_count];
  in_flight[event.slot]->slot = event.slot;
}

// Makes an event take effect now: because a wait guarantees it, or because its moment has come.
FMHAGEN_NOINLINE void fire_now(Event& event) {
  withdraw(event);
  event.fire(event);
}

// Lets something that is in flight take effect. False if nothing is.
FMHAGEN_MODEL bool fire_any() {
  if (!in_flight_count) return false;
  fire_now(*in_flight[random_below(in_flight_count)]);
  return true;
}

// Puts an event in flight. Its moment is drawn now: at once, soon, late, or not before it must
// be. Each of these has found faults that the others hide.
FMHAGEN_NOINLINE void post(Event& event, void (*fire)(Event&)) {
  event.fire = fire;
  if (!checking(FMHAGEN_CHECK_ADVERSARIAL)) {
    fire(event);
    return;
  }
  if (in_flight_count == MAX_EVENTS) fire_any();
  switch (random_below(4)) {
    case 0: event.countdown = 0; break;
    case 1: event.countdown = random_below(4); break;
    case 2: event.countdown = random_below(32); break;
    default: event.countdown = LAST; break;
  }
  event.slot = in_flight_count;
  in_flight[in_flight_count++] = &event;
}

// One scheduler step: the moments of some events have come.
FMHAGEN_MODEL void advance_time() {
  for (u32 i = in_flight_count; i-- > 0;) {
    if (i >= in_flight_count) continue;  // firing one event may have withdrawn others
    Event& event = *in_flight[i];
    if (event.countdown == LAST) continue;
    if (event.countdown == 0) {
      fire_now(event);
    } else {
      event.countdown--;
    }
  }
}

}  // namespace emulator
