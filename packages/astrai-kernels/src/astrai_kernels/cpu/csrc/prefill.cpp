// Attention of many query tokens of one request: two matrix products for each block of keys.
//
// A query's result does not depend on the queries beside it: blocks of keys begin at fixed
// positions, keys that a query does not see add exact zeros, and what splits of the keys give is
// put together in the same way whether or not several threads share them.

#include <algorithm>
#include <cmath>

#include "attention.h"
#include "pool.h"

namespace astrai {
namespace {

constexpr float kLowest = -1e30f;
constexpr int kRows = 6;  // of one register tile, of 2 vectors each
constexpr int kSoftRows = 24;  // softened while their scores are in the first cache

// out[rows, 16] (+)= a[rows, depth] * b[depth, 16], or 8 columns when kVectors is 1.
template <int kVectors>
ASTRAI_INLINE void multiply(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                            int64_t depth, float* out, int64_t out_stride, bool adds) {
  f32x8 sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = adds ? load(out + r * out_stride + kLanes * v) : splat(0.f);
  for (int64_t k = 0; k < depth; ++k) {
    f32x8 right[kVectors];
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + k * b_stride + kLanes * v);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const f32x8 left = splat(a[r * a_stride + k]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = fma(left, right[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) store(out + r * out_stride + kLanes * v, sums[r][v]);
}

void multiply_all(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                  int64_t rows, int64_t columns, int64_t depth, float* out, int64_t out_stride,
                  bool adds) {
  for (int64_t r = 0; r < rows; r += kRows) {
    const float* left = a + r * a_stride;
    float* to = out + r * out_stride;
    int64_t c = 0;
    for (; c + 16 <= columns; c += 16)
      multiply<2>(left, a_stride, b + c, b_stride, depth, to + c, out_stride, adds);
    for (; c < columns; c += kLanes)
      multiply<1>(left, a_stride, b + c, b_stride, depth, to + c, out_stride, adds);
  }
}

int64_t padded_rows(int64_t rows) { return (rows + kRows - 1) / kRows * kRows; }

// A thread's working memory: matrices of one item and one block of keys, and the item's parts.
struct Matrices {
  std::vector<float> memory, parts;
  float *queries, *scores, *weighted, *keys, *values, *maxima, *sums;

  void reserve(int64_t rows, int64_t head_dim) {
    const int64_t block = kBlockKeys * head_dim;
    grow(memory, 2 * rows * head_dim + rows * kBlockKeys + 2 * block + 2 * (rows + kLanes));
    float* next = memory.data();
    auto take = [&next](int64_t count) { return (next += count) - count; };
    queries = take(rows * head_dim);
    scores = take(rows * kBlockKeys);
    weighted = take(rows * head_dim);
    keys = take(block);
    values = take(block);
    maxima = take(rows + kLanes);  // eight at a time
    sums = take(rows + kLanes);
  }
};

// Keys [first + lead, first + count) as [head_dim, kBlockKeys], values as [kBlockKeys, head_dim],
// both float32. Absent ones are zero: what lies in unused memory must not reach a product.
template <class T>
void gather(const Paged<T>& cache, int64_t first, int lead, int count, int64_t head_dim,
            Matrices& m) {
  for (int i = 0; i < kBlockKeys; i += kLanes) {
    const T* keys[kLanes];
    for (int j = 0; j < kLanes; ++j) {
      const bool is_there = i + j >= lead && i + j < count;
      keys[j] = is_there ? cache.key(first + i + j) : nullptr;
    }
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      f32x8 square[kLanes];
      for (int j = 0; j < kLanes; ++j) square[j] = keys[j] ? load(keys[j] + d) : splat(0.f);
      transpose(square);
      for (int j = 0; j < kLanes; ++j) store(m.keys + (d + j) * kBlockKeys + i, square[j]);
    }
  }
  for (int i = 0; i < kBlockKeys; ++i) {
    float* to = m.values + i * head_dim;
    if (i < lead || i >= count) {
      std::fill(to, to + head_dim, 0.f);
      continue;
    }
    const T* value = cache.value(first + i);
    for (int64_t d = 0; d < head_dim; d += kLanes) store(to + d, load(value + d));
  }
}

// The block's keys that a query row sees.
struct Seen {
  int begin, end;
};

void hide(float* scores, int columns, Seen seen, float value) {
  const int begin = std::min(seen.begin, columns), end = std::max(begin, seen.end);
  std::fill(scores, scores + begin, value);
  std::fill(scores + end, scores + columns, value);
}

// The scores of a row become their exponentials, whose sum by lanes this gives.
ASTRAI_INLINE f32x8 exponentials(float* scores, int columns, Seen seen, float maximum) {
  f32x8 total = splat(0.f);
  for (int i = 0; i < columns; i += kLanes) {
    const f32x8 e = exp(load(scores + i) - splat(maximum));
    store(scores + i, e);
    total += e;
  }
  if (seen.begin <= 0 && seen.end >= columns) return total;
  hide(scores, columns, seen, 0.f);
  total = splat(0.f);
  for (int i = 0; i < columns; i += kLanes) total += load(scores + i);
  return total;
}

// Softmax of up to 8 query rows from `first` on: maxima and sums are found for all of them at once.
void soften(int64_t first, int count, int columns, const Seen* seen, int64_t head_dim,
            Matrices& m) {
  float* scores = m.scores + first * kBlockKeys;
  f32x8 lanes[kLanes];
  for (int row = 0; row < kLanes; ++row) {
    lanes[row] = splat(kLowest);
    if (row >= count) continue;
    float* s = scores + row * kBlockKeys;
    if (seen[row].begin > 0 || seen[row].end < columns) hide(s, columns, seen[row], kLowest);
    for (int i = 0; i < columns; i += kLanes) lanes[row] = max(lanes[row], load(s + i));
  }
  transpose(lanes);
  const f32x8 before = load(m.maxima + first);
  f32x8 maximum = before;
  for (int i = 0; i < kLanes; ++i) maximum = max(maximum, lanes[i]);
  const f32x8 decay = exp(before - maximum);
  store(m.maxima + first, maximum);
  for (int row = 0; row < kLanes; ++row)
    lanes[row] = row >= count ? splat(0.f)
                              : exponentials(scores + row * kBlockKeys, columns, seen[row],
                                             maximum[row]);
  transpose(lanes);
  f32x8 total = lanes[0];
  for (int i = 1; i < kLanes; ++i) total += lanes[i];
  store(m.sums + first, load(m.sums + first) * decay + total);
  for (int row = 0; row < count; ++row) {
    if (decay[row] == 1.f) continue;
    float* weighted = m.weighted + (first + row) * head_dim;
    for (int64_t d = 0; d < head_dim; d += kLanes)
      store(weighted + d, load(weighted + d) * splat(decay[row]));
  }
}

// A block of keys as an item's queries see it.
struct Block {
  const Attention& call;
  int64_t first;       // position of its first key
  int lead, count;     // keys [lead, count) are there
  int64_t first_seen;  // positions that the item's first query sees

  Seen seen(int64_t row) const {
    const int64_t end = first_seen + row / (call.heads / call.kv_heads);
    const int64_t start = call.window > 0 ? std::max<int64_t>(0, end - call.window) : 0;
    return {(int)std::max<int64_t>(lead, start - first), (int)std::min<int64_t>(count, end - first)};
  }
};

// Attends rows [top, bottom) of the item, few enough for their scores to stay in the first cache.
void attend_rows(const Block& block, int64_t top, int64_t bottom, Matrices& m) {
  const int64_t head_dim = block.call.head_dim, rows = padded_rows(bottom - top);
  const int columns = (block.seen(bottom - 1).end + kLanes - 1) / kLanes * kLanes;
  if (columns <= 0) return;
  float* scores = m.scores + top * kBlockKeys;
  multiply_all(m.queries + top * head_dim, head_dim, m.keys, kBlockKeys, rows, columns, head_dim,
               scores, kBlockKeys, false);
  for (int64_t row = top; row < bottom; row += kLanes) {
    Seen seen[kLanes];
    const int together = (int)std::min<int64_t>(kLanes, bottom - row);
    for (int i = 0; i < together; ++i) {
      seen[i] = block.seen(row + i);
      cap_scores(m.scores + (row + i) * kBlockKeys, columns, block.call.softcap);
    }
    soften(row, together, columns, seen, head_dim, m);
  }
  multiply_all(scores, kBlockKeys, m.values, head_dim, rows, head_dim, columns,
               m.weighted + top * head_dim, head_dim, true);
}

// Attends the item's queries to the keys [first_key, end_key), which lie in one split.
template <class T>
void attend_split(const Attention& call, const Item& item, int64_t first_key, int64_t end_key,
                  int64_t rows, Matrices& m) {
  const int64_t head_dim = call.head_dim, padded = padded_rows(rows);
  std::fill(m.weighted, m.weighted + padded * head_dim, 0.f);
  std::fill(m.maxima, m.maxima + padded + kLanes, kLowest);
  std::fill(m.sums, m.sums + padded + kLanes, 0.f);
  const Paged<T> cache(call, item, item.kv_head);
  for (int64_t first = first_key / kBlockKeys * kBlockKeys; first < end_key; first += kBlockKeys) {
    const int lead = (int)(std::max(first, first_key) - first);
    const int count = (int)(std::min(end_key, first + kBlockKeys) - first);
    gather(cache, first, lead, count, head_dim, m);
    const Block block = {call, first, lead, count, item.last_end - item.num_queries + 1};
    for (int64_t top = 0; top < rows; top += kSoftRows)
      attend_rows(block, top, std::min(rows, top + kSoftRows), m);
  }
}

ASTRAI_INLINE void copy_head(const float* from, int64_t head_dim, float* to) {
  for (int64_t d = 0; d < head_dim; d += kLanes) store(to + d, load(from + d));
}

void keep_part(int64_t rows, int64_t head_dim, const Matrices& m, float* to) {
  for (int64_t row = 0; row < rows; ++row, to += partial_size(head_dim)) {
    to[0] = m.maxima[row];
    to[1] = m.sums[row];
    copy_head(m.weighted + row * head_dim, head_dim, to + kLanes);
  }
}

// Writes a query row whose keys all lay in one split.
void write_row(const Attention& call, const Matrices& m, int64_t row, int64_t to) {
  const f32x8 scale = splat(1.f / m.sums[row]);
  const float* weighted = m.weighted + row * call.head_dim;
  for (int64_t d = 0; d < call.head_dim; d += kLanes)
    store_as(call.type, call.out, to + d, load(weighted + d) * scale);
}

template <class T>
void prefill(const Attention& call, const Item& item, AttentionScratch& scratch) {
  thread_local Matrices memory;
  Matrices& m = *settled(&memory);
  const int64_t head_dim = call.head_dim, group = call.heads / call.kv_heads;
  const int64_t rows = item.num_queries * group, size = partial_size(head_dim);
  const auto query_at = [&](int64_t row) {
    const int64_t token = item.first_query + row / group;
    return (token * call.heads + item.kv_head * group + row % group) * head_dim;
  };
  m.reserve(padded_rows(rows), head_dim);
  std::fill(m.queries + rows * head_dim, m.queries + padded_rows(rows) * head_dim, 0.f);
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = scratch.queries.data() + query_at(row);
    copy_head(from, head_dim, m.queries + row * head_dim);
  }
  if (item.partial >= 0) {
    attend_split<T>(call, item, item.first_key, item.end_key, rows, m);
    return keep_part(rows, head_dim, m, scratch.partial.data() + item.partial * size);
  }
  const auto split_end = [](int64_t key) { return (key / kSplitKeys + 1) * kSplitKeys; };
  if (item.end_key <= split_end(item.first_key)) {
    attend_split<T>(call, item, item.first_key, item.end_key, rows, m);
    for (int64_t row = 0; row < rows; ++row) write_row(call, m, row, query_at(row));
    return;
  }
  int64_t num_parts = 0;
  for (int64_t first = item.first_key, end; first < item.end_key; first = end, ++num_parts) {
    end = std::min(item.end_key, split_end(first));
    attend_split<T>(call, item, first, end, rows, m);
    grow(m.parts, (num_parts + 1) * rows * size);
    keep_part(rows, head_dim, m, m.parts.data() + num_parts * rows * size);
  }
  for (int64_t row = 0; row < rows; ++row)
    merge_parts(call, m.parts.data() + row * size, rows * size, num_parts, query_at(row));
}

}  // namespace

void prefill_f32(const Attention& c, const Item& i, AttentionScratch& s) { prefill<float>(c, i, s); }
void prefill_f16(const Attention& c, const Item& i, AttentionScratch& s) { prefill<f16>(c, i, s); }
void prefill_bf16(const Attention& c, const Item& i, AttentionScratch& s) { prefill<bf16>(c, i, s); }

}  // namespace astrai
