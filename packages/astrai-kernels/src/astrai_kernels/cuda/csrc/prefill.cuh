// Attention of ragged rows of query tokens over the paged pool, on tensor cores.
//
// The query heads of one K/V head are packed: row r of a tile is head r % group of token r / group,
// so K and V are read once for all of them. A block serves one tile of rows; a warp keeps its rows'
// output in registers while tiles of keys pass through shared memory, two of them at a time: while
// one is attended the next one is copied, and the slots of the one after that.
#pragma once
#include "attention.cuh"
#include "params.cuh"

namespace astrai {

// The tile of query rows that a block serves, found in the batch by the block's number.
struct QueryTile {
  int row = -1, tile = 0;     // of the batch; of the row's tiles; -1: nothing to do
  int num_tokens = 0;         // of the row
  i64 first_token = 0;        // of the row, in the packed step

  ASTRAI_DEVICE QueryTile(const PrefillParams& p, int group, int tile_rows, int index) {
    for (int base = 0; base < p.batch; base += 32) {
      const int own = base + (int)lane_index();
      const int tokens = own < p.batch ? tokens_of(p, own) : 0;
      const int tiles = tokens >= p.min_q_len ? (tokens * group + tile_rows - 1) / tile_rows : 0;
      int end = tiles;  // of this lane's tiles among those of 32 rows
#pragma unroll
      for (int delta = 1; delta < 32; delta *= 2) {
        const int before = shuffle_up(end, delta);
        end += (int)lane_index() >= delta ? before : 0;
      }
      const int total = shuffle_from(end, 31);
      if (index >= total) {
        index -= total;
        continue;
      }
      int lane = end <= index ? 1 : 0;  // the number of lanes whose tiles come before
#pragma unroll
      for (int mask = 1; mask < 32; mask *= 2) lane += shuffle_xor(lane, mask);
      row = base + lane;
      num_tokens = shuffle_from(tokens, lane);
      // A row's last tiles see the most keys: they are served first.
      tile = shuffle_from(end, lane) - 1 - index;
      first_token = p.qo_indptr ? p.qo_indptr[row] : (i64)row * p.q_len;
      return;
    }
  }
  static ASTRAI_DEVICE int tokens_of(const PrefillParams& p, int row) {
    return p.qo_indptr ? p.qo_indptr[row + 1] - p.qo_indptr[row] : p.q_len;
  }
};

template <class T, int head_dim, int group>
struct Prefill {
  using Params = PrefillParams;
  static constexpr int num_warps = 4, threads = 32 * num_warps, blocks_at_once = 2;
  static constexpr int blocks = head_dim > 128 ? 1 : 2;  // of 16 rows, in a warp
  static constexpr int tile_rows = num_warps * blocks * 16;
  static constexpr int num_keys = head_dim > 64 ? 32 : 64;  // more would not fit in registers
  static constexpr int depth = head_dim / 16;      // products in a score
  static constexpr int columns = head_dim / 8;     // products in an output
  static constexpr int key_columns = num_keys / 8;
  using Rows = Tile<T, head_dim>;

  struct Shared {
    T q[tile_rows * head_dim];  // afterwards the output
    T keys[2][num_keys * head_dim];
    T values[2][num_keys * head_dim];
    i32 slots[2][num_keys];
  };
  static constexpr int shared_bytes = sizeof(Shared);

  const Params& p;
  const QueryTile& query;
  Shared& shared;
  const Scorer scorer;
  int begin, end;        // of the keys that any row of the tile sees
  int first_position;    // of the row's first query token
  f32 out[blocks][columns][4], largest[blocks][2], sum[blocks][2];

  static ASTRAI_DEVICE void run(const Params& p, u8* shared) {
    const QueryTile query(p, group, tile_rows, block_y());
    if (query.row < 0) return;
    Prefill(p, query, *(Shared*)shared).attend();
  }

  ASTRAI_DEVICE Prefill(const Params& params, const QueryTile& tile, Shared& memory)
      : p(params), query(tile), shared(memory), scorer(params.scale, params.soft_cap) {
    const int length = (int)p.seq_lens[query.row];
    first_position = length - query.num_tokens;
    const int last_token = (query.tile * tile_rows + tile_rows - 1) / group;
    const int last = last_token < query.num_tokens ? last_token : query.num_tokens - 1;
    end = length > 0 ? first_position + last + 1 : 0;
    const int unseen = position_of(0) - p.window + 1;
    begin = p.window > 0 && unseen > 0 ? unseen : 0;
#pragma unroll
    for (int b = 0; b < blocks; ++b) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[b][half] = hidden_score;
        sum[b][half] = 0;
      }
#pragma unroll
      for (int i = 0; i < columns; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[b][i][e] = 0;
    }
  }

  // The position of the token that a row of this tile belongs to.
  ASTRAI_DEVICE int position_of(int row) const {
    return first_position + (query.tile * tile_rows + row) / group;
  }

  ASTRAI_DEVICE void attend() {
    copy_slots(0);
    copy_slots(1);
    copy_commit();
    copy_wait<0>();
    block_sync();
    copy_queries();
    copy_keys(0);
    copy_commit();
    const int tiles = (end - begin + num_keys - 1) / num_keys;
    for (int i = 0; i < tiles; ++i) {
      copy_wait<0>();
      block_sync();  // tile i has come, and nobody needs tile i - 1 or the slots of tile i
      copy_keys(i + 1);
      copy_slots(i + 2);
      copy_commit();
      attend_tile(i);
    }
    copy_wait<0>();
    block_sync();
    write();
  }

  ASTRAI_DEVICE void copy_slots(int tile) {
    const i32* slots = p.req_to_token + p.req_pool_indices[query.row] * p.table_stride;
    const int position = begin + tile * num_keys + (int)thread_index();
    if (thread_index() < num_keys && position < end)
      copy_async_4(&shared.slots[tile & 1][thread_index()], slots + position);
  }

  ASTRAI_DEVICE void copy_keys(int tile) {
    const int first = begin + tile * num_keys;
    if (first >= end) return;
    T* key_tile = shared.keys[tile & 1];
    T* value_tile = shared.values[tile & 1];
#pragma unroll 2
    for (int i = thread_index(); i < num_keys * Rows::chunks; i += threads) {
      const int row = i / Rows::chunks, chunk = i % Rows::chunks;
      const bool is_key = first + row < end;
      const i64 slot = is_key ? shared.slots[tile & 1][row] : 0;
      const i64 place =
          slot * p.pool_token_stride + block_x() * p.pool_head_stride + chunk * 8;
      copy_async_16(Rows::chunk(key_tile, row, chunk), (const T*)p.k + place, is_key);
      copy_async_16(Rows::chunk(value_tile, row, chunk), (const T*)p.v + place, is_key);
    }
  }

  ASTRAI_DEVICE void copy_queries() {
#pragma unroll 4
    for (int i = thread_index(); i < tile_rows * Rows::chunks; i += threads) {
      const int row = i / Rows::chunks, chunk = i % Rows::chunks;
      bool is_row;
      const i64 place = place_of(row, is_row, p.q_token_stride, p.q_head_stride) + chunk * 8;
      copy_async_16(Rows::chunk(shared.q, row, chunk), (const T*)p.q + place, is_row);
    }
  }

  // Where a row of the tile begins in q or out; 0 for rows past the last token.
  ASTRAI_DEVICE i64 place_of(int row, bool& is_row, i64 token_stride, i64 head_stride) const {
    const int packed = query.tile * tile_rows + row, token = packed / group;
    is_row = token < query.num_tokens;
    if (!is_row) return 0;
    const int head = (int)block_x() * group + packed % group;
    return (query.first_token + token) * token_stride + head * head_stride;
  }

  ASTRAI_DEVICE void attend_tile(int tile) {
    f32 scores[blocks][key_columns][4] = {};
    find_scores(scores, shared.keys[tile & 1]);
    if (p.soft_cap > 0) cap(scores);
    const int first = begin + tile * num_keys;
    const bool all_see_all =
        first + num_keys - 1 <= position_of(0) &&
        (p.window == 0 || first > position_of(tile_rows - 1) - p.window);
    if (!all_see_all) hide(scores, first);
    find_weights(scores);
    add_values(scores, shared.values[tile & 1]);
  }

  ASTRAI_DEVICE void find_scores(f32 (&scores)[blocks][key_columns][4], const T* tile) const {
#pragma unroll
    for (int d = 0; d < depth; ++d) {
      u32 a[blocks][4];
#pragma unroll
      for (int b = 0; b < blocks; ++b)
        Rows::load_left(a[b], shared.q, (warp_index() * blocks + b) * 16, 16 * d);
#pragma unroll
      for (int i = 0; i < key_columns; i += 2) {
        u32 k[4];
        Rows::load_keys(k, tile, 8 * i, 16 * d);
#pragma unroll
        for (int b = 0; b < blocks; ++b) {
          multiply_add(T(), scores[b][i], a[b], k[0], k[1]);
          multiply_add(T(), scores[b][i + 1], a[b], k[2], k[3]);
        }
      }
    }
  }

  ASTRAI_DEVICE void cap(f32 (&scores)[blocks][key_columns][4]) const {
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
      for (int i = 0; i < key_columns; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[b][i][e] = scorer.score(scores[b][i][e]);
  }

  // The row in the tile of a thread's elements 0, 1 (half 0) and 2, 3 (half 1) of a product.
  static ASTRAI_DEVICE int own_row(int block, int half) {
    return (warp_index() * blocks + block) * 16 + lane_index() / 4 + 8 * half;
  }

  ASTRAI_DEVICE void hide(f32 (&scores)[blocks][key_columns][4], int first) const {
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int last_seen = position_of(own_row(b, half));
        const int last_unseen = p.window > 0 ? last_seen - p.window : -1;
#pragma unroll
        for (int i = 0; i < key_columns; ++i)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            const int key = first + 8 * i + (int)lane_index() % 4 * 2 + e % 2;
            if (key > last_seen || key <= last_unseen) scores[b][i][e] = hidden_score;
          }
      }
  }

  // Scores become weights relative to a new largest score, to which all earlier ones are brought.
  ASTRAI_DEVICE void find_weights(f32 (&scores)[blocks][key_columns][4]) {
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        f32 now = largest[b][half];
#pragma unroll
        for (int i = 0; i < key_columns; ++i)
          now = larger(now, larger(scores[b][i][2 * half], scores[b][i][2 * half + 1]));
        now = largest_of_row(now);
        const f32 base = scorer.base(now), factor = scorer.weight(largest[b][half], base);
        largest[b][half] = now;
        sum[b][half] *= factor;
#pragma unroll
        for (int i = 0; i < columns; ++i) {
          out[b][i][2 * half] *= factor;
          out[b][i][2 * half + 1] *= factor;
        }
#pragma unroll
        for (int i = 0; i < key_columns; ++i)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            scores[b][i][e] = scorer.weight(scores[b][i][e], base);
            sum[b][half] += scores[b][i][e];
          }
      }
  }

  ASTRAI_DEVICE void add_values(const f32 (&weights)[blocks][key_columns][4], const T* tile) {
#pragma unroll
    for (int k = 0; k < num_keys / 16; ++k) {
      u32 a[blocks][4];
#pragma unroll
      for (int b = 0; b < blocks; ++b)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const f32(&pairs)[4] = weights[b][2 * k + i / 2];
          a[b][i] = Numbers<T>::pack_pair(pairs[i % 2 * 2], pairs[i % 2 * 2 + 1]);
        }
#pragma unroll
      for (int i = 0; i < columns; i += 2) {
        u32 v[4];
        Rows::load_values(v, tile, 16 * k, 8 * i);
#pragma unroll
        for (int b = 0; b < blocks; ++b) {
          multiply_add(T(), out[b][i], a[b], v[0], v[1]);
          multiply_add(T(), out[b][i + 1], a[b], v[2], v[3]);
        }
      }
    }
  }

  // Each warp brings its rows into the order of memory in its part of shared.q.
  ASTRAI_DEVICE void write() {
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const f32 total = sum_of_row(sum[b][half]);
        const f32 factor = total > 0 ? 1 / total : 0;
#pragma unroll
        for (int i = 0; i < columns; ++i) {
          T* chunk = Rows::chunk(shared.q, own_row(b, half), i);
          ((u32*)chunk)[lane_index() % 4] = Numbers<T>::pack_pair(
              out[b][i][2 * half] * factor, out[b][i][2 * half + 1] * factor);
        }
      }
    warp_sync();
    constexpr int warp_rows = 16 * blocks;
#pragma unroll 4
    for (int i = lane_index(); i < warp_rows * Rows::chunks; i += 32) {
      const int row = warp_index() * warp_rows + i / Rows::chunks, chunk = i % Rows::chunks;
      bool is_row;
      const i64 place = place_of(row, is_row, p.out_token_stride, p.out_head_stride) + chunk * 8;
      if (is_row) *(Vec16*)((T*)p.out + place) = *(const Vec16*)Rows::chunk(shared.q, row, chunk);
    }
  }
};

}  // namespace astrai
