// Attention over a paged cache: what Python passes, and how the work is cut.
#pragma once

#include <cstdint>
#include <vector>

#include "simd.h"

namespace astrai {

enum Type : int32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// One call; shared with Python: see astrai_kernels.cpu.library. Strides are in elements, and the
// elements of a head are consecutive.
struct Attention {
  // q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim]; out contiguous, like q.
  const void *q, *k, *v;
  void* out;
  int64_t q_stride, k_stride, v_stride;                 // from token to token
  int64_t q_head_stride, k_head_stride, v_head_stride;  // from head to head
  // The layer's part of the cache, [slots, kv_heads, head_dim].
  void *keys, *values;
  int64_t key_stride, value_stride, key_head_stride, value_head_stride;
  // The step.
  const int32_t* table;         // [requests, table_stride]: the slot of each position
  const int64_t* table_rows;    // [batch]
  const int64_t* lengths;       // [batch]
  const int32_t* query_starts;  // [batch + 1]
  const int64_t* slots;         // [tokens], written where not negative
  const float* rotary;          // [tokens, rotary_dim / 2, 2], or null
  int64_t table_stride, batch, tokens, heads, kv_heads, head_dim;
  int64_t rotary_dim;  // elements of a head that are rotated, the first ones
  int64_t window;      // 0: none
  const float *query_norm, *key_norm;  // [head_dim], before the rotation; null: none
  float norm_eps;
  float scale;
  float softcap;  // 0: none
  int32_t type;     // of q, k, v and out
  int32_t kv_type;  // of the cache
  int32_t is_interleaved;
};

// Rotates, writes keys and values, and attends; `out` of idle tokens is left as it is.
void attend(const Attention& call);

// Keys are read in blocks that begin at multiples of this position, and a long context is split at
// multiples of kSplitKeys: the same for a request whatever runs beside it.
constexpr int kBlockKeys = 64;
constexpr int kSplitKeys = 256;

// Query tokens of one piece of prefill work: keys are brought together once for all of them, and a
// short prompt has to be cut into pieces for all threads.
constexpr int64_t block_queries(int64_t queries) { return queries < 256 ? 32 : 64; }

// What every item of a call shares, in memory that is reused.
struct AttentionScratch {
  std::vector<float> queries;  // [tokens, heads, head_dim], rotated and scaled
  std::vector<float> partial;  // results of parts, partial_size elements each
};

// A part of a request's work: prefill for one K/V head, or one query token for all heads.
struct Item {
  int64_t row;      // in the batch
  int32_t kv_head;  // of prefill
  int32_t num_queries;
  bool is_prefill;             // of a row with several queries, if only one of them is here
  int64_t first_query;         // token of the step
  int64_t first_key, end_key;  // positions to read; a prompt's first query may see fewer
  int64_t last_end;            // one behind the position of the last query
  int64_t partial;             // where a part's result goes, in partials; -1: there are no parts
};

// The result over some of the keys, of one query head: maximum, sum of exponentials, and the
// weighted sum of values.
ASTRAI_INLINE int64_t partial_size(int64_t head_dim) { return kLanes + head_dim; }

// Puts num_parts partials together, stride elements apart, and writes the result to out[to...].
void merge_parts(const Attention& call, const float* parts, int64_t stride, int64_t num_parts,
                 int64_t to);

ASTRAI_INLINE void store_as(int32_t type, void* base, int64_t at, f32x8 v) {
  if (type == kFloat32) return store((float*)base + at, v);
  if (type == kFloat16) return store((f16*)base + at, v);
  store((bf16*)base + at, v);
}

ASTRAI_INLINE f32x8 load_as(int32_t type, const void* base, int64_t at) {
  if (type == kFloat32) return load((const float*)base + at);
  if (type == kFloat16) return load((const f16*)base + at);
  return load((const bf16*)base + at);
}

// One K/V head's view of a layer's cache, in the cache's own type.
template <class T>
struct Paged {
  const T *keys, *values;
  int64_t key_stride, value_stride;
  const int32_t* slots;  // of each position

  Paged(const Attention& call, const Item& item, int64_t kv_head)
      : keys((const T*)call.keys + kv_head * call.key_head_stride),
        values((const T*)call.values + kv_head * call.value_head_stride),
        key_stride(call.key_stride),
        value_stride(call.value_stride),
        slots(call.table + call.table_rows[item.row] * call.table_stride) {}

  const T* key(int64_t position) const { return keys + slots[position] * key_stride; }
  const T* value(int64_t position) const { return values + slots[position] * value_stride; }
};

// Squeezes the scores of one query head to within the soft cap, if there is one.
ASTRAI_INLINE void cap_scores(float* scores, int count, float softcap) {
  if (softcap == 0.f) return;
  for (int i = 0; i < count; i += kLanes)
    store(scores + i, splat(softcap) * tanh(load(scores + i) * splat(1.f / softcap)));
}

void decode_f32(const Attention&, const Item&, AttentionScratch&);
void decode_f16(const Attention&, const Item&, AttentionScratch&);
void decode_bf16(const Attention&, const Item&, AttentionScratch&);
void prefill_f32(const Attention&, const Item&, AttentionScratch&);
void prefill_f16(const Attention&, const Item&, AttentionScratch&);
void prefill_bf16(const Attention&, const Item&, AttentionScratch&);

}  // namespace astrai
