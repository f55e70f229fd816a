// Attention of one query token per request. All heads of a few keys are attended before the next
// keys, so that the cache is read front to back, each key and value once.

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "attention.h"
#include "pool.h"

namespace astrai {
namespace {

constexpr float kLowest = -1e30f;
constexpr int kAhead = 16;  // positions fetched before they are needed

// Keys scored together; a multiple of what `score` takes at once.
constexpr int kStepKeys = 4;

// A thread's working memory: the running softmax of an item's query heads.
struct Running {
  std::vector<float> memory;
  float *maximum, *sum;  // [heads]
  float* weighted;       // [heads, head_dim]
  float* scores;         // [heads, kBlockKeys]

  void reset(int64_t heads, int64_t head_dim) {
    grow(memory, heads * (2 + head_dim + kBlockKeys));
    maximum = memory.data();
    sum = maximum + heads;
    weighted = sum + heads;
    scores = weighted + heads * head_dim;
    std::fill(maximum, sum, kLowest);
    std::fill(sum, scores, 0.f);
  }
};

template <class T>
ASTRAI_INLINE void fetch(const T* vector, int64_t head_dim) {
  for (int64_t byte = 0; byte < head_dim * (int64_t)sizeof(T); byte += 64)
    prefetch((const char*)vector + byte);
}

// Scores of kKeys keys for kHeads heads.
template <class T, int kHeads, int kKeys>
ASTRAI_INLINE void score(const float* q, const T* const* keys, int64_t head_dim, float* out) {
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
    for (int i = 0; i < kKeys; ++i) out[h * kBlockKeys + i] = sum(sums[h][i]);
}

// Softmax of one query head over the block's keys.
void soften(int64_t head, int count, int64_t head_dim, const Running& run) {
  const int padded = (count + kLanes - 1) / kLanes * kLanes;
  float* s = run.scores + head * kBlockKeys;
  for (int i = count; i < padded; ++i) s[i] = kLowest;
  f32x8 largest = splat(kLowest);
  for (int i = 0; i < padded; i += kLanes) largest = max(largest, load(s + i));
  const float maximum = std::max(run.maximum[head], max(largest));
  const float decay = std::exp(run.maximum[head] - maximum);
  f32x8 total = splat(0.f);
  for (int i = 0; i < padded; i += kLanes) {
    const f32x8 e = exp(load(s + i) - splat(maximum));
    store(s + i, e);
    total += e;
  }
  run.sum[head] = run.sum[head] * decay + sum(total);
  run.maximum[head] = maximum;
  if (decay == 1.f) return;
  float* weighted = run.weighted + head * head_dim;
  for (int64_t d = 0; d < head_dim; d += kLanes)
    store(weighted + d, load(weighted + d) * splat(decay));
}

// Adds kVectors x 8 elements of the block's values, weighted.
template <class T, int kHeads, int kVectors>
ASTRAI_INLINE void accumulate(const Paged<T>& cache, int64_t first, int count, int64_t d,
                              int64_t head_dim, const float* weights, float* weighted) {
  f32x8 sums[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h)
    for (int v = 0; v < kVectors; ++v)
      sums[h][v] = load(weighted + h * head_dim + d + kLanes * v);
  for (int i = 0; i < count; ++i) {
    const T* value = cache.value(first + i) + d;
    f32x8 weight[kHeads];
    for (int h = 0; h < kHeads; ++h) weight[h] = splat(weights[h * kBlockKeys + i]);
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
void score_keys(const float* q, const T* const* keys, int64_t head_dim, float* out) {
  constexpr int kKeys = kHeads > 3 ? 2 : 4;
  for (int i = 0; i < kStepKeys; i += kKeys)
    score<T, kHeads, kKeys>(q, keys + i, head_dim, out + i);
}

template <class T, int kHeads>
void accumulate_all(const Paged<T>& cache, int64_t first, int count, int64_t head_dim,
                    const float* weights, float* weighted) {
  constexpr int kVectors = kHeads > 3 ? 2 : 4;
  int64_t d = 0;
  for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes)
    accumulate<T, kHeads, kVectors>(cache, first, count, d, head_dim, weights, weighted);
  for (; d < head_dim; d += kLanes)
    accumulate<T, kHeads, 1>(cache, first, count, d, head_dim, weights, weighted);
}

template <int kHeads>
using Heads = std::integral_constant<int, kHeads>;

// Calls run(Heads<n>, head) for the query heads of a group, a few at a time.
template <class Run>
ASTRAI_INLINE void each_heads(int64_t group, Run&& run) {
  int64_t head = 0;
  for (; group - head > 4 || group - head == 3; head += 3) run(Heads<3>(), head);
  switch (group - head) {
    case 4: return run(Heads<4>(), head);
    case 2: return run(Heads<2>(), head);
    case 1: return run(Heads<1>(), head);
  }
}

// Scores of the keys [first, first + count) for all heads, in `run.scores`.
template <class T>
void score_block(const Attention& call, const Item& item, const float* q, int64_t first, int count,
                 const Running& run) {
  const int64_t head_dim = call.head_dim, group = call.heads / call.kv_heads;
  for (int i = 0; i < count; i += kStepKeys) {
    for (int64_t kv_head = 0; kv_head < call.kv_heads; ++kv_head) {
      const Paged<T> cache(call, item, kv_head);
      const T* keys[kStepKeys];
      for (int j = 0; j < kStepKeys; ++j) {
        const int64_t position = first + std::min(i + j, count - 1);
        keys[j] = cache.key(position);
        fetch(cache.key(std::min(position + kAhead, item.end_key - 1)), head_dim);
        fetch(cache.value(position), head_dim);
      }
      each_heads(group, [&](auto heads, int64_t head) {
        const int64_t at = kv_head * group + head;
        score_keys<T, decltype(heads)::value>(q + at * head_dim, keys, head_dim,
                                              run.scores + at * kBlockKeys + i);
      });
    }
  }
}

// Leaves an item's result where the call wants it, or with the other parts of its row.
void finish(const Attention& call, const Item& item, const Running& run,
            AttentionScratch& scratch) {
  const int64_t head_dim = call.head_dim;
  for (int64_t head = 0; head < call.heads; ++head) {
    const float* from = run.weighted + head * head_dim;
    if (item.partial >= 0) {
      float* to = scratch.partial.data() + (item.partial + head) * partial_size(head_dim);
      to[0] = run.maximum[head];
      to[1] = run.sum[head];
      std::copy(from, from + head_dim, to + kLanes);
    } else {
      const int64_t to = (item.first_query * call.heads + head) * head_dim;
      for (int64_t d = 0; d < head_dim; d += kLanes)
        store_as(call.type, call.out, to + d, load(from + d) * splat(1.f / run.sum[head]));
    }
  }
}

template <class T>
void decode(const Attention& call, const Item& item, AttentionScratch& scratch) {
  thread_local Running memory;
  Running& run = *settled(&memory);
  const int64_t head_dim = call.head_dim, group = call.heads / call.kv_heads;
  run.reset(call.heads, head_dim);
  const float* q = scratch.queries.data() + item.first_query * call.heads * head_dim;
  for (int64_t first = item.first_key, end; first < item.end_key; first = end) {
    end = std::min(item.end_key, first / kBlockKeys * kBlockKeys + kBlockKeys);
    const int count = (int)(end - first);
    score_block<T>(call, item, q, first, count, run);
    for (int64_t head = 0; head < call.heads; ++head) {
      cap_scores(run.scores + head * kBlockKeys, count, call.softcap);
      soften(head, count, head_dim, run);
    }
    for (int64_t kv_head = 0; kv_head < call.kv_heads; ++kv_head) {
      const Paged<T> cache(call, item, kv_head);
      each_heads(group, [&](auto heads, int64_t head) {
        const int64_t at = kv_head * group + head;
        accumulate_all<T, decltype(heads)::value>(cache, first, count, head_dim,
                                                  run.scores + at * kBlockKeys,
                                                  run.weighted + at * head_dim);
      });
    }
  }
  finish(call, item, run, scratch);
}

}  // namespace

void decode_f32(const Attention& c, const Item& i, AttentionScratch& s) { decode<float>(c, i, s); }
void decode_f16(const Attention& c, const Item& i, AttentionScratch& s) { decode<f16>(c, i, s); }
void decode_bf16(const Attention& c, const Item& i, AttentionScratch& s) { decode<bf16>(c, i, s); }

}  // namespace astrai
