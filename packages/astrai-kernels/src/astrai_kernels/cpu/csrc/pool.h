// One pool of threads for all kernels.
//
// Work is a number of pieces. The caller and the pool's threads take one after the other until
// none is left; the caller waits only for pieces that others have begun. So a thread that the
// system has put aside, or that still sleeps, holds up nobody: the others do its share.
//
// An idle thread looks for work for a tenth of a millisecond, which spans the gap between the
// phases of a step, and then sleeps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace astrai {

class Pool {
 public:
  // The process's pool. A forked child gets a new one: its parent's threads are not there.
  static Pool& get();

  int num_threads() const { return num_threads_; }
  // At least 1.
  void set_num_threads(int count);

  // Held by a kernel from its first use of shared memory to its last piece: one runs at a time.
  std::unique_lock<std::mutex> lock() { return std::unique_lock<std::mutex>(entry_); }

  // Calls run(piece) once for each piece below count, on any thread, and returns when all are
  // done. The caller holds the lock.
  template <class Run>
  void each(int64_t count, Run&& run) {
    if (count <= 1 || num_threads_ == 1) {
      for (int64_t piece = 0; piece < count; ++piece) run(piece);
      return;
    }
    typedef typename std::remove_reference<Run>::type Bound;
    share([](void* bound, int64_t piece) { (*static_cast<Bound*>(bound))(piece); }, &run,
          (uint32_t)count);
  }

 private:
  typedef void (*Call)(void* bound, int64_t piece);

  void share(Call call, void* bound, uint32_t count);
  bool draw(uint64_t round, uint32_t& piece);
  void start_workers();
  void stop_workers();
  void work();
  void await_round_after(uint64_t seen);

  std::mutex entry_;
  int num_threads_ = 1;
  std::vector<std::thread> workers_;
  std::mutex sleep_;
  std::condition_variable wake_;
  // The pieces being run. Written only when all of the last round are done. What a thread reads
  // here belongs to the round it then draws a piece of: a round gone by has none left.
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> bound_{nullptr};
  std::atomic<uint32_t> count_{0};
  std::atomic<bool> is_stopping_{false};
  // The round, in the upper half, and how many of its pieces are left to draw.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> num_done_{0};
  alignas(64) std::atomic<int> num_asleep_{0};
};

// Makes room for a size; never shrinks, so that the next call finds its memory.
template <class T>
void grow(std::vector<T>& memory, int64_t size) {
  if ((int64_t)memory.size() < size) memory.resize((size_t)size);
}

}  // namespace astrai
