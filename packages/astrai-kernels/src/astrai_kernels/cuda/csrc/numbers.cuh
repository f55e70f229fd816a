// Stored numbers and the float32 they are computed in.
#pragma once
#include "platform.cuh"

namespace astrai {

template <class T>
struct Numbers;  // of one dtype, as many as a 16-byte vector holds

template <>
struct Numbers<f32> {
  static constexpr int per_vector = 4;
  static ASTRAI_DEVICE void unpack(f32 (&to)[4], const Vec16& from) {
    to[0] = as_float(from.x);
    to[1] = as_float(from.y);
    to[2] = as_float(from.z);
    to[3] = as_float(from.w);
  }
  static ASTRAI_DEVICE Vec16 pack(const f32 (&from)[4]) {
    return {as_bits(from[0]), as_bits(from[1]), as_bits(from[2]), as_bits(from[3])};
  }
};

template <class Half>
struct PairsOf {  // 16-bit numbers, two in a word
  static constexpr int per_vector = 8;
  static ASTRAI_DEVICE void unpack(f32 (&to)[8], const Vec16& from) {
    const u32 words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = Half::low(words[i]);
      to[2 * i + 1] = Half::high(words[i]);
    }
  }
  static ASTRAI_DEVICE Vec16 pack(const f32 (&from)[8]) {
    return {Half::pack_pair(from[0], from[1]), Half::pack_pair(from[2], from[3]),
            Half::pack_pair(from[4], from[5]), Half::pack_pair(from[6], from[7])};
  }
};

template <>
struct Numbers<bf16> : PairsOf<Numbers<bf16>> {
  static ASTRAI_DEVICE f32 low(u32 pair) { return as_float(pair << 16); }
  static ASTRAI_DEVICE f32 high(u32 pair) { return as_float(pair & 0xFFFF0000u); }
  static ASTRAI_DEVICE u32 pack_pair(f32 low, f32 high) { return pack_bf16(low, high); }
};

template <>
struct Numbers<f16> : PairsOf<Numbers<f16>> {
  static ASTRAI_DEVICE f32 low(u32 pair) { return f16_to_float((u16)pair); }
  static ASTRAI_DEVICE f32 high(u32 pair) { return f16_to_float((u16)(pair >> 16)); }
  static ASTRAI_DEVICE u32 pack_pair(f32 low, f32 high) { return pack_f16(low, high); }
};

}  // namespace astrai
