// Decode attention on tensor cores: up to 16 query heads of one K/V head are the rows of a product.
//
// Each warp streams keys of its own through its own ring of shared memory, 16 at a time, and never
// waits for other warps before the end. Groups above 16 heads take several blocks.
#pragma once
#include "decode_split.cuh"

namespace astrai {

template <class T, int head_dim, int group>
struct DecodeMma {
  using Params = DecodeParams;
  static constexpr int num_warps = head_dim > 128 ? 2 : 4, threads = 32 * num_warps;
  static constexpr int blocks_at_once = 2;
  static constexpr int rows = 16, head_tiles = (group + rows - 1) / rows;
  static constexpr int num_keys = 16, num_stages = 3;
  static constexpr int depth = head_dim / 16;    // products in a score
  static constexpr int columns = head_dim / 8;   // products in an output
  static constexpr int tile_size = num_keys * head_dim;
  static constexpr int ring_bytes = num_warps * num_stages * 2 * tile_size * (int)sizeof(T);
  using Parts = WarpParts<num_warps, rows, head_dim>;
  static constexpr int shared_bytes =
      ring_bytes > (int)sizeof(Parts) ? ring_bytes : (int)sizeof(Parts);
  using KeyTile = Tile<T, head_dim>;

  u32 q[depth][4];
  f32 out[columns][4], largest[2], sum[2];  // of rows lane / 4 and lane / 4 + 8

  static ASTRAI_DEVICE void run(const Params& p, u8* shared) {
    const Share share(p);
    if (share.num_shares == 0) return;
    const int kv_head = block_x() / head_tiles, first = block_x() % head_tiles * rows;
    const int heads = group - first < rows ? group - first : rows;
    const int first_head = kv_head * group + first;
    DecodeMma state;
    state.start(p, share, first_head, heads);
    const Scorer scorer(p.scale, p.soft_cap);
    state.attend(p, share, kv_head, (T*)shared, scorer);
    block_sync();  // the rings are free for results
    Parts& parts = *(Parts*)shared;
    state.leave(parts, heads, scorer);
    Merge<T, num_warps, rows, head_dim>{p, share, group, first_head, heads, parts}.run();
  }

  ASTRAI_DEVICE void start(const Params& p, const Share& share, int first_head, int heads) {
    const int row = lane_index() / 4, column = lane_index() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i64 head = first_head + row + 8 * half;
      const bool is_head = row + 8 * half < heads;
      const T* from = (const T*)p.q + share.token * p.q_token_stride + head * p.q_head_stride;
#pragma unroll
      for (int i = 0; i < depth; ++i) {
        q[i][half] = is_head ? *(const u32*)(from + 16 * i + column) : 0;
        q[i][half + 2] = is_head ? *(const u32*)(from + 16 * i + column + 8) : 0;
      }
      largest[half] = hidden_score;
      sum[half] = 0;
    }
#pragma unroll
    for (int i = 0; i < columns; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[i][e] = 0;
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
    f32 scores[2][4] = {};
#pragma unroll
    for (int i = 0; i < depth; ++i) {
      u32 b[4];
      KeyTile::load_keys(b, keys, 0, 16 * i);
      multiply_add(T(), scores[0], q[i], b[0], b[1]);
      multiply_add(T(), scores[1], q[i], b[2], b[3]);
    }
    f32 now[2] = {largest[0], largest[1]};
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = 8 * i + (int)lane_index() % 4 * 2 + e % 2;
        scores[i][e] = key < keys_left ? scorer.score(scores[i][e]) : hidden_score;
        now[e / 2] = larger(now[e / 2], scores[i][e]);
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const f32 base = rescale(half, largest_of_row(now[half]), scorer);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        f32& score = scores[i / 2][2 * half + i % 2];
        score = scorer.weight(score, base);
        sum[half] += score;
      }
    }
    const u32 weights[4] = {Numbers<T>::pack_pair(scores[0][0], scores[0][1]),
                            Numbers<T>::pack_pair(scores[0][2], scores[0][3]),
                            Numbers<T>::pack_pair(scores[1][0], scores[1][1]),
                            Numbers<T>::pack_pair(scores[1][2], scores[1][3])};
#pragma unroll
    for (int i = 0; i < columns; i += 2) {
      u32 b[4];
      KeyTile::load_values(b, values, 0, 8 * i);
      multiply_add(T(), out[i], weights, b[0], b[1]);
      multiply_add(T(), out[i + 1], weights, b[2], b[3]);
    }
  }

  ASTRAI_DEVICE f32 rescale(int half, f32 now, const Scorer& scorer) {
    const f32 base = scorer.base(now), factor = scorer.weight(largest[half], base);
    largest[half] = now;
    sum[half] *= factor;
#pragma unroll
    for (int i = 0; i < columns; ++i) {
      out[i][2 * half] *= factor;
      out[i][2 * half + 1] *= factor;
    }
    return base;
  }

  ASTRAI_DEVICE void leave(Parts& parts, int heads, const Scorer& scorer) {
    const int warp = warp_index(), column = lane_index() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane_index() / 4 + 8 * half;
      sum[half] = sum_of_row(sum[half]);
      if (row >= heads) continue;
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        parts.out[warp][row][8 * i + column] = out[i][2 * half];
        parts.out[warp][row][8 * i + column + 1] = out[i][2 * half + 1];
      }
      if (column > 0) continue;
      parts.stats[warp][row][0] = scorer.in_log2(largest[half]);
      parts.stats[warp][row][1] = sum[half];
    }
  }
};

}  // namespace astrai
