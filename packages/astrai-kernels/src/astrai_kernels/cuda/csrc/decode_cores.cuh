// Decode attention on CUDA cores: for few query heads per K/V head, when memory is the limit.
//
// A key belongs to `lanes` neighbouring lanes, a warp has 32 / lanes keys at a time, and every
// thread has `unroll` of them under way. K and V go from memory to registers, past shared memory.
#pragma once
#include "decode_split.cuh"

namespace astrai {

template <class T, int head_dim, int group>
struct DecodeCores {
  using Params = DecodeParams;
  static constexpr int num_warps = 4, threads = 32 * num_warps, blocks_at_once = 3;
  static constexpr int lanes = head_dim == 96 ? 4 : head_dim > 128 ? 16 : 8;
  static constexpr int vectors = head_dim / (8 * lanes);  // of 8 elements, in a thread
  static constexpr int unroll = vectors == 1 ? 4 : vectors == 2 ? 2 : 1;  // 8 or 6 loads in flight
  static constexpr int keys_at_once = 32 / lanes * num_warps;
  using Parts = WarpParts<num_warps, group, head_dim>;
  static constexpr int shared_bytes = sizeof(Parts);
  static_assert(head_dim % (8 * lanes) == 0, "a key must be made of whole vectors");

  // What a thread has of each head: its columns of q and of the output, and the statistics.
  f32 q[group][vectors][8], out[group][vectors][8], largest[group], sum[group];

  static ASTRAI_DEVICE void run(const Params& p, u8* shared) {
    const Share share(p);
    if (share.num_shares == 0) return;
    const int kv_head = block_x();
    DecodeCores state;
    state.start(p, share, kv_head);
    const Scorer scorer(p.scale, p.soft_cap);
    state.attend(p, share, kv_head, scorer);
    state.merge_lanes(scorer);
    Parts& parts = *(Parts*)shared;
    state.leave(parts, scorer);
    Merge<T, num_warps, group, head_dim>{p, share, group, kv_head * group, group, parts}.run();
  }

  // Vector c of a thread's key begins at this column: lanes read side by side.
  static ASTRAI_DEVICE int column(int c) { return (c * lanes + (int)lane_index() % lanes) * 8; }

  ASTRAI_DEVICE void start(const Params& p, const Share& share, int kv_head) {
#pragma unroll
    for (int g = 0; g < group; ++g) {
      largest[g] = hidden_score;
      sum[g] = 0;
      const T* from = (const T*)p.q + share.token * p.q_token_stride +
                      ((i64)kv_head * group + g) * p.q_head_stride;
#pragma unroll
      for (int c = 0; c < vectors; ++c) {
        Numbers<T>::unpack(q[g][c], load_streaming(from + column(c)));
#pragma unroll
        for (int e = 0; e < 8; ++e) out[g][c][e] = 0;
      }
    }
  }

  ASTRAI_DEVICE void attend(const Params& p, const Share& share, int kv_head,
                            const Scorer& scorer) {
    const T* keys = (const T*)p.k + kv_head * p.pool_head_stride;
    const T* values = (const T*)p.v + kv_head * p.pool_head_stride;
    const int offset = warp_index() * (32 / lanes) + lane_index() / lanes;
    int slots[unroll];  // of the keys of the next round, or -1
    find_slots(slots, share, share.begin + offset);
    for (int base = share.begin; base < share.end; base += keys_at_once * unroll) {
      Vec16 k[unroll][vectors], v[unroll][vectors];
      bool is_key[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        is_key[u] = slots[u] >= 0;
        const i64 place = slots[u] * p.pool_token_stride;
#pragma unroll
        for (int c = 0; c < vectors; ++c) {
          k[u][c] = is_key[u] ? load_streaming(keys + place + column(c)) : Vec16{0, 0, 0, 0};
          v[u][c] = is_key[u] ? load_streaming(values + place + column(c)) : Vec16{0, 0, 0, 0};
        }
      }
      find_slots(slots, share, base + keys_at_once * unroll + offset);
      f32 weights[unroll][group];
      find_scores(weights, k, is_key, scorer);
      find_weights(weights, scorer);
      add_values(weights, v);
    }
  }

  static ASTRAI_DEVICE void find_slots(int (&slots)[unroll], const Share& share, int position) {
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const int at = position + u * keys_at_once;
      slots[u] = at < share.end ? share.slots[at] : -1;
    }
  }

  ASTRAI_DEVICE void find_scores(f32 (&scores)[unroll][group], const Vec16 (&k)[unroll][vectors],
                                 const bool (&is_key)[unroll], const Scorer& scorer) const {
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
#pragma unroll
      for (int g = 0; g < group; ++g) scores[u][g] = 0;
#pragma unroll
      for (int c = 0; c < vectors; ++c) {
        f32 key[8];
        Numbers<T>::unpack(key, k[u][c]);
#pragma unroll
        for (int g = 0; g < group; ++g)
#pragma unroll
          for (int e = 0; e < 8; ++e) scores[u][g] += q[g][c][e] * key[e];
      }
#pragma unroll
      for (int g = 0; g < group; ++g) {
#pragma unroll
        for (int mask = lanes / 2; mask > 0; mask /= 2)
          scores[u][g] += shuffle_xor(scores[u][g], mask);
        scores[u][g] = is_key[u] ? scorer.score(scores[u][g]) : hidden_score;
      }
    }
  }

  // Scores become weights relative to a new largest score, to which all earlier ones are brought.
  ASTRAI_DEVICE void find_weights(f32 (&scores)[unroll][group], const Scorer& scorer) {
#pragma unroll
    for (int g = 0; g < group; ++g) {
      f32 now = largest[g];
#pragma unroll
      for (int u = 0; u < unroll; ++u) now = larger(now, scores[u][g]);
      const f32 base = rescale(g, now, scorer);
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        scores[u][g] = scorer.weight(scores[u][g], base);
        sum[g] += scores[u][g];
      }
    }
  }

  ASTRAI_DEVICE f32 rescale(int g, f32 now, const Scorer& scorer) {
    const f32 base = scorer.base(now), factor = scorer.weight(largest[g], base);
    largest[g] = now;
    sum[g] *= factor;
#pragma unroll
    for (int c = 0; c < vectors; ++c)
#pragma unroll
      for (int e = 0; e < 8; ++e) out[g][c][e] *= factor;
    return base;
  }

  ASTRAI_DEVICE void add_values(const f32 (&weights)[unroll][group],
                                const Vec16 (&v)[unroll][vectors]) {
#pragma unroll
    for (int u = 0; u < unroll; ++u)
#pragma unroll
      for (int c = 0; c < vectors; ++c) {
        f32 value[8];
        Numbers<T>::unpack(value, v[u][c]);
#pragma unroll
        for (int g = 0; g < group; ++g)
#pragma unroll
          for (int e = 0; e < 8; ++e) out[g][c][e] += weights[u][g] * value[e];
      }
  }

  // Lanes with the same columns bring together what they found on different keys.
  ASTRAI_DEVICE void merge_lanes(const Scorer& scorer) {
#pragma unroll
    for (int g = 0; g < group; ++g) {
      f32 now = largest[g];
#pragma unroll
      for (int mask = lanes; mask < 32; mask *= 2) now = larger(now, shuffle_xor(now, mask));
      rescale(g, now, scorer);
#pragma unroll
      for (int mask = lanes; mask < 32; mask *= 2) {
        sum[g] += shuffle_xor(sum[g], mask);
#pragma unroll
        for (int c = 0; c < vectors; ++c)
#pragma unroll
          for (int e = 0; e < 8; ++e) out[g][c][e] += shuffle_xor(out[g][c][e], mask);
      }
    }
  }

  ASTRAI_DEVICE void leave(Parts& parts, const Scorer& scorer) const {
    const int warp = warp_index();
    if ((int)lane_index() >= lanes) return;
#pragma unroll
    for (int g = 0; g < group; ++g) {
#pragma unroll
      for (int c = 0; c < vectors; ++c)
#pragma unroll
        for (int e = 0; e < 8; ++e) parts.out[warp][g][column(c) + e] = out[g][c][e];
      if (lane_index() > 0) continue;
      parts.stats[warp][g][0] = scorer.in_log2(largest[g]);
      parts.stats[warp][g][1] = sum[g];
    }
  }
};

}  // namespace astrai
