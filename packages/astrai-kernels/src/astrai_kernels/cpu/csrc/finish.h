// What follows a product: bias, activation or addition, and where outputs go: to memory, or only
// to be compared.
#pragma once

#include "leaders.h"
#include "linear.h"
#include "tiles.h"

namespace astrai {

// Stores up to 8 lanes: all of them, or what is left of a row.
ASTRAI_INLINE void store_some(float* to, f32x8 v, int64_t count) {
  if (count >= kLanes) return store(to, v);
  for (int64_t i = 0; i < count; ++i) to[i] = v[i];
}

ASTRAI_INLINE f32x8 load_some(const float* from, int64_t count) {
  if (count >= kLanes) return load(from);
  f32x8 v = splat(0.f);
  for (int64_t i = 0; i < count; ++i) v[i] = from[i];
  return v;
}

// Eight outputs of some rows, from `column` on: what follows the product, and its place.
ASTRAI_INLINE void finish_half(const Linear& call, int64_t column, int half, int64_t row,
                               int64_t rows, const Outputs* results) {
  const Weight& w = call.weight;
  const int64_t left = w.out_features - column;
  if (left <= 0) return;
  const f32x8 bias = w.bias ? load_some(w.bias + column, left) : splat(0.f);
  const auto each = [&](auto&& keep) {
    for (int64_t i = 0; i < rows; ++i) {
      const f32x8 value = results[i].half[half];
      keep(row + i, w.bias ? value + bias : value);
    }
  };
  if (call.leaders != nullptr)
    return each([&](int64_t at, f32x8 value) { call.leaders[at].meet(value, column, left); });
  const bool adds = call.epilogue == kAdd;
  each([&](int64_t at, f32x8 value) {
    float* to = call.out + at * w.out_features + column;
    store_some(to, adds ? value + load_some(to, left) : value, left);
  });
}

inline void finish_gated(const Linear& call, int64_t tile, int64_t row, int64_t rows,
                         const Outputs* results) {
  const Weight& w = call.weight;
  const int64_t width = w.out_features / 2, column = tile * kHalfTile, left = width - column;
  for (int64_t i = 0; i < rows; ++i) {
    f32x8 gate = results[i].half[0], up = results[i].half[1];
    if (w.bias) {
      gate += load_some(w.bias + column, left);
      up += load_some(w.bias + width + column, left);
    }
    const f32x8 active = call.epilogue == kSwiGLU ? silu(gate) : gelu_tanh(gate);
    store_some(call.out + (row + i) * width + column, active * up, left);
  }
}

// What becomes of a tile's outputs of some rows.
inline void finish(const Linear& call, int64_t tile, int64_t row, int64_t rows,
                   const Outputs* results) {
  if (call.epilogue == kSwiGLU || call.epilogue == kGeGLU)
    return finish_gated(call, tile, row, rows, results);
  finish_half(call, tile * kTileRows, 0, row, rows, results);
  finish_half(call, tile * kTileRows + kHalfTile, 1, row, rows, results);
}

}  // namespace astrai
