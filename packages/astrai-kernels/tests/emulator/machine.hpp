// A machine that runs blocks of CUDA threads, one block after the other, one fiber per thread.
//
// A thread runs until it has to meet others: at a barrier, or in an operation of its warp. Which
// thread runs next is the schedule's choice, so a missing barrier shows as a wrong result under
// one schedule or another: shared memory starts as NaN.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fiber.hpp"

namespace emulator {

enum class Schedule { in_order, reversed, random, greedy };  // greedy: one warp runs far ahead
enum class Copies { lazy, eager, random };                   // when asynchronous copies happen

constexpr unsigned warp_size = 32;

struct Place {  // in a kernel's source
  const char* file;
  int line;
  std::string text() const {
    const char* name = std::strrchr(file, '/');
    return std::string(name ? name + 1 : file) + ":" + std::to_string(line);
  }
};

struct Copy {
  void* to;
  const void* from;  // null: zeros
  unsigned bytes;
};

struct Thread {
  enum State { ready, waiting, done };
  unsigned index = 0;
  State state = ready;
  Fiber fiber;
  const char* waits_for = "";
  Place place{"", 0};
  std::deque<std::vector<Copy>> copies;  // groups on their way; the last one is still open
};

// Where a number of threads meet.
struct Meeting {
  // What release and acquire name: another one in each block, so that blocks order nothing.
  std::unique_ptr<char> order = std::make_unique<char>();
  unsigned arrived = 0;
  const char* what = "";
  Place place{"", 0};
};

struct Warp {
  Meeting meeting;
  alignas(16) unsigned char given[warp_size][64], taken[warp_size][64];
};

struct Counts {  // of one launch
  long barriers, warp_operations, matrix_products, matrix_loads, bank_conflicts;
};

struct Machine {
  Schedule schedule;
  Copies copies;
  std::mt19937 random;
  std::string error;
  Counts counts;

  unsigned block[3];
  std::vector<void*> stacks;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Meeting barrier;
  unsigned char* shared;
  std::size_t shared_bytes;

  char finished;  // what all threads did comes before what follows the launch
  Fiber scheduler;
  Thread* running;
  void (*kernel)(const void* params);
  const void* params;
};

inline Machine& machine() {
  static Machine the_machine;
  return the_machine;
}

inline std::string name_of(const Thread& thread) {
  const unsigned* block = machine().block;
  return "thread " + std::to_string(thread.index) + " of block (" + std::to_string(block[0]) +
         ", " + std::to_string(block[1]) + ", " + std::to_string(block[2]) + ")";
}

inline void pause(bool last = false) {
  Machine& m = machine();
  switch_fiber(m.running->fiber, m.scheduler, last);
}

// Ends the launch with an error; does not return.
[[noreturn]] inline void fail(const std::string& message, Place place) {
  Machine& m = machine();
  m.error = message + " at " + place.text() + ", " + name_of(*m.running);
  pause(true);
  std::abort();
}

// Waits until `size` threads, from `first` on, have called this; the last one runs `complete`.
// All have to come from the same place. Orders their memory accesses only if it `synchronises`.
template <class Complete>
void meet(Meeting& meeting, unsigned first, unsigned size, const char* what, Place place,
          bool synchronises, Complete complete) {
  Machine& m = machine();
  Thread& self = *m.running;
  if (meeting.arrived == 0) {
    meeting.what = what;
    meeting.place = place;
  } else if (meeting.what != what || meeting.place.line != place.line) {
    fail(std::string(what) + " meets " + meeting.what + " of " + meeting.place.text(), place);
  }
  if (synchronises) release(meeting.order.get());
  if (++meeting.arrived == size) {
    meeting.arrived = 0;
    complete();
    for (unsigned i = first; i < first + size; ++i) m.threads[i].state = Thread::ready;
    if (m.schedule != Schedule::in_order) pause();  // no advantage for who came last
  } else {
    self.state = Thread::waiting;
    self.waits_for = what;
    self.place = place;
    pause();
  }
  if (synchronises) acquire(meeting.order.get());
}

// An operation of a warp: `combine(given, taken)` turns what all lanes give into what each takes.
template <class Taken, class Given, class Combine>
Taken with_warp(const char* what, Place place, const Given& given, Combine combine) {
  static_assert(sizeof(Given) <= 64 && sizeof(Taken) <= 64);
  Unobserved scope;
  Machine& m = machine();
  const unsigned lane = m.running->index % warp_size, warp = m.running->index / warp_size;
  Warp& w = m.warps[warp];
  std::memcpy(w.given[lane], &given, sizeof(Given));
  meet(w.meeting, warp * warp_size, warp_size, what, place, false, [&] {
    Given all[warp_size];
    Taken results[warp_size];
    for (unsigned i = 0; i < warp_size; ++i) std::memcpy(&all[i], w.given[i], sizeof(Given));
    combine(all, results);
    for (unsigned i = 0; i < warp_size; ++i) std::memcpy(w.taken[i], &results[i], sizeof(Taken));
    ++m.counts.warp_operations;
  });
  Taken taken;
  std::memcpy(&taken, w.taken[lane], sizeof(Taken));
  return taken;
}

inline void end_thread() {
  Unobserved scope;
  Machine& m = machine();
  for (const auto& group : m.running->copies)
    if (!group.empty()) fail("a thread ends with copies on their way", m.running->place);
  m.running->state = Thread::done;
  release(&m.finished);
}

inline void thread_body() {
  Machine& m = machine();
  arrive(m.scheduler);
  m.kernel(m.params);
  end_thread();
  pause(true);
}

// The threads that run before the next choice, in their order.
inline std::vector<Thread*> choose(const std::vector<unsigned>& warp_ranks) {
  Machine& m = machine();
  std::vector<Thread*> chosen;
  for (Thread& thread : m.threads)
    if (thread.state == Thread::ready) chosen.push_back(&thread);
  if (m.schedule == Schedule::reversed) std::reverse(chosen.begin(), chosen.end());
  if (m.schedule == Schedule::random) std::shuffle(chosen.begin(), chosen.end(), m.random);
  if (m.schedule == Schedule::greedy && !chosen.empty()) {
    const auto rank = [&](const Thread* t) { return warp_ranks[t->index / warp_size]; };
    const unsigned first = rank(*std::min_element(
        chosen.begin(), chosen.end(), [&](auto* a, auto* b) { return rank(a) < rank(b); }));
    std::erase_if(chosen, [&](const Thread* t) { return rank(t) != first; });
  }
  return chosen;
}

inline std::string deadlock() {
  std::string message = "deadlock:";
  int shown = 0;
  for (const Thread& thread : machine().threads)
    if (thread.state == Thread::waiting && shown++ < 3)
      message += " " + name_of(thread) + " waits in " + thread.waits_for + " at " +
                 thread.place.text() + ";";
  return message;
}

inline void run_block() {
  Machine& m = machine();
  m.barrier = Meeting();
  m.warps.clear();
  m.warps.resize(m.threads.size() / warp_size);
  for (Thread& thread : m.threads) {
    thread.state = Thread::ready;
    thread.copies.assign(1, {});
    prepare(thread.fiber, m.stacks[thread.index], thread_body);
  }
  std::vector<unsigned> warp_ranks(m.warps.size());
  for (unsigned i = 0; i < warp_ranks.size(); ++i) warp_ranks[i] = i;
  std::shuffle(warp_ranks.begin(), warp_ranks.end(), m.random);
  const auto is_done = [](const Thread& thread) { return thread.state == Thread::done; };
  while (m.error.empty() && !std::all_of(m.threads.begin(), m.threads.end(), is_done)) {
    const std::vector<Thread*> chosen = choose(warp_ranks);
    if (chosen.empty()) m.error = deadlock();
    for (Thread* thread : chosen) {
      if (thread->state != Thread::ready || !m.error.empty()) continue;
      m.running = thread;
      switch_fiber(m.scheduler, thread->fiber, false);
    }
  }
  for (Thread& thread : m.threads) m.stacks[thread.index] = retire(thread.fiber);
}

// Runs all blocks of a grid; returns whether no error was found (else it is in machine().error).
inline bool launch(void (*kernel)(const void*), const void* params, const unsigned (&grid)[3],
                   unsigned num_threads, std::size_t shared_bytes) {
  Unobserved scope;
  Machine& m = machine();
  m.kernel = kernel;
  m.params = params;
  m.error.clear();
  m.counts = Counts();
  m.shared_bytes = shared_bytes;
  while (m.stacks.size() < num_threads) m.stacks.push_back(new_stack());
  m.threads.resize(num_threads);
  for (unsigned i = 0; i < num_threads; ++i) m.threads[i].index = i;
#if defined(__SANITIZE_THREAD__)
  m.scheduler.observer = __tsan_get_current_fiber();
#endif
  std::vector<unsigned> order(grid[0] * grid[1] * grid[2]);
  for (unsigned i = 0; i < order.size(); ++i) order[i] = i;
  if (m.schedule == Schedule::reversed) std::reverse(order.begin(), order.end());
  if (m.schedule == Schedule::random) std::shuffle(order.begin(), order.end(), m.random);
  for (unsigned i : order) {
    m.block[0] = i % grid[0];
    m.block[1] = i / grid[0] % grid[1];
    m.block[2] = i / grid[0] / grid[1];
    // Allocated anew, to the byte: AddressSanitizer watches both its ends.
    m.shared = static_cast<unsigned char*>(::operator new(shared_bytes, std::align_val_t(128)));
    std::memset(m.shared, 0xFF, shared_bytes);
    run_block();
    ::operator delete(m.shared, std::align_val_t(128));
    if (!m.error.empty()) return false;
  }
  acquire(&m.finished);
  return true;
}

}  // namespace emulator
