// The inner loops: one tile of 16 weight rows times a few rows of activations.
//
// Whatever the number of activation rows, each row's result is computed by the same operations in
// the same order: a request's numbers do not depend on its batch.
#pragma once

#include "activations.h"
#include "simd.h"
#include "weights.h"

namespace astrai {

constexpr int kPrefetchBytes = 2560;

// Rows of activations, prepared for a weight.
struct Activations {
  const float* dense;        // [rows, in_features], for kF32 and kBF16
  const int16_t* int16;      // [rows, in_features]
  const int8_t* int8;        // [rows, in_features], in kInt8Order
  const GroupScale* scales;  // [rows, in_features / 32]
};

// A result of one activation row: 16 outputs.
struct Outputs {
  f32x8 half[2];
};

template <int kRows>
ASTRAI_INLINE void fetch_ahead(const uint8_t* group, int bytes) {
  if (kRows > 2) return;  // enough arithmetic for the hardware's own prefetching
  for (int line = 0; line < bytes; line += 64) prefetch(group + kPrefetchBytes + line);
}

template <int kRows>
ASTRAI_INLINE void tile_q4_int16(const uint8_t* tile, int64_t in_features, const int16_t* x,
                                 const GroupScale* scales, Outputs* out) {
  const int64_t groups = in_features / kGroup;
  f32x8 sums[kRows][2] = {};
  for (int64_t g = 0; g < groups; ++g, tile += kQ4GroupBytes, x += kGroup, ++scales) {
    fetch_ahead<kRows>(tile, kQ4GroupBytes);
    i32x8 dots[kRows][2] = {};
#pragma GCC unroll 1
    for (int vector = 0; vector < 4; ++vector) {
      const u16x16 low = load_bytes<u16x16>(tile + 64 + 32 * vector);
      const u16x16 high = load_bytes<u16x16>(tile + 192 + 32 * vector);
#pragma GCC unroll 4
      for (int nibble = 0; nibble < 4; ++nibble) {
        const i16x16 w0 = (i16x16)((low >> (4 * nibble)) & 15);
        const i16x16 w1 = (i16x16)((high >> (4 * nibble)) & 15);
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) {
          const int32_t pair = load_pair(x + row * in_features + 8 * vector + 2 * nibble);
          settle(dots[row][0] += dot_pair(w0, pair));
          settle(dots[row][1] += dot_pair(w1, pair));
        }
      }
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const f32x8 scale = load((const f16*)tile + kHalfTile * half);
      const f32x8 minimum = load((const f16*)tile + kTileRows + kHalfTile * half);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const GroupScale of = scales[row * groups];
        f32x8 total = fma(minimum, splat(of.sum), sums[row][half]);
        sums[row][half] = fma(to_float(dots[row][half]), scale * splat(of.scale), total);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) out[row] = {sums[row][0], sums[row][1]};
}

template <int kRows>
ASTRAI_INLINE void tile_q4_int8(const uint8_t* tile, int64_t in_features, const int8_t* x,
                                const GroupScale* scales, Outputs* out) {
  const int64_t groups = in_features / kGroup;
  f32x8 sums[kRows][2] = {};
  for (int64_t g = 0; g < groups; ++g, tile += kQ4GroupBytes, x += kGroup, ++scales) {
    fetch_ahead<kRows>(tile, kQ4GroupBytes);
    i16x16 dots[kRows][2] = {};
#pragma GCC unroll 1
    for (int vector = 0; vector < 4; ++vector) {
      const u16x16 low = load_bytes<u16x16>(tile + 64 + 32 * vector);
      const u16x16 high = load_bytes<u16x16>(tile + 192 + 32 * vector);
#pragma GCC unroll 2
      for (int part = 0; part < 2; ++part) {
        const u16x16 w0 = (low >> (4 * part)) & 0x0f0f, w1 = (high >> (4 * part)) & 0x0f0f;
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) {
          const int32_t quad = load_quad(x + row * in_features + 8 * vector + 4 * part);
          settle(dots[row][0] += dot_quad(w0, quad));
          settle(dots[row][1] += dot_quad(w1, quad));
        }
      }
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const f32x8 scale = load((const f16*)tile + kHalfTile * half);
      const f32x8 minimum = load((const f16*)tile + kTileRows + kHalfTile * half);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const GroupScale of = scales[row * groups];
        const f32x8 dot = to_float(add_neighbours(dots[row][half]));
        f32x8 total = fma(minimum, splat(of.sum), sums[row][half]);
        sums[row][half] = fma(dot, scale * splat(of.scale), total);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) out[row] = {sums[row][0], sums[row][1]};
}

template <int kRows>
ASTRAI_INLINE void tile_q8_int16(const uint8_t* tile, int64_t in_features, const int16_t* x,
                                 const GroupScale* scales, Outputs* out) {
  const int64_t groups = in_features / kGroup;
  f32x8 sums[kRows][2] = {};
  for (int64_t g = 0; g < groups; ++g, tile += kQ8GroupBytes, x += kGroup, ++scales) {
    fetch_ahead<kRows>(tile, kQ8GroupBytes);
    i32x8 dots[kRows][2] = {};
#pragma GCC unroll 1
    for (int vector = 0; vector < 8; ++vector) {
      const i16x16 low = load_bytes<i16x16>(tile + 32 + 32 * vector);
      const i16x16 high = load_bytes<i16x16>(tile + 288 + 32 * vector);
      const i16x16 w[2][2] = {{(i16x16)((u16x16)low << 8) >> 8, (i16x16)((u16x16)high << 8) >> 8},
                              {low >> 8, high >> 8}};
#pragma GCC unroll 2
      for (int part = 0; part < 2; ++part)
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) {
          const int32_t pair = load_pair(x + row * in_features + 4 * vector + 2 * part);
          settle(dots[row][0] += dot_pair(w[part][0], pair));
          settle(dots[row][1] += dot_pair(w[part][1], pair));
        }
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const f32x8 scale = load((const f16*)tile + kHalfTile * half);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const f32x8 dot = to_float(dots[row][half]);
        sums[row][half] = fma(dot, scale * splat(scales[row * groups].scale), sums[row][half]);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) out[row] = {sums[row][0], sums[row][1]};
}

template <int kRows>
ASTRAI_INLINE void tile_f32(const uint8_t* tile, int64_t in_features, const float* x,
                            Outputs* out) {
  f32x8 sums[kRows][2] = {};
  for (int64_t k = 0; k < in_features; ++k, tile += 64) {
    if (kRows == 1) prefetch(tile + kPrefetchBytes);
    const f32x8 w0 = load((const float*)tile), w1 = load((const float*)tile + kLanes);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const f32x8 value = splat(x[row * in_features + k]);
      sums[row][0] = fma(w0, value, sums[row][0]);
      sums[row][1] = fma(w1, value, sums[row][1]);
    }
  }
  for (int row = 0; row < kRows; ++row) out[row] = {sums[row][0], sums[row][1]};
}

template <int kRows>
ASTRAI_INLINE void tile_bf16(const uint8_t* tile, int64_t in_features, const float* x,
                             Outputs* out) {
  f32x8 sums[kRows][2] = {};
  for (int64_t k = 0; k < in_features; k += 2, tile += 64) {
    if (kRows == 1) prefetch(tile + kPrefetchBytes);
    const i32x8 low = load_bytes<i32x8>(tile), high = load_bytes<i32x8>(tile + 32);
    const f32x8 w[2][2] = {{(f32x8)(low << 16), (f32x8)(high << 16)},
                           {(f32x8)(low & (int32_t)0xffff0000), (f32x8)(high & (int32_t)0xffff0000)}};
#pragma GCC unroll 2
    for (int part = 0; part < 2; ++part)
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const f32x8 value = splat(x[row * in_features + k + part]);
        sums[row][0] = fma(w[part][0], value, sums[row][0]);
        sums[row][1] = fma(w[part][1], value, sums[row][1]);
      }
  }
  for (int row = 0; row < kRows; ++row) out[row] = {sums[row][0], sums[row][1]};
}

}  // namespace astrai
