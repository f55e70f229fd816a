// One layer's attention: rotate and write, attend item by item, put split rows together.

#include "attention.h"

#include <algorithm>
#include <cmath>

#include "export.h"
#include "pool.h"

namespace astrai {
namespace {

// Pieces worth handing to another thread.
constexpr int64_t kTokensPerPiece = 4;
constexpr int64_t kMergesPerPiece = 16;

// A row whose keys were split: its parts are consecutive for each K/V head.
struct SplitRow {
  int64_t token, first_partial, num_parts;
};

// The items of a call, longest first where it matters, and the rows to put together.
struct Work {
  std::vector<Item> items;
  std::vector<SplitRow> splits;
  int64_t num_partials = 0;

  void plan(const Attention& call);

 private:
  void add_prefill(const Attention& call, int64_t row, int64_t begin, int64_t end);
  void add_decode(const Attention& call, int64_t row, int64_t token);
};

void Work::plan(const Attention& call) {
  items.clear();
  splits.clear();
  num_partials = 0;
  for (int64_t row = 0; row < call.batch; ++row) {
    const int64_t begin = call.query_starts[row], end = call.query_starts[row + 1];
    if (call.lengths[row] <= 0 || begin == end) continue;
    if (end - begin > 1)
      add_prefill(call, row, begin, end);
    else
      add_decode(call, row, begin);
  }
}

void Work::add_prefill(const Attention& call, int64_t row, int64_t begin, int64_t end) {
  const int64_t blocks = (end - begin + kBlockQueries - 1) / kBlockQueries;
  for (int64_t block = blocks - 1; block >= 0; --block) {
    const int64_t first = begin + block * kBlockQueries;
    const int64_t last = std::min(end, first + kBlockQueries);
    const int64_t end_key = call.lengths[row] - (end - last);
    int64_t first_key = 0;
    if (call.window > 0)
      first_key = std::max<int64_t>(0, end_key - (last - first) + 1 - call.window);
    for (int32_t head = 0; head < call.kv_heads; ++head)
      items.push_back({row, head, (int32_t)(last - first), true, first, first_key, end_key, -1});
  }
}

void Work::add_decode(const Attention& call, int64_t row, int64_t token) {
  const int64_t end = call.lengths[row];
  const int64_t begin = call.window > 0 ? std::max<int64_t>(0, end - call.window) : 0;
  const int64_t first_split = begin / kSplitKeys, parts = (end - 1) / kSplitKeys - first_split + 1;
  if (parts > 1) splits.push_back({token, num_partials, parts});
  for (int32_t head = 0; head < call.kv_heads; ++head)
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = (first_split + part) * kSplitKeys;
      items.push_back({row, head, 1, false, token, std::max(begin, first),
                       std::min(end, first + kSplitKeys), parts > 1 ? num_partials++ : -1});
    }
}

ASTRAI_INLINE void rotate(float* x, const float* angles, int64_t head_dim, bool is_interleaved) {
  const int64_t half = head_dim / 2, step = is_interleaved ? 2 : 1, other = is_interleaved ? 1 : half;
  for (int64_t i = 0; i < half; ++i) {
    const float cosine = angles[2 * i], sine = angles[2 * i + 1];
    float *first = x + step * i, *second = first + other;
    const float a = *first, b = *second;
    *first = a * cosine - b * sine;
    *second = b * cosine + a * sine;
  }
}

// Rotates a token's queries into scratch, and its keys and values into the cache.
void write_token(const Attention& call, int64_t token, AttentionScratch& scratch, float* head) {
  const int64_t head_dim = call.head_dim, slot = call.slots[token];
  const float* angles = call.rotary ? call.rotary + token * head_dim : nullptr;
  for (int64_t h = 0; h < call.heads; ++h) {
    const int64_t from = token * call.q_stride + h * call.q_head_stride;
    float* to = scratch.queries.data() + (token * call.heads + h) * head_dim;
    for (int64_t d = 0; d < head_dim; d += kLanes)
      store(to + d, load_as(call.type, call.q, from + d) * splat(call.scale));
    if (angles) rotate(to, angles, head_dim, call.is_interleaved);
  }
  if (slot < 0) return;
  for (int64_t h = 0; h < call.kv_heads; ++h) {
    const int64_t from = token * call.k_stride + h * call.k_head_stride;
    const int64_t to = slot * call.key_stride + h * call.key_head_stride;
    for (int64_t d = 0; d < head_dim; d += kLanes)
      store(head + d, load_as(call.type, call.k, from + d));
    if (angles) rotate(head, angles, head_dim, call.is_interleaved);
    for (int64_t d = 0; d < head_dim; d += kLanes)
      store_as(call.kv_type, call.keys, to + d, load(head + d));
    const int64_t value = token * call.v_stride + h * call.v_head_stride;
    const int64_t value_to = slot * call.value_stride + h * call.value_head_stride;
    for (int64_t d = 0; d < head_dim; d += kLanes)
      store_as(call.kv_type, call.values, value_to + d, load_as(call.type, call.v, value + d));
  }
}

void attend_item(const Attention& call, const Item& item, AttentionScratch& scratch) {
  switch (call.kv_type) {
    case kFloat32: return (item.is_prefill ? prefill_f32 : decode_f32)(call, item, scratch);
    case kFloat16: return (item.is_prefill ? prefill_f16 : decode_f16)(call, item, scratch);
    default: return (item.is_prefill ? prefill_bf16 : decode_bf16)(call, item, scratch);
  }
}

// Puts the parts of one query head of a split row together.
void merge(const Attention& call, const SplitRow& row, int64_t query_head,
           const AttentionScratch& scratch) {
  const int64_t group = call.heads / call.kv_heads, size = partial_size(call.head_dim);
  const int64_t kv_head = query_head / group;
  const float* parts =
      scratch.partial.data() +
      ((row.first_partial + kv_head * row.num_parts) * group + query_head % group) * size;
  float maximum = parts[0], total = 0.f;
  for (int64_t p = 1; p < row.num_parts; ++p)
    maximum = std::max(maximum, parts[p * group * size]);
  for (int64_t p = 0; p < row.num_parts; ++p) {
    const float* part = parts + p * group * size;
    total += std::exp(part[0] - maximum) * part[1];
  }
  const int64_t to = (row.token * call.heads + query_head) * call.head_dim;
  for (int64_t d = 0; d < call.head_dim; d += kLanes) {
    f32x8 sum = splat(0.f);
    for (int64_t p = 0; p < row.num_parts; ++p) {
      const float* part = parts + p * group * size;
      sum = fma(splat(std::exp(part[0] - maximum)), load(part + kLanes + d), sum);
    }
    store_as(call.type, call.out, to + d, sum * splat(1.f / total));
  }
}

}  // namespace

void attend(const Attention& call) {
  static Work work;
  static AttentionScratch scratch;
  Pool& pool = Pool::get();
  const auto held = pool.lock();
  work.plan(call);
  grow(scratch.queries, call.tokens * call.heads * call.head_dim);
  grow(scratch.partial,
       work.num_partials * (call.heads / call.kv_heads) * partial_size(call.head_dim));
  pool.each((call.tokens + kTokensPerPiece - 1) / kTokensPerPiece, [&](int64_t piece) {
    thread_local std::vector<float> head;
    grow(head, call.head_dim);
    const int64_t end = std::min(call.tokens, (piece + 1) * kTokensPerPiece);
    for (int64_t token = piece * kTokensPerPiece; token < end; ++token)
      write_token(call, token, scratch, head.data());
  });
  pool.each((int64_t)work.items.size(),
            [&](int64_t i) { attend_item(call, work.items[(size_t)i], scratch); });
  const int64_t merges = (int64_t)work.splits.size() * call.heads;
  pool.each((merges + kMergesPerPiece - 1) / kMergesPerPiece, [&](int64_t piece) {
    const int64_t end = std::min(merges, (piece + 1) * kMergesPerPiece);
    for (int64_t i = piece * kMergesPerPiece; i < end; ++i)
      merge(call, work.splits[(size_t)(i / call.heads)], i % call.heads, scratch);
  });
}

}  // namespace astrai

// Attends; `out` of idle tokens is left as it is.
ASTRAI_EXPORT void astrai_attend(const astrai::Attention* call) { astrai::attend(*call); }

// Whether every slot a step reads or writes is one of num_slots.
ASTRAI_EXPORT int astrai_slots_fit(const astrai::Attention* call, int64_t num_slots) {
  for (int64_t token = 0; token < call->tokens; ++token)
    if (call->slots[token] >= num_slots) return 0;
  for (int64_t row = 0; row < call->batch; ++row) {
    const int32_t* slots = call->table + call->table_rows[row] * call->table_stride;
    for (int64_t i = 0; i < call->lengths[row]; ++i)
      if (slots[i] < 0 || slots[i] >= num_slots) return 0;
  }
  return 1;
}
