// Rows of activations in the form a weight's kernel multiplies with.
#pragma once

#include <cmath>

#include "simd.h"
#include "weights.h"

namespace astrai {

// With weights of at most 8 bits, the sum over a group of 32 stays within 32 bits.
constexpr float kMaxInt16 = 32767.f;
constexpr float kMaxInt8 = 127.f;

// For each group of 32: the scale, and the scale times the sum of the group's integers, which is
// what the minima of a Q4 weight are multiplied with.
struct GroupScale {
  float scale;
  float sum;
};

// Order of the int8 in each run of 8: the order in which a kQ4 vector gives its bytes.
constexpr int kInt8Order[8] = {0, 4, 1, 5, 2, 6, 3, 7};

ASTRAI_INLINE void normalize(const float* x, const float* scale, int64_t size, float eps,
                             float* out) {
  // Four sums: one alone would wait for each addition before the next.
  f32x8 squares[4] = {};
  int64_t at = 0;
  for (; at + 4 * kLanes <= size; at += 4 * kLanes)
    for (int j = 0; j < 4; ++j) {
      const f32x8 v = load(x + at + kLanes * j);
      squares[j] = fma(v, v, squares[j]);
    }
  for (; at + kLanes <= size; at += kLanes) squares[0] = fma(load(x + at), load(x + at), squares[0]);
  float total = sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
  for (int64_t i = size & ~7LL; i < size; ++i) total += x[i] * x[i];
  const float factor = 1.f / std::sqrt(total / (float)size + eps);
  for (int64_t i = 0; i + kLanes <= size; i += kLanes)
    store(out + i, load(x + i) * splat(factor) * load(scale + i));
  for (int64_t i = size & ~7LL; i < size; ++i) out[i] = x[i] * factor * scale[i];
}

// Rounds a group of 32 to integers of at most `limit`, given eight at a time to `keep(i, v)`. With
// NaN or infinity in it the scale is NaN, and so will be all that the group is multiplied with.
template <class Keep>
ASTRAI_INLINE GroupScale quantize_group(const float* x, float limit, Keep&& keep) {
  f32x8 v[4];
  i32x8 magnitude = {};  // bits of positive numbers are in their order, infinity and NaN last
  for (int i = 0; i < 4; ++i) {
    v[i] = load(x + kLanes * i);
    magnitude = max(magnitude, (i32x8)abs(v[i]));
  }
  const int32_t bits = max(magnitude);
  float largest;
  memcpy(&largest, &bits, sizeof largest);
  const f32x8 inverse = splat(largest > 0.f ? limit / largest : 0.f);
  i32x8 total = {};
  for (int i = 0; i < 4; ++i) {
    const i32x8 rounded = round_to_int(v[i] * inverse);
    total += rounded;
    keep(i, rounded);
  }
  const float scale = largest < INFINITY ? largest / limit : NAN;
  return {scale, scale * (float)sum(total)};
}

ASTRAI_INLINE void quantize_int16(const float* x, int64_t size, int16_t* out, GroupScale* scales) {
  for (int64_t g = 0; g < size / kGroup; ++g, x += kGroup, out += kGroup) {
    i32x8 kept[4];
    scales[g] = quantize_group(x, kMaxInt16, [&kept](int i, i32x8 v) { kept[i] = v; });
    store(out, narrow(kept[0], kept[1]));
    store(out + 2 * kLanes, narrow(kept[2], kept[3]));
  }
}

ASTRAI_INLINE void quantize_int8(const float* x, int64_t size, int8_t* out, GroupScale* scales) {
  for (int64_t g = 0; g < size / kGroup; ++g, x += kGroup, out += kGroup)
    scales[g] = quantize_group(x, kMaxInt8, [out](int i, i32x8 v) {
      for (int j = 0; j < kLanes; ++j) out[kLanes * i + j] = (int8_t)v[kInt8Order[j]];
    });
}

}  // namespace astrai
