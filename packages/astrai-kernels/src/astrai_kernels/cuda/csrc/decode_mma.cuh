// Decode attention on tensor cores. Scores and outputs are computed transposed: a product's sixteen
// rows are keys, then columns of the output, and its eight columns are query heads of a K/V head.
// With the heads as rows, groups of up to eight would take twice the products and registers.
//
// Each warp streams keys of its own through its own ring of shared memory, 16 at a time, and never
// waits for other warps before the end. Groups above 16 heads take several blocks.
#pragma once
#include "decode_split.cuh"

namespace astrai {

// What a warp knows of eight heads. A lane has part of two of them: lane % 4 * 2 and the next one.
template <class T, int head_dim>
struct Octet {
  static constexpr int depth = head_dim / 16;  // products in a score, and in an output
  u32 q[depth][2];
  f32 out[depth][4], largest[2], sum[2];

  // Only the first `heads` exist: the others' q is 0.
  ASTRAI_DEVICE void start(const T* queries, i64 head_stride, int heads) {
    const int head = lane_index() / 4;
    const T* from = queries + head * head_stride + lane_index() % 4 * 2;
#pragma unroll
    for (int i = 0; i < depth; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        q[i][half] = head < heads ? *(const u32*)(from + 16 * i + 8 * half) : 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) out[i][e] = 0;
    }
#pragma unroll
    for (int own = 0; own < 2; ++own) {
      largest[own] = hidden_score;
      sum[own] = 0;
    }
  }

  // From products of q with 16 keys to the right operands of their values, relative to a new
  // largest score, to which all earlier ones are brought.
  ASTRAI_DEVICE void find_weights(u32 (&weights)[2], f32 (&scores)[4], int num_keys,
                                  const Scorer& scorer) {
#pragma unroll
    for (int own = 0; own < 2; ++own) {
      f32 now = largest[own];
#pragma unroll
      for (int e = own; e < 4; e += 2) {
        const int key = (int)lane_index() / 4 + e / 2 * 8;
        scores[e] = key < num_keys ? scorer.score(scores[e]) : hidden_score;
        now = larger(now, scores[e]);
      }
      const f32 base = rescale(own, largest_of_column(now), scorer);
#pragma unroll
      for (int e = own; e < 4; e += 2) {
        scores[e] = scorer.weight(scores[e], base);
        sum[own] += scores[e];
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      weights[half] =
          transpose_matrix(Numbers<T>::pack_pair(scores[2 * half], scores[2 * half + 1]));
  }

  ASTRAI_DEVICE f32 rescale(int own, f32 now, const Scorer& scorer) {
    const f32 base = scorer.base(now), factor = scorer.weight(largest[own], base);
    largest[own] = now;
    sum[own] *= factor;
#pragma unroll
    for (int i = 0; i < depth; ++i) {
      out[i][own] *= factor;
      out[i][own + 2] *= factor;
    }
    return base;
  }

  // To the rows of the first `heads`.
  ASTRAI_DEVICE void leave(f32 (*rows)[head_dim], f32 (*stats)[2], int heads,
                           const Scorer& scorer) const {
    const int column = lane_index() / 4;
#pragma unroll
    for (int own = 0; own < 2; ++own) {
      const int head = lane_index() % 4 * 2 + own;
      const f32 total = sum_of_column(sum[own]);
      if (head >= heads) continue;
#pragma unroll
      for (int i = 0; i < depth; ++i) {
        rows[head][16 * i + column] = out[i][own];
        rows[head][16 * i + column + 8] = out[i][own + 2];
      }
      if (column > 0) continue;
      stats[head][0] = scorer.in_log2(largest[own]);
      stats[head][1] = total;
    }
  }
};

template <class T, int head_dim, int group>
struct DecodeMma {
  using Params = DecodeParams;
  static constexpr int num_warps = head_dim > 128 ? 2 : 4, threads = 32 * num_warps;
  static constexpr int blocks_at_once = 2;
  static constexpr int num_octets = group > 8 ? 2 : 1, max_heads = 8 * num_octets;
  static constexpr int head_tiles = (group + max_heads - 1) / max_heads;
  static constexpr int num_keys = 16, num_stages = 3;
  static constexpr int tile_size = num_keys * head_dim;
  static constexpr int shared_bytes = num_warps * num_stages * 2 * tile_size * (int)sizeof(T);
  using Parts = WarpParts<num_warps, max_heads, head_dim>;
  static_assert(sizeof(Parts) <= shared_bytes, "results take the place of the rings");
  using Heads = Octet<T, head_dim>;
  using KeyTile = Tile<T, head_dim>;

  Heads octets[num_octets];

  static ASTRAI_DEVICE void run(const Params& p, u8* shared) {
    const Share share(p);
    if (share.num_shares == 0) return;
    const int kv_head = block_x() / head_tiles, first = block_x() % head_tiles * max_heads;
    const int heads = group - first < max_heads ? group - first : max_heads;
    const int first_head = kv_head * group + first;
    const T* queries =
        (const T*)p.q + share.token * p.q_token_stride + first_head * p.q_head_stride;
    DecodeMma state;
#pragma unroll
    for (int i = 0; i < num_octets; ++i)
      state.octets[i].start(queries + 8 * i * p.q_head_stride, p.q_head_stride, heads - 8 * i);
    const Scorer scorer(p.scale, p.soft_cap);
    state.attend(p, share, kv_head, (T*)shared, scorer);
    block_sync();  // the rings are free for results
    Parts& parts = *(Parts*)shared;
#pragma unroll
    for (int i = 0; i < num_octets; ++i)
      state.octets[i].leave(&parts.out[warp_index()][8 * i], &parts.stats[warp_index()][8 * i],
                            heads - 8 * i, scorer);
    Merge<T, num_warps, max_heads, head_dim>{p, share, group, first_head, heads, parts}.run();
  }

  ASTRAI_DEVICE void attend(const Params& p, const Share& share, int kv_head, T* shared,
                            const Scorer& scorer) {
    const T* keys = (const T*)p.k + kv_head * p.pool_head_stride;
    const T* values = (const T*)p.v + kv_head * p.pool_head_stride;
    T* ring = shared + warp_index() * (num_stages * 2 * tile_size);
    const int first = share.begin + (int)warp_index() * num_keys;
    constexpr int stride = num_warps * num_keys;
    int slot = slot_at(share, first);
    int next = 0, stage = 0;  // tiles asked for; the stage of the next one
    const auto ask = [&] {
      T* tile = ring + stage * (2 * tile_size);
      copy_tile(tile, tile + tile_size, keys, values, slot, p.pool_token_stride);
      copy_commit();
      slot = slot_at(share, first + ++next * stride);
      stage = stage + 1 == num_stages ? 0 : stage + 1;
    };
#pragma unroll
    for (int i = 0; i < num_stages - 1; ++i) ask();
    int current = 0;
    for (int position = first; position < share.end; position += stride) {
      copy_wait<num_stages - 2>();
      warp_sync();
      ask();  // into the stage that all lanes are done with
      const T* tile = ring + current * (2 * tile_size);
      current = current + 1 == num_stages ? 0 : current + 1;
      attend_tile(tile, tile + tile_size, share.end - position, scorer);
    }
    copy_wait<0>();
  }

  // The slot of this lane's key of a tile, or -1.
  static ASTRAI_DEVICE int slot_at(const Share& share, int position) {
    const int at = position + (int)lane_index();
    return lane_index() < num_keys && at < share.end ? share.slots[at] : -1;
  }

  static ASTRAI_DEVICE void copy_tile(T* key_tile, T* value_tile, const T* keys, const T* values,
                                      int slots, i64 stride) {
#pragma unroll
    for (int i = lane_index(); i < num_keys * KeyTile::chunks; i += 32) {
      const int row = i / KeyTile::chunks, chunk = i % KeyTile::chunks;
      const int slot = shuffle_from(slots, row);
      const i64 place = slot * stride + chunk * 8;
      copy_async_16(KeyTile::chunk(key_tile, row, chunk), keys + place, slot >= 0);
      copy_async_16(KeyTile::chunk(value_tile, row, chunk), values + place, slot >= 0);
    }
  }

  ASTRAI_DEVICE void attend_tile(const T* keys, const T* values, int keys_left,
                                 const Scorer& scorer) {
    f32 scores[num_octets][4] = {};
#pragma unroll
    for (int d = 0; d < Heads::depth; ++d) {
      u32 k[4];
      KeyTile::load_left(k, keys, 0, 16 * d);
#pragma unroll
      for (int i = 0; i < num_octets; ++i)
        multiply_add(T(), scores[i], k, octets[i].q[d][0], octets[i].q[d][1]);
    }
    u32 weights[num_octets][2];
#pragma unroll
    for (int i = 0; i < num_octets; ++i)
      octets[i].find_weights(weights[i], scores[i], keys_left, scorer);
#pragma unroll
    for (int d = 0; d < Heads::depth; ++d) {
      u32 v[4];
      KeyTile::load_left_transposed(v, values, 0, 16 * d);
#pragma unroll
      for (int i = 0; i < num_octets; ++i)
        multiply_add(T(), octets[i].out[d], v, weights[i][0], weights[i][1]);
    }
  }
};

}  // namespace astrai
