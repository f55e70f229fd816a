// Rotary embedding of q and k, and the write of k and v to the pool, in one pass over the token.
//
// One block per token. A thread moves two 16-byte vectors at a time: for the half-split layout the
// two hold the two elements of each pair, for the interleaved one they are neighbours.
#pragma once
#include "numbers.cuh"
#include "params.cuh"

namespace astrai {

template <class T, int head_dim>
struct Rotary {
  using Params = RotaryParams;
  static constexpr int threads = 128, blocks_at_once = 8;
  static constexpr int shared_bytes = 0;
  static constexpr int width = Numbers<T>::per_vector;
  static constexpr int steps = head_dim / (2 * width);  // pairs of vectors in a head
  static_assert(head_dim % (2 * width) == 0, "a head must be made of pairs of vectors");

  static ASTRAI_DEVICE void run(const Params& p, u8*) {
    const i64 token = block_x();
    const i64 slot = p.slots ? p.slots[token] : token;
    const f32* angles = nullptr;
    if (p.table) angles = p.table + (p.positions ? p.positions[token] : token) * p.table_stride;
    const int last_q = p.num_q_heads, last_k = last_q + p.num_kv_heads;
    const int num_heads = slot < 0 ? last_q : p.v ? last_k + p.num_kv_heads : last_k;
    for (int i = thread_index(); i < num_heads * steps; i += threads) {
      const int head = i / steps, step = i % steps;
      if (head < last_q) {
        const T* from = (const T*)p.q + token * p.q_token_stride + head * p.q_head_stride;
        T* to = (T*)p.q_out + token * p.q_out_token_stride + head * p.q_out_head_stride;
        move(p, from, to, angles, step);
      } else {
        const bool is_key = head < last_k;
        const i64 kv_head = head - (is_key ? last_q : last_k);
        const T* from = is_key
                            ? (const T*)p.k + token * p.k_token_stride + kv_head * p.k_head_stride
                            : (const T*)p.v + token * p.v_token_stride + kv_head * p.v_head_stride;
        T* to = (T*)(is_key ? p.k_out : p.v_out) + slot * p.out_token_stride +
                kv_head * p.out_head_stride;
        move(p, from, to, is_key ? angles : nullptr, step);
      }
    }
  }

  // One pair of vectors of a head: rotated, or copied where there are no angles for it.
  static ASTRAI_DEVICE void move(const Params& p, const T* from, T* to, const f32* angles,
                                 int step) {
    const int rotated_steps = angles ? p.rotary_dim / (2 * width) : 0;
    const bool is_rotated = step < rotated_steps;
    const bool is_split = is_rotated && !p.interleaved;
    const int first = is_split ? step : 2 * step;
    const int second = is_split ? step + rotated_steps : first + 1;
    Vec16 a = ((const Vec16*)from)[first], b = ((const Vec16*)from)[second];
    if (is_rotated) rotate(a, b, angles + 2 * width * step, is_split);
    ((Vec16*)to)[first] = a;
    ((Vec16*)to)[second] = b;
  }

  // Turns `width` pairs; `angles` holds the cosine and sine of each.
  static ASTRAI_DEVICE void rotate(Vec16& a, Vec16& b, const f32* angles, bool is_split) {
    f32 z[2][width];
    Numbers<T>::unpack(z[0], a);
    Numbers<T>::unpack(z[1], b);
#pragma unroll
    for (int i = 0; i < width; i += 2) {
      f32 turns[4];
      Numbers<f32>::unpack(turns, ((const Vec16*)angles)[i / 2]);
#pragma unroll
      for (int pair = i; pair < i + 2; ++pair) {
        const f32 cosine = turns[2 * (pair - i)], sine = turns[2 * (pair - i) + 1];
        constexpr int half = width / 2;
        f32(&both)[width] = z[pair / half];
        if (is_split)
          turn(z[0][pair], z[1][pair], cosine, sine);
        else
          turn(both[2 * (pair % half)], both[2 * (pair % half) + 1], cosine, sine);
      }
    }
    a = Numbers<T>::pack(z[0]);
    b = Numbers<T>::pack(z[1]);
  }

  static ASTRAI_DEVICE void turn(f32& x, f32& y, f32 cosine, f32 sine) {
    const f32 turned = x * cosine - y * sine;
    y = x * sine + y * cosine;
    x = turned;
  }
};

}  // namespace astrai
