// The inner loop for many rows: a run of a tile's groups is unpacked to 16 bits once, and then
// multiplied with six rows of activations at a time.
//
// The operations on each row's numbers, and their order, are those of `tiles.h`: which of the two
// runs is not to be seen in a result.
#pragma once

#include "tiles.h"

namespace astrai {

constexpr int kUnpackedRows = 6;      // of one pass: 12 sums, two weights and two more registers
constexpr int kUnpackedGroups = 18;   // that stay in a first-level cache beside the activations
constexpr int kPairs = kGroup / 2;
#if ASTRAI_AVX2
constexpr int kUnrolledPairs = kPairs;
#else
constexpr int kUnrolledPairs = 1;     // a product is many instructions: more would compile for long
#endif

// Some groups of a tile, as they are multiplied.
struct Unpacked {
  int64_t groups;
  alignas(32) int16_t weights[kUnpackedGroups][kPairs][2][2 * kHalfTile];
  alignas(32) float scales[kUnpackedGroups][2][kHalfTile];
  alignas(32) float minima[kUnpackedGroups][2][kHalfTile];
};

inline void unpack_q4(const uint8_t* tile, Unpacked& to) {
  for (int64_t g = 0; g < to.groups; ++g, tile += kQ4GroupBytes)
    for (int half = 0; half < 2; ++half) {
      store(to.scales[g][half], load((const f16*)tile + kHalfTile * half));
      store(to.minima[g][half], load((const f16*)tile + kTileRows + kHalfTile * half));
      for (int vector = 0; vector < 4; ++vector) {
        const u16x16 packed = load_bytes<u16x16>(tile + 64 + 128 * half + 32 * vector);
#pragma GCC unroll 4
        for (int nibble = 0; nibble < 4; ++nibble)
          store(to.weights[g][4 * vector + nibble][half], (i16x16)((packed >> (4 * nibble)) & 15));
      }
    }
}

inline void unpack_q8(const uint8_t* tile, Unpacked& to) {
  for (int64_t g = 0; g < to.groups; ++g, tile += kQ8GroupBytes)
    for (int half = 0; half < 2; ++half) {
      store(to.scales[g][half], load((const f16*)tile + kHalfTile * half));
      for (int vector = 0; vector < 8; ++vector) {
        const i16x16 packed = load_bytes<i16x16>(tile + 32 + 256 * half + 32 * vector);
        store(to.weights[g][2 * vector][half], (i16x16)((u16x16)packed << 8) >> 8);
        store(to.weights[g][2 * vector + 1][half], packed >> 8);
      }
    }
}

// Unpacks the next `to.groups` groups of a kQ4 or kQ8 tile.
inline void unpack(int32_t format, const uint8_t* tile, Unpacked& to) {
  format == kQ4 ? unpack_q4(tile, to) : unpack_q8(tile, to);
}

// The dot products of a group's 16 rows of weights with rows of activations.
template <int kRows>
ASTRAI_INLINE void dot_group(const int16_t (*w)[2][2 * kHalfTile], const int16_t* x,
                             int64_t stride, i32x8 (&dots)[kRows][2]) {
  const int16_t* at[kRows];
  for (int row = 0; row < kRows; ++row) at[row] = settled(x + row * stride);
#pragma GCC unroll kUnrolledPairs
  for (int pair = 0; pair < kPairs; ++pair) {
    i16x16 w0 = load_bytes<i16x16>(w[pair][0]), w1 = load_bytes<i16x16>(w[pair][1]);
    settle(w0);
    settle(w1);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const int32_t two = load_pair(at[row] + 2 * pair);
      const i32x8 dot0 = dot_pair(w0, two), dot1 = dot_pair(w1, two);
      settle(dots[row][0] = pair == 0 ? dot0 : dots[row][0] + dot0);
      settle(dots[row][1] = pair == 0 ? dot1 : dots[row][1] + dot1);
    }
  }
}

// Adds what some groups contribute to rows.
template <int kRows, bool kHasMinima>
ASTRAI_INLINE void multiply_unpacked(const Unpacked& w, const int16_t* x, const GroupScale* scales,
                                     int64_t in_features, Outputs* sums) {
  for (int64_t g = 0; g < w.groups; ++g) {
    i32x8 dots[kRows][2];
    dot_group<kRows>(w.weights[g], x + g * kGroup, in_features, dots);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const f32x8 scale = load(w.scales[g][half]), minimum = load(w.minima[g][half]);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const GroupScale of = scales[row * (in_features / kGroup) + g];
        f32x8& sum = sums[row].half[half];
        const f32x8 dot = to_float(dots[row][half]);
        if (kHasMinima) sum = fma(minimum, splat(of.sum), sum);
        sum = fma(dot, scale * splat(of.scale), sum);
      }
    }
  }
}

}  // namespace astrai
