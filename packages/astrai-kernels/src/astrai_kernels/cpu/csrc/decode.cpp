// Attention of one query token per request: reads each key and value once for the whole group.

#include <algorithm>
#include <cmath>

#include "attention.h"
#include "pool.h"

namespace astrai {
namespace {

constexpr float kLowest = -1e30f;
constexpr int kAhead = 16;  // positions fetched before they are needed

// Running softmax of some query heads over the keys seen so far.
template <int kHeads>
struct Running {
  float maximum[kHeads], sum[kHeads];
  float* weighted;  // [kHeads, head_dim]
};

template <class T>
ASTRAI_INLINE void fetch(const T* vector, int64_t head_dim) {
  for (int64_t byte = 0; byte < head_dim * (int64_t)sizeof(T); byte += 64)
    prefetch((const char*)vector + byte);
}

// Scores of kKeys keys for kHeads heads.
template <class T, int kHeads, int kKeys>
ASTRAI_INLINE void score(const float* q, const T* const* keys, int64_t head_dim,
                         float (*out)[kBlockKeys], int at) {
  f32x8 sums[kHeads][kKeys] = {};
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    f32x8 query[kHeads];
    for (int h = 0; h < kHeads; ++h) query[h] = load(q + h * head_dim + d);
#pragma GCC unroll 4
    for (int i = 0; i < kKeys; ++i) {
      const f32x8 key = load(keys[i] + d);
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) sums[h][i] = fma(key, query[h], sums[h][i]);
    }
  }
  for (int h = 0; h < kHeads; ++h)
    for (int i = 0; i < kKeys; ++i) out[h][at + i] = sum(sums[h][i]);
}

template <int kHeads>
ASTRAI_INLINE void soften(float (*scores)[kBlockKeys], int count, int64_t head_dim,
                          Running<kHeads>& running) {
  const int padded = (count + kLanes - 1) / kLanes * kLanes;
  for (int h = 0; h < kHeads; ++h) {
    float* s = scores[h];
    for (int i = count; i < padded; ++i) s[i] = kLowest;
    f32x8 largest = splat(kLowest);
    for (int i = 0; i < padded; i += kLanes) largest = max(largest, load(s + i));
    const float maximum = std::max(running.maximum[h], max(largest));
    const float decay = std::exp(running.maximum[h] - maximum);
    f32x8 total = splat(0.f);
    for (int i = 0; i < padded; i += kLanes) {
      const f32x8 e = exp(load(s + i) - splat(maximum));
      store(s + i, e);
      total += e;
    }
    running.sum[h] = running.sum[h] * decay + sum(total);
    running.maximum[h] = maximum;
    if (decay == 1.f) continue;
    float* weighted = running.weighted + h * head_dim;
    for (int64_t d = 0; d < head_dim; d += kLanes)
      store(weighted + d, load(weighted + d) * splat(decay));
  }
}

// Adds kVectors x 8 elements of the block's values, weighted.
template <class T, int kHeads, int kVectors>
ASTRAI_INLINE void accumulate(const Paged<T>& cache, int64_t first, int count, int64_t d,
                              int64_t head_dim, const float (*weights)[kBlockKeys],
                              float* weighted) {
  f32x8 sums[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h)
    for (int v = 0; v < kVectors; ++v)
      sums[h][v] = load(weighted + h * head_dim + d + kLanes * v);
  for (int i = 0; i < count; ++i) {
    const T* value = cache.value(first + i) + d;
    f32x8 weight[kHeads];
    for (int h = 0; h < kHeads; ++h) weight[h] = splat(weights[h][i]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const f32x8 elements = load(value + kLanes * v);
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) sums[h][v] = fma(elements, weight[h], sums[h][v]);
    }
  }
  for (int h = 0; h < kHeads; ++h)
    for (int v = 0; v < kVectors; ++v)
      store(weighted + h * head_dim + d + kLanes * v, sums[h][v]);
}

template <class T, int kHeads>
void attend_heads(const Attention& call, const Item& item, const float* q, Running<kHeads>& run) {
  constexpr int kKeys = kHeads > 3 ? 2 : 4, kVectors = kHeads > 3 ? 2 : 4;
  const Paged<T> cache(call, item);
  const int64_t head_dim = call.head_dim;
  alignas(32) float scores[kHeads][kBlockKeys];
  for (int64_t first = item.first_key, end; first < item.end_key; first = end) {
    end = std::min(item.end_key, first / kBlockKeys * kBlockKeys + kBlockKeys);
    const int count = (int)(end - first);
    for (int i = 0; i < count; i += kKeys) {
      const T* keys[kKeys];
      for (int j = 0; j < kKeys; ++j) {
        const int64_t position = first + std::min(i + j, count - 1);
        keys[j] = cache.key(position);
        fetch(cache.key(std::min(position + kAhead, item.end_key - 1)), head_dim);
        fetch(cache.value(position), head_dim);
      }
      score<T, kHeads, kKeys>(q, keys, head_dim, scores, i);
    }
    soften<kHeads>(scores, count, head_dim, run);
    int64_t d = 0;
    for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes)
      accumulate<T, kHeads, kVectors>(cache, first, count, d, head_dim, scores, run.weighted);
    for (; d < head_dim; d += kLanes)
      accumulate<T, kHeads, 1>(cache, first, count, d, head_dim, scores, run.weighted);
  }
}

template <class T, int kHeads>
void decode_heads(const Attention& call, const Item& item, int64_t head, AttentionScratch& scratch,
                  float* weighted) {
  const int64_t head_dim = call.head_dim, group = call.heads / call.kv_heads;
  const int64_t at = (item.first_query * call.heads + item.kv_head * group + head) * head_dim;
  Running<kHeads> run;
  run.weighted = weighted;
  std::fill(weighted, weighted + kHeads * head_dim, 0.f);
  for (int h = 0; h < kHeads; ++h) {
    run.maximum[h] = kLowest;
    run.sum[h] = 0.f;
  }
  attend_heads<T, kHeads>(call, item, scratch.queries.data() + at, run);
  for (int h = 0; h < kHeads; ++h) {
    const float* from = weighted + h * head_dim;
    if (item.partial >= 0) {
      float* to = scratch.partial.data() + (item.partial + head + h) * partial_size(head_dim);
      to[0] = run.maximum[h];
      to[1] = run.sum[h];
      std::copy(from, from + head_dim, to + kLanes);
    } else {
      for (int64_t d = 0; d < head_dim; d += kLanes)
        store_as(call.type, call.out, at + h * head_dim + d, load(from + d) * splat(1.f / run.sum[h]));
    }
  }
}

template <class T>
void decode(const Attention& call, const Item& item, AttentionScratch& scratch) {
  thread_local std::vector<float> memory;
  grow(memory, 4 * call.head_dim);
  float* weighted = memory.data();
  const int64_t group = call.heads / call.kv_heads;
  int64_t head = 0;
  for (; group - head > 4 || group - head == 3; head += 3)
    decode_heads<T, 3>(call, item, head, scratch, weighted);
  switch (group - head) {
    case 4: return decode_heads<T, 4>(call, item, head, scratch, weighted);
    case 2: return decode_heads<T, 2>(call, item, head, scratch, weighted);
    case 1: return decode_heads<T, 1>(call, item, head, scratch, weighted);
  }
}

}  // namespace

void decode_f32(const Attention& c, const Item& i, AttentionScratch& s) { decode<float>(c, i, s); }
void decode_f16(const Attention& c, const Item& i, AttentionScratch& s) { decode<f16>(c, i, s); }
void decode_bf16(const Attention& c, const Item& i, AttentionScratch& s) { decode<bf16>(c, i, s); }

}  // namespace astrai
