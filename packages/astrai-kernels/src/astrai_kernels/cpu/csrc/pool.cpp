#include "pool.h"

#include <pthread.h>

#include "export.h"
#include "simd.h"

namespace astrai {
namespace {

// Looks at memory before sleeping: about a tenth of a millisecond.
constexpr int kSpins = 4000;
// Looks between offers of the core to somebody else, while a piece is being finished.
constexpr int kSpinsPerYield = 2000;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint64_t round_of(uint64_t ticket) { return ticket >> 32; }
uint32_t left_of(uint64_t ticket) { return (uint32_t)ticket; }

Pool* pool = nullptr;
int requested_threads = 1;

void forget_in_child() { pool = nullptr; }

}  // namespace

Pool& Pool::get() {
  static std::mutex creation;
  static bool is_registered = false;
  std::lock_guard<std::mutex> lock(creation);
  if (!is_registered) {
    pthread_atfork(nullptr, nullptr, forget_in_child);
    is_registered = true;
  }
  if (pool == nullptr) {
    pool = new Pool;  // lives as long as its threads: for ever
    pool->num_threads_ = requested_threads;
  }
  return *pool;
}

void Pool::set_num_threads(int count) {
  const auto held = lock();
  requested_threads = count < 1 ? 1 : count;
  stop_workers();
  num_threads_ = requested_threads;
}

void Pool::share(Call call, void* bound, uint32_t count) {
  if (workers_.empty()) start_workers();
  call_.store(call, std::memory_order_relaxed);
  bound_.store(bound, std::memory_order_relaxed);
  count_.store(count, std::memory_order_relaxed);
  num_done_.store(0, std::memory_order_relaxed);
  const uint64_t round = (round_of(ticket_.load(std::memory_order_relaxed)) + 1) & 0xffffffff;
  ticket_.store(round << 32 | count, std::memory_order_seq_cst);
  if (num_asleep_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> lock(sleep_);
    wake_.notify_all();
  }
  uint32_t done = 0, piece;
  for (; draw(round, piece); ++done) call(bound, piece);
  num_done_.fetch_add(done, std::memory_order_acq_rel);
  for (int i = 1; num_done_.load(std::memory_order_acquire) != count; ++i) {
    relax();
    if (i % kSpinsPerYield == 0) std::this_thread::yield();
  }
}

// Draws the next piece of a round; false when there is none.
bool Pool::draw(uint64_t round, uint32_t& piece) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (round_of(ticket) == round && left_of(ticket) > 0) {
    if (ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) {
      piece = count_.load(std::memory_order_relaxed) - left_of(ticket);
      return true;
    }
  }
  return false;
}

void Pool::start_workers() {
  for (int thread = 1; thread < num_threads_; ++thread) workers_.emplace_back(&Pool::work, this);
}

void Pool::stop_workers() {
  {
    std::lock_guard<std::mutex> lock(sleep_);
    is_stopping_.store(true);
    wake_.notify_all();
  }
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
  is_stopping_.store(false);
}

void Pool::work() {
  uint64_t seen = 0;
  for (;;) {
    await_round_after(seen);
    if (is_stopping_.load()) return;
    seen = round_of(ticket_.load(std::memory_order_acquire));
    const Call call = call_.load(std::memory_order_relaxed);
    void* const bound = bound_.load(std::memory_order_relaxed);
    uint32_t done = 0, piece;
    for (; draw(seen, piece); ++done) call(bound, piece);
    // A round that went on without this thread has no place for its count.
    if (done > 0) num_done_.fetch_add(done, std::memory_order_acq_rel);
  }
}

void Pool::await_round_after(uint64_t seen) {
  const auto is_due = [&] {
    return round_of(ticket_.load(std::memory_order_seq_cst)) != seen || is_stopping_.load();
  };
  for (int i = 0; i < kSpins; ++i) {
    if (is_due()) return;
    relax();
  }
  std::unique_lock<std::mutex> lock(sleep_);
  num_asleep_.fetch_add(1, std::memory_order_seq_cst);
  wake_.wait(lock, is_due);
  num_asleep_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace astrai

ASTRAI_EXPORT void astrai_set_num_threads(int count) { astrai::Pool::get().set_num_threads(count); }

ASTRAI_EXPORT int astrai_num_threads() { return astrai::Pool::get().num_threads(); }

// The instruction set the library was compiled for.
ASTRAI_EXPORT const char* astrai_instruction_set() {
#if ASTRAI_AVX2
  return "AVX2";
#else
  return "portable";
#endif
}
