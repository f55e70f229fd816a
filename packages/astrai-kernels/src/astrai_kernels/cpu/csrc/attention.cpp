// One layer's attention: rotate and write, attend item by item, put split rows together.

#include "attention.h"

#include <algorithm>
#include <cmath>

#include "activations.h"
#include "export.h"
#include "pool.h"

namespace astrai {
namespace {

// Pieces worth handing to another thread.
constexpr int64_t kTokensPerPiece = 4;
constexpr int64_t kMergesPerPiece = 16;

// A query token whose keys were split. The part p of its head g of the K/V head h is the partial
// first + h * kv_head_stride + p * part_stride + g.
struct SplitQuery {
  int64_t token, first, kv_head_stride, part_stride, num_parts;
};

// The keys [first, end) that some queries see, cut at multiples of kSplitKeys.
struct Splits {
  int64_t first, end;

  int64_t count() const { return (end - 1) / kSplitKeys - first / kSplitKeys + 1; }
  int64_t first_of(int64_t part) const {
    return part == 0 ? first : (first / kSplitKeys + part) * kSplitKeys;
  }
  int64_t end_of(int64_t part) const { return std::min(end, first_of(part + 1)); }
};

// The items of a call, longest first where it matters, and the queries to put together.
struct Work {
  std::vector<Item> items;
  std::vector<SplitQuery> splits;
  int64_t num_partials = 0;

  void plan(const Attention& call, int num_threads);

 private:
  void add_prefill(const Attention& call, int64_t row, int64_t begin, int64_t end, bool is_shared);
  void add_decode(const Attention& call, int64_t row, int64_t token);
  void add_parts(const Attention& call, Item item, const Splits& keys);
};

int64_t num_blocks(int64_t queries) {
  return (queries + block_queries(queries) - 1) / block_queries(queries);
}

// Whether the prompts of a call are too few to keep all threads busy.
bool has_few_blocks(const Attention& call, int num_threads) {
  int64_t blocks = 0;
  for (int64_t row = 0; row < call.batch; ++row) {
    const int64_t queries = call.query_starts[row + 1] - call.query_starts[row];
    if (queries > 1) blocks += num_blocks(queries);
  }
  return blocks * call.kv_heads < 4 * num_threads;
}

void Work::plan(const Attention& call, int num_threads) {
  items.clear();
  splits.clear();
  num_partials = 0;
  const bool is_shared = has_few_blocks(call, num_threads);
  for (int64_t row = 0; row < call.batch; ++row) {
    const int64_t begin = call.query_starts[row], end = call.query_starts[row + 1];
    if (call.lengths[row] <= 0 || begin == end) continue;
    if (end - begin > 1)
      add_prefill(call, row, begin, end, is_shared);
    else
      add_decode(call, row, begin);
  }
}

void Work::add_prefill(const Attention& call, int64_t row, int64_t begin, int64_t end,
                       bool is_shared) {
  const int64_t size = block_queries(end - begin);
  for (int64_t block = num_blocks(end - begin) - 1; block >= 0; --block) {
    const int64_t first = begin + block * size;
    const int64_t last = std::min(end, first + size);
    Splits keys = {0, call.lengths[row] - (end - last)};
    if (call.window > 0)
      keys.first = std::max<int64_t>(0, keys.end - (last - first) + 1 - call.window);
    Item item = {row, 0, (int32_t)(last - first), true, first, keys.first, keys.end, keys.end, -1};
    if (is_shared && keys.count() > 1) {
      add_parts(call, item, keys);
      continue;
    }
    for (; item.kv_head < call.kv_heads; ++item.kv_head) items.push_back(item);
  }
}

void Work::add_decode(const Attention& call, int64_t row, int64_t token) {
  Splits keys = {0, call.lengths[row]};
  if (call.window > 0) keys.first = std::max<int64_t>(0, keys.end - call.window);
  Item item = {row, 0, 1, false, token, keys.first, keys.end, keys.end, -1};
  const int64_t parts = keys.count();
  if (parts == 1) return items.push_back(item);
  const int64_t group = call.heads / call.kv_heads;
  splits.push_back({token, num_partials, group, call.heads, parts});
  for (int64_t part = 0; part < parts; ++part, num_partials += call.heads) {
    item.first_key = keys.first_of(part);
    item.end_key = keys.end_of(part);
    item.partial = num_partials;
    items.push_back(item);
  }
}

// An item for each K/V head and each split of the keys.
void Work::add_parts(const Attention& call, Item item, const Splits& keys) {
  const int64_t group = call.heads / call.kv_heads, num_rows = item.num_queries * group;
  const int64_t parts = keys.count();
  for (int64_t query = 0; query < item.num_queries; ++query)
    splits.push_back({item.first_query + query, num_partials + query * group, parts * num_rows,
                      num_rows, parts});
  for (; item.kv_head < call.kv_heads; ++item.kv_head)
    for (int64_t part = 0; part < parts; ++part) {
      item.first_key = keys.first_of(part);
      item.end_key = keys.end_of(part);
      item.partial = num_partials;
      items.push_back(item);
      num_partials += num_rows;
    }
}

// The angles of a token: the cosines of its pairs, then the sines.
void separate(const float* angles, int64_t pairs, float* to) {
  for (int64_t i = 0; i < pairs; ++i) {
    to[i] = angles[2 * i];
    to[pairs + i] = angles[2 * i + 1];
  }
}

ASTRAI_INLINE void rotate(float* x, const float* angles, int64_t pairs, bool is_interleaved) {
  const float *cosines = angles, *sines = angles + pairs;
  int64_t i = 0;
  for (; !is_interleaved && i + kLanes <= pairs; i += kLanes) {
    const f32x8 a = load(x + i), b = load(x + pairs + i);
    store(x + i, a * load(cosines + i) - b * load(sines + i));
    store(x + pairs + i, b * load(cosines + i) + a * load(sines + i));
  }
  for (; i < pairs; ++i) {
    float& first = x[is_interleaved ? 2 * i : i];
    float& second = x[is_interleaved ? 2 * i + 1 : pairs + i];
    const float a = first, b = second;
    first = a * cosines[i] - b * sines[i];
    second = b * cosines[i] + a * sines[i];
  }
}

// Brings a head of a token into `to`: normed, scaled and rotated.
ASTRAI_INLINE void prepare_head(const Attention& call, const void* from, int64_t at,
                                const float* norm, float scale, const float* angles, float* to) {
  for (int64_t d = 0; d < call.head_dim; d += kLanes) store(to + d, load_as(call.type, from, at + d));
  if (norm) normalize(to, norm, call.head_dim, call.norm_eps, to);
  if (scale != 1.f)
    for (int64_t d = 0; d < call.head_dim; d += kLanes) store(to + d, load(to + d) * splat(scale));
  if (angles) rotate(to, angles, call.rotary_dim / 2, call.is_interleaved);
}

// Prepares a token's queries in scratch, and its keys and values in the cache.
void write_token(const Attention& call, int64_t token, AttentionScratch& scratch) {
  thread_local std::vector<float> memory;
  const int64_t head_dim = call.head_dim, slot = call.slots[token];
  grow(memory, head_dim + call.rotary_dim);
  float *head = settled(memory.data()), *angles = nullptr;
  if (call.rotary) {
    angles = head + head_dim;
    separate(call.rotary + token * call.rotary_dim, call.rotary_dim / 2, angles);
  }
  for (int64_t h = 0; h < call.heads; ++h)
    prepare_head(call, call.q, token * call.q_stride + h * call.q_head_stride, call.query_norm,
                 call.scale, angles, scratch.queries.data() + (token * call.heads + h) * head_dim);
  if (slot < 0) return;
  for (int64_t h = 0; h < call.kv_heads; ++h) {
    const int64_t from = token * call.k_stride + h * call.k_head_stride;
    const int64_t to = slot * call.key_stride + h * call.key_head_stride;
    prepare_head(call, call.k, from, call.key_norm, 1.f, angles, head);
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

// Puts the parts of one query head of a token together.
void merge(const Attention& call, const SplitQuery& query, int64_t head,
           const AttentionScratch& scratch) {
  const int64_t group = call.heads / call.kv_heads, size = partial_size(call.head_dim);
  const int64_t first = query.first + head / group * query.kv_head_stride + head % group;
  merge_parts(call, scratch.partial.data() + first * size, query.part_stride * size,
              query.num_parts, (query.token * call.heads + head) * call.head_dim);
}

}  // namespace

void attend(const Attention& call) {
  static Work work;
  static AttentionScratch scratch;
  Pool& pool = Pool::get();
  const auto held = pool.lock();
  work.plan(call, pool.num_threads());
  grow(scratch.queries, call.tokens * call.heads * call.head_dim);
  grow(scratch.partial, work.num_partials * partial_size(call.head_dim));
  pool.each((call.tokens + kTokensPerPiece - 1) / kTokensPerPiece, [&](int64_t piece) {
    const int64_t end = std::min(call.tokens, (piece + 1) * kTokensPerPiece);
    for (int64_t token = piece * kTokensPerPiece; token < end; ++token)
      write_token(call, token, scratch);
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

void merge_parts(const Attention& call, const float* parts, int64_t stride, int64_t num_parts,
                 int64_t to) {
  thread_local std::vector<float> memory;
  grow(memory, num_parts);
  float* weights = settled(memory.data());
  float maximum = parts[0], total = 0.f;
  for (int64_t p = 1; p < num_parts; ++p) maximum = std::max(maximum, parts[p * stride]);
  for (int64_t p = 0; p < num_parts; ++p) {
    weights[p] = std::exp(parts[p * stride] - maximum);
    total += weights[p] * parts[p * stride + 1];
  }
  const f32x8 scale = splat(1.f / total);
  for (int64_t d = 0; d < call.head_dim; d += kLanes) {
    f32x8 sum = splat(0.f);
    for (int64_t p = 0; p < num_parts; ++p)
      sum = fma(splat(weights[p]), load(parts + p * stride + kLanes + d), sum);
    store_as(call.type, call.out, to + d, sum * scale);
  }
}

}  // namespace astrai

// Attends; `out` of idle tokens is left as it is.
ASTRAI_EXPORT void astrai_attend(const astrai::Attention* call) { astrai::attend(*call); }

// Checks the integers of a step against the sizes of the cache: how many of its tokens belong to an
// empty row, whose output is zero; -1 if the step names a token, row or slot that there is not.
ASTRAI_EXPORT int64_t astrai_check_step(const astrai::Attention* call, int64_t num_slots,
                                        int64_t num_requests, int64_t max_length) {
  int64_t idle = 0, next = 0;
  if (call->query_starts[0] != 0 || call->query_starts[call->batch] != call->tokens) return -1;
  for (int64_t row = 0; row < call->batch; ++row) {
    const int64_t request = call->table_rows[row], length = call->lengths[row];
    const int64_t begin = next, queries = call->query_starts[row + 1] - begin;
    next = call->query_starts[row + 1];
    if (request < 0 || request >= num_requests || length < 0 || length > max_length) return -1;
    if (queries < 0 || (length > 0 && queries > length)) return -1;
    if (length == 0) idle += queries;
    const int32_t* slots = call->table + request * call->table_stride;
    for (int64_t i = 0; i < length; ++i)
      if (slots[i] < 0 || slots[i] >= num_slots) return -1;
  }
  for (int64_t token = 0; token < call->tokens; ++token)
    if (call->slots[token] >= num_slots) return -1;
  return idle;
}
