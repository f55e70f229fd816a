// What each kernel is given: one packed structure, by value.
//
// The host builds these from this file (astrai_kernels.cuda.parameters), so every field stands on
// a line of its own and fields are naturally aligned. Strides count elements of the tensor's dtype
// and are 64 bits wide: pools pass 2^31 elements. The last dimension is always contiguous, and a
// head's first element is 16-byte aligned (base pointers and strides are multiples of 16 bytes), as
// is a row of the rotary table.
//
// "May be null" is said where it is so. Everything a graph replays keeps its address; only what
// the pointers point to changes. No grid depends on device data.
#pragma once
#include "platform.cuh"

namespace astrai {

// Rotates q and k, and writes k and v where out_cache_loc says. Without v it is plain rotary.
// Grid: (num_tokens, 1, 1). head_dim and rotary_dim are multiples of 32 bytes of their dtype.
struct RotaryParams {
  const void* q;                // [tokens, q_heads, head_dim]
  void* q_out;                  // the same shape; may be q itself
  const void* k;                // [tokens, kv_heads, head_dim]
  const void* v;                // alike; null: no values are written
  void* k_out;                  // [slots, kv_heads, head_dim]: the pool, or any tensor
  void* v_out;                  // alike, of the same strides; null without v
  const float* table;           // [rows, rotary_dim / 2, 2]: cosine, sine; null: nothing is rotated
  const i64* positions;         // [tokens]: rows of the table; null: token i has row i
  const i64* slots;             // [tokens]: rows of k_out, v_out; negative: not written; null: i
  i64 q_token_stride;
  i64 q_head_stride;
  i64 q_out_token_stride;
  i64 q_out_head_stride;
  i64 k_token_stride;
  i64 k_head_stride;
  i64 v_token_stride;
  i64 v_head_stride;
  i64 out_token_stride;         // of k_out and v_out
  i64 out_head_stride;
  i64 table_stride;             // from one row of the table to the next, in floats
  i32 num_q_heads;              // 0: q is left alone
  i32 num_kv_heads;             // 0: k and v are left alone
  i32 rotary_dim;               // the first elements of a head; the others are copied
  i32 interleaved;              // pairs are neighbours; 0: half a rotary_dim apart
};

// Attention of one query token per row over the paged pool.
// Grid: (num_kv_heads * head_tiles, batch, num_splits), where head_tiles is 1 for groups up to 16
// and ceil(group / 16) above. A row's keys are shared out evenly to as many of the splits as have
// work; the last block of a row to finish merges them. Rows with seq_len 0 get zeros.
struct DecodeParams {
  const void* q;                // [tokens, kv_heads * group, head_dim]
  const void* k;                // [slots, kv_heads, head_dim]: one layer of the pool
  const void* v;                // alike, of the same strides
  void* out;                    // [tokens, kv_heads * group, head_dim]
  const i32* req_to_token;      // [requests, positions]: a valid slot wherever one is attended
  const i64* req_pool_indices;  // [batch]: rows of req_to_token
  const i64* seq_lens;          // [batch]: this step's token included; 0: an idle row
  const i32* qo_indptr;         // [batch + 1]; null: row i has token i. Else rows with other than
                                // one token are skipped, for the prefill kernel to serve
  float* partial_out;           // [batch, kv_heads * group, num_splits, head_dim]: scratch
  float* partial_stats;         // [batch, kv_heads * group, num_splits, 2]: scratch
  u32* counters;                // [batch, kv_heads * head_tiles]: zero at first; left at zero
  i64 q_token_stride;
  i64 q_head_stride;
  i64 out_token_stride;
  i64 out_head_stride;
  i64 pool_token_stride;        // of k and v
  i64 pool_head_stride;
  i64 table_stride;             // from one row of req_to_token to the next
  i32 num_kv_heads;
  i32 num_splits;               // 1: the scratch tensors may be null
  i32 window;                   // positions seen, its own among them; 0: all
  float scale;                  // on the scores; above 0
  float soft_cap;               // scores become cap * tanh(score / cap); 0: they stay
};

// Attention of ragged rows of query tokens, causal by absolute position.
// Grid: (num_kv_heads, max_tiles, 1), where max_tiles = floor(tokens * group / tile_rows) + batch
// bounds what any division of the tokens into rows can need (tile_rows: see prefill.cuh); blocks
// without a tile exit. A row's query tokens are the last of its seq_len positions.
struct PrefillParams {
  const void* q;                // [tokens, kv_heads * group, head_dim]
  const void* k;                // [slots, kv_heads, head_dim]: one layer of the pool
  const void* v;                // alike, of the same strides
  void* out;                    // [tokens, kv_heads * group, head_dim]
  const i32* req_to_token;      // [requests, positions]: a valid slot wherever one is attended
  const i64* req_pool_indices;  // [batch]: rows of req_to_token
  const i64* seq_lens;          // [batch]: this step's tokens included; 0: an idle row
  const i32* qo_indptr;         // [batch + 1]; null: every row has q_len tokens
  i64 q_token_stride;
  i64 q_head_stride;
  i64 out_token_stride;
  i64 out_head_stride;
  i64 pool_token_stride;        // of k and v
  i64 pool_head_stride;
  i64 table_stride;             // from one row of req_to_token to the next
  i32 batch;
  i32 q_len;                    // where qo_indptr is null
  i32 min_q_len;                // rows with fewer tokens are skipped: 2 beside the decode kernel
  i32 window;                   // positions seen, its own among them; 0: all
  float scale;                  // on the scores; above 0
  float soft_cap;               // scores become cap * tanh(score / cap); 0: they stay
};

// How one row is sampled: what astrai_engine's sampler takes from a request.
struct SampleRow {
  double temperature;           // below 1e-5: the likeliest token
  double top_p;                 // 1: off; 0: the likeliest token
  double min_p;                 // 0: off
  u64 seed;
  i64 choice;                   // the index among the choices of a request
  i64 position;                 // tokens generated so far
  i64 top_k;                    // 0 or less, or the whole vocabulary: off; 1: the likeliest token
};

// Draws a token per row. Grid: (rows, 1, 1).
struct SampleParams {
  const float* logits;          // [rows, vocab]; any alignment
  const SampleRow* rows;        // [rows]
  i64* token_ids;               // [rows]: -1 where a logit is NaN, -2 where all are -infinity
  i64 logits_stride;            // from one row of logits to the next
  i32 vocab;                    // at most 2^18
};

}  // namespace astrai
