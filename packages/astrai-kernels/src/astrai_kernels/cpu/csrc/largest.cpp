// The largest values of each row, such as the likeliest tokens of a vocabulary.
//
// One pass finds the maximum of every block of columns. The k-th largest of these maxima bounds
// the k-th largest value from below, so only the few blocks that reach it are looked at again.
#include <algorithm>
#include <cmath>
#include <vector>

#include "export.h"
#include "leaders.h"
#include "pool.h"
#include "simd.h"

namespace astrai {
namespace {

constexpr int64_t kBlock = 128;

// A block's largest value; NaN counts as nothing, but is noted.
float block_maximum(const float* x, int64_t size, i32x8& has_nan) {
  if (size < kBlock) {
    float best = -INFINITY;
    for (int64_t i = 0; i < size; ++i) {
      if (std::isnan(x[i])) has_nan[0] = -1;
      best = x[i] > best ? x[i] : best;
    }
    return best;
  }
  f32x8 best = splat(-INFINITY);
  for (int64_t i = 0; i < kBlock; i += kLanes) {
    const f32x8 next = load(x + i);
    has_nan |= next != next;
    best = max(next, best);
  }
  return max(best);
}

// The largest value of each block, with the block's number; NaN for all if there is one anywhere.
std::vector<Entry> block_maxima(const float* row, int64_t columns) {
  std::vector<Entry> maxima((size_t)((columns + kBlock - 1) / kBlock));
  i32x8 has_nan = {};
  for (int64_t block = 0; block < (int64_t)maxima.size(); ++block) {
    const int64_t begin = block * kBlock, size = std::min(kBlock, columns - begin);
    maxima[(size_t)block] = {block_maximum(row + begin, size, has_nan), block};
  }
  for (int lane = 0; lane < kLanes; ++lane)
    if (has_nan[lane])
      for (Entry& of : maxima) of.value = NAN;
  return maxima;
}

// Moves the first k entries, in order, to the front.
void sort_first(std::vector<Entry>& entries, int64_t k) {
  if (k == 1)
    std::iter_swap(entries.begin(), std::min_element(entries.begin(), entries.end(), comes_before));
  else
    std::partial_sort(entries.begin(), entries.begin() + k, entries.end(), comes_before);
}

// The entries of a row that may be among its k largest. Minus infinity is what a mask leaves of
// most of a vocabulary: no more of it is taken than k asks for.
std::vector<Entry> candidates(const float* row, int64_t columns, int64_t k,
                              const std::vector<Entry>& maxima, float bound) {
  std::vector<Entry> found;
  for (const Entry& of : maxima) {
    if (of.value < bound || of.value == -INFINITY) continue;
    const int64_t end = std::min(columns, (of.column + 1) * kBlock);
    for (int64_t column = of.column * kBlock; column < end; ++column)
      if (!(row[column] < bound) && row[column] != -INFINITY) found.push_back({row[column], column});
  }
  for (int64_t column = 0; (int64_t)found.size() < k && column < columns; ++column)
    if (row[column] == -INFINITY) found.push_back({row[column], column});
  return found;
}

void find(const float* row, int64_t columns, int64_t k, float* values, int64_t* ids) {
  std::vector<Entry> maxima = block_maxima(row, columns);
  float bound = -INFINITY;
  if (k <= (int64_t)maxima.size()) {
    sort_first(maxima, k);
    bound = maxima[(size_t)k - 1].value;
  }
  std::vector<Entry> found = candidates(row, columns, k, maxima, bound);
  sort_first(found, k);
  for (int64_t i = 0; i < k; ++i) {
    values[i] = found[(size_t)i].value;
    ids[i] = found[(size_t)i].column;
  }
}

}  // namespace
}  // namespace astrai

// values, ids [rows, k]: the k largest of each row of x [rows, columns], 1 <= k <= columns,
// largest first; of equal ones the first column comes first, and NaN is larger than all.
ASTRAI_EXPORT void astrai_largest(const float* x, int64_t rows, int64_t columns, int64_t row_stride,
                                  int64_t k, float* values, int64_t* ids) {
  astrai::Pool& pool = astrai::Pool::get();
  const auto held = pool.lock();
  pool.each(rows, [&](int64_t row) {
    astrai::find(x + row * row_stride, columns, k, values + row * k, ids + row * k);
  });
}
