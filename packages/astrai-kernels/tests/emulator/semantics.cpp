// What no kernel may do, each in a kernel of its own: the emulator has to notice. And two ways to
// the same fragments.
#define ASTRAI_EMULATE
#include "interface.hpp"

namespace {

struct Misdeed {
  struct Params {
    u32* out;  // [64]
  };
  static constexpr u32 threads = 64, shared_bytes = 256;
};

struct AbsentFromBarrier : Misdeed {
  static void run(const Params&, u8*) {
    if (thread_index() < 40) block_sync();
  }
};
struct AbsentFromShuffle : Misdeed {
  static void run(const Params& p, u8*) {
    if (thread_index() % 32 != 5) p.out[thread_index()] = shuffle_xor(thread_index(), 1);
  }
};
struct TwoBarriers : Misdeed {
  static void run(const Params&, u8*) {
    if (thread_index() < 32)
      block_sync();
    else
      block_sync();
  }
};
struct MisalignedCopy : Misdeed {
  static void run(const Params& p, u8* shared) {
    copy_async_16(shared + 4, p.out, true);
    copy_commit();
    copy_wait<0>();
  }
};
struct CopyPastTheEnd : Misdeed {
  static void run(const Params& p, u8* shared) {
    copy_async_4(shared + 4 * thread_index() + 4, p.out);
    copy_commit();
    copy_wait<0>();
  }
};
struct CopyNotWaitedFor : Misdeed {
  static void run(const Params& p, u8* shared) { copy_async_4(shared, p.out); }
};
struct UnwrittenMemory : Misdeed {
  static void run(const Params& p, u8* shared) {
    p.out[thread_index()] = ((u32*)shared)[thread_index()];
  }
};
struct CopyReadTooEarly : Misdeed {
  static void run(const Params& p, u8* shared) {
    u32* own = (u32*)shared + thread_index();
    copy_async_4(own, p.out + thread_index());
    copy_commit();
    p.out[thread_index()] = *own;
    copy_wait<0>();
  }
};

struct TransposedTwice : Misdeed {
  static constexpr u32 threads = 32, shared_bytes = 512;  // four matrices
  static void run(const Params& p, u8* shared) {
    u16* row = (u16*)shared + 8 * lane_index();
    for (u32 i = 0; i < 8; ++i) row[i] = 8 * lane_index() + i;
    warp_sync();
    u32 rows[4], columns[4];
    load_matrices(rows, row);
    load_matrices_transposed(columns, row);
    p.out[lane_index()] = transpose_matrix(rows[3]);
    p.out[lane_index() + 32] = columns[3];
  }
};

}  // namespace

extern "C" {
INSTANCE(absent_from_barrier, AbsentFromBarrier)
INSTANCE(absent_from_shuffle, AbsentFromShuffle)
INSTANCE(two_barriers, TwoBarriers)
INSTANCE(misaligned_copy, MisalignedCopy)
INSTANCE(copy_past_the_end, CopyPastTheEnd)
INSTANCE(copy_not_waited_for, CopyNotWaitedFor)
INSTANCE(unwritten_memory, UnwrittenMemory)
INSTANCE(copy_read_too_early, CopyReadTooEarly)
INSTANCE(transposed_twice, TransposedTwice)
}
