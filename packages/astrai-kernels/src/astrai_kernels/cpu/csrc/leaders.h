// The largest elements of rows: their order, and how they are kept while rows are computed.
#pragma once

#include <cmath>
#include <cstdint>

#include "simd.h"

namespace astrai {

struct Entry {
  float value;
  int64_t column;
};

// NaN first, then the larger value, then the first column.
inline bool comes_before(const Entry& a, const Entry& b) {
  const bool a_is_nan = std::isnan(a.value), b_is_nan = std::isnan(b.value);
  if (a_is_nan != b_is_nan) return a_is_nan;
  if (!a_is_nan && a.value != b.value) return a.value > b.value;
  return a.column < b.column;
}

// The first element of a row's columns so far, for each of eight lanes.
struct Leaders {
  f32x8 values = splat(-INFINITY);
  i32x8 columns = {};

  // Compares with eight more columns, of which `count` exist; columns come in ascending order.
  inline __attribute__((always_inline)) void meet(f32x8 next, int64_t column, int64_t count) {
    const i32x8 lanes = {0, 1, 2, 3, 4, 5, 6, 7};
    i32x8 is_ahead = (next > values) | ((next != next) & (values == values));
    if (count < kLanes) is_ahead &= lanes < (int32_t)count;
    values = is_ahead ? next : values;
    columns = is_ahead ? lanes + (int32_t)column : columns;
  }

  // What comes first of the lanes and `other`.
  Entry best(Entry other) const {
    for (int lane = 0; lane < kLanes; ++lane) {
      const Entry entry = {values[lane], columns[lane]};
      if (comes_before(entry, other)) other = entry;
    }
    return other;
  }
};

}  // namespace astrai
