// The vocabulary of platform.cuh for the emulator: the same names, on the machine of machine.hpp.
#pragma once
#include <cmath>

#include "machine.hpp"

#define ASTRAI_DEVICE inline

namespace astrai {

using emulator::machine;

// ---- Where a thread is
inline u32 thread_index() { return machine().running->index; }
inline u32 lane_index() { return thread_index() % emulator::warp_size; }
inline u32 warp_index() { return thread_index() / emulator::warp_size; }
inline u32 block_x() { return machine().block[0]; }
inline u32 block_y() { return machine().block[1]; }
inline u32 block_z() { return machine().block[2]; }

// ---- Rendezvous
inline void block_sync(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::Unobserved scope;
  auto& m = machine();
  emulator::meet(m.barrier, 0, m.threads.size(), "block_sync", {file, line}, true,
                 [&] { ++m.counts.barriers; });
}
inline void warp_sync(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::Unobserved scope;
  auto& m = machine();
  const u32 warp = warp_index();
  emulator::meet(m.warps[warp].meeting, warp * emulator::warp_size, emulator::warp_size,
                 "warp_sync", {file, line}, true, [] {});
}
inline u32 shuffle(const char* what, u32 x, u32 source, emulator::Place place) {
  struct Given {
    u32 x, source;
  };
  return emulator::with_warp<u32>(what, place, Given{x, source}, [](const Given* given, u32* taken) {
    for (u32 lane = 0; lane < emulator::warp_size; ++lane)
      taken[lane] = given[given[lane].source % emulator::warp_size].x;
  });
}
inline u32 shuffle_xor(u32 x, u32 mask, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  return shuffle("shuffle_xor", x, lane_index() ^ mask, {file, line});
}
inline u32 shuffle_up(u32 x, u32 delta, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
  const u32 lane = lane_index();
  return shuffle("shuffle_up", x, lane < delta ? lane : lane - delta, {file, line});
}
inline u32 shuffle_from(u32 x, u32 lane, const char* file = __builtin_FILE(),
                        int line = __builtin_LINE()) {
  return shuffle("shuffle_from", x, lane, {file, line});
}

// ---- Bits and arithmetic
inline f32 as_float(u32 x) { return __builtin_bit_cast(f32, x); }
inline u32 as_bits(f32 x) { return __builtin_bit_cast(u32, x); }
inline f32 exp2_fast(f32 x) { return std::exp2(x); }
inline f32 reciprocal(f32 x) { return 1.0f / x; }
inline f32 larger(f32 a, f32 b) { return std::fmax(a, b); }
inline u32 multiply_high(u32 a, u32 b) { return static_cast<u64>(a) * b >> 32; }
inline u64 multiply_high(u64 a, u64 b) { return static_cast<unsigned __int128>(a) * b >> 64; }

// ---- 16-bit floats, two in a word
inline u32 bits_of_bf16(f32 x) {
  const u32 bits = as_bits(x);
  if (std::isnan(x)) return 0x7FFF;
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
inline u32 pack_bf16(f32 low, f32 high) { return bits_of_bf16(low) | bits_of_bf16(high) << 16; }
inline u32 pack_f16(f32 low, f32 high) {
  return __builtin_bit_cast(u16, static_cast<_Float16>(low)) |
         static_cast<u32>(__builtin_bit_cast(u16, static_cast<_Float16>(high))) << 16;
}
inline f32 f16_to_float(u16 bits) { return __builtin_bit_cast(_Float16, bits); }

// ---- Memory
inline void check_aligned(const void* p, unsigned bytes, const char* what, emulator::Place place) {
  if (reinterpret_cast<std::uintptr_t>(p) % bytes)
    emulator::fail(std::string(what) + " of a misaligned address", place);
}
inline void check_shared(const void* p, unsigned bytes, const char* what, emulator::Place place) {
  const auto& m = machine();
  const auto* begin = static_cast<const u8*>(p);
  check_aligned(p, bytes, what, place);
  if (begin < m.shared || begin + bytes > m.shared + m.shared_bytes)
    emulator::fail(std::string(what) + " outside shared memory", place);
}
inline Vec16 load_streaming(const void* p, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
  check_aligned(p, 16, "load_streaming", {file, line});
  return *static_cast<const Vec16*>(p);
}
inline u32 count_up(u32* counter, u32 last) {
  emulator::acquire(counter);
  emulator::Unobserved scope;
  const u32 before = *counter;
  *counter = before >= last ? 0 : before + 1;
  emulator::release(counter);
  return before;
}
template <class T>
inline void shared_add(T* p, T x) {
  emulator::Unobserved scope;
  *p += x;
}

// ---- Asynchronous copies: each happens at some moment between its issue and the wait for it
template <class T>
inline void perform_as(const emulator::Copy& copy) {
  *static_cast<T*>(copy.to) = copy.from ? *static_cast<const T*>(copy.from) : T{};
}
inline void perform(const emulator::Copy& copy) {
  copy.bytes == 16 ? perform_as<Vec16>(copy) : perform_as<u32>(copy);
}
inline void copy_async(const emulator::Copy& copy, emulator::Place place) {
  check_shared(copy.to, copy.bytes, "copy_async", place);
  check_aligned(copy.from, copy.bytes, "copy_async", place);
  auto& m = machine();
  bool now = m.copies == emulator::Copies::eager;
  {
    emulator::Unobserved scope;
    if (m.copies == emulator::Copies::random) now = m.random() & 1;
    m.running->place = place;
    if (!now) m.running->copies.back().push_back(copy);
  }
  if (now) perform(copy);
}
inline void copy_async_16(void* shared, const void* global, bool wanted,
                          const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  copy_async({shared, wanted ? global : nullptr, 16}, {file, line});
}
inline void copy_async_4(void* shared, const void* global, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE()) {
  copy_async({shared, global, 4}, {file, line});
}
inline void copy_commit() {
  emulator::Unobserved scope;
  machine().running->copies.emplace_back();
}
template <int pending>
inline void copy_wait() {
  auto& groups = machine().running->copies;
  while (groups.size() > pending + 1) {  // the open group is not waited for
    for (const emulator::Copy& copy : groups.front()) perform(copy);
    emulator::Unobserved scope;
    groups.pop_front();
  }
}

// ---- Matrices: fragments as the PTX ISA documents them for m16n8k16
struct MatrixRow {
  u16 elements[8];
};
struct Registers {
  u32 r[4];
};
// Lane 8 m + i gives the address of row i of matrix m.
inline void load_matrices(u32 (&r)[4], const void* shared, bool transposed,
                          emulator::Place place) {
  check_shared(shared, 16, "load_matrices", place);
  struct Given {
    MatrixRow row;
    u32 banks;  // which of the eight groups of four banks the row is in
  };
  const auto* address = static_cast<const u8*>(shared);
  const Given given{*static_cast<const MatrixRow*>(shared),
                    static_cast<u32>((address - machine().shared) / 16 % 8)};
  const auto combine = [=](const Given* rows, Registers* taken) {
    auto& counts = machine().counts;
    ++counts.matrix_loads;
    for (u32 matrix = 0; matrix < 4; ++matrix) {
      u32 banks = 0;
      for (u32 row = 0; row < 8; ++row) {
        counts.bank_conflicts += banks >> rows[8 * matrix + row].banks & 1;
        banks |= 1u << rows[8 * matrix + row].banks;
      }
      for (u32 lane = 0; lane < emulator::warp_size; ++lane) {
        u32 pair = 0;
        for (u32 i = 0; i < 2; ++i) {
          const u32 row = lane / 4, column = 2 * (lane % 4) + i;
          const u16 element = transposed ? rows[8 * matrix + column].row.elements[row]
                                         : rows[8 * matrix + row].row.elements[column];
          pair |= static_cast<u32>(element) << (16 * i);
        }
        taken[lane].r[matrix] = pair;
      }
    }
  };
  const auto taken = emulator::with_warp<Registers>("load_matrices", place, given, combine);
  std::memcpy(r, taken.r, sizeof r);
}
inline void load_matrices(u32 (&r)[4], const void* shared, const char* file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
  load_matrices(r, shared, false, {file, line});
}
inline void load_matrices_transposed(u32 (&r)[4], const void* shared,
                                     const char* file = __builtin_FILE(),
                                     int line = __builtin_LINE()) {
  load_matrices(r, shared, true, {file, line});
}
// A lane has elements 2 (lane % 4) and the next one of row lane / 4.
inline u32 transpose_matrix(u32 pair, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
  const auto combine = [](const u32* pairs, u32* taken) {
    for (u32 lane = 0; lane < emulator::warp_size; ++lane) {
      const u32 row = lane / 4, column = 2 * (lane % 4);
      const u32 low = pairs[4 * column + row / 2], high = pairs[4 * (column + 1) + row / 2];
      taken[lane] = (low >> row % 2 * 16 & 0xFFFF) | high >> row % 2 * 16 << 16;
    }
  };
  return emulator::with_warp<u32>("transpose_matrix", {file, line}, pair, combine);
}
inline f32 half_of(bf16, u32 pair, u32 i) { return as_float(i ? pair & 0xFFFF0000 : pair << 16); }
inline f32 half_of(f16, u32 pair, u32 i) { return f16_to_float(static_cast<u16>(pair >> 16 * i)); }

// d[16, 8] += a[16, 16] b[16, 8].
template <class T>
inline void multiply_add(T type, f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1,
                         const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  struct Given {
    u32 a[4], b[2];
    f32 d[4];
  };
  struct Taken {
    f32 d[4];
  };
  const Given given{{a[0], a[1], a[2], a[3]}, {b0, b1}, {d[0], d[1], d[2], d[3]}};
  const auto combine = [=](const Given* lanes, Taken* taken) {
    ++machine().counts.matrix_products;
    f32 left[16][16], right[16][8], sum[16][8];
    for (u32 lane = 0; lane < emulator::warp_size; ++lane) {
      const Given& x = lanes[lane];
      const u32 row = lane / 4, column = 2 * (lane % 4);
      for (u32 i = 0; i < 2; ++i) {
        left[row][column + i] = half_of(type, x.a[0], i);
        left[row + 8][column + i] = half_of(type, x.a[1], i);
        left[row][column + 8 + i] = half_of(type, x.a[2], i);
        left[row + 8][column + 8 + i] = half_of(type, x.a[3], i);
        right[column + i][row] = half_of(type, x.b[0], i);
        right[column + 8 + i][row] = half_of(type, x.b[1], i);
        sum[row][column + i] = x.d[i];
        sum[row + 8][column + i] = x.d[2 + i];
      }
    }
    for (u32 i = 0; i < 16; ++i)
      for (u32 k = 0; k < 16; ++k)
        for (u32 j = 0; j < 8; ++j) sum[i][j] += left[i][k] * right[k][j];
    for (u32 lane = 0; lane < emulator::warp_size; ++lane) {
      const u32 row = lane / 4, column = 2 * (lane % 4);
      taken[lane] = {{sum[row][column], sum[row][column + 1], sum[row + 8][column],
                      sum[row + 8][column + 1]}};
    }
  };
  const auto taken = emulator::with_warp<Taken>("multiply_add", {file, line}, given, combine);
  std::memcpy(d, taken.d, sizeof d);
}

}  // namespace astrai
