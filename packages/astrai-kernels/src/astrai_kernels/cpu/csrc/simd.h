// The instruction-set layer: everything above it is written with these types and functions.
//
// Vectors are the compiler's own generic ones, so arithmetic operators work on them everywhere.
// What generic code cannot say well (fused multiply-add, integer dot products, half precision) is
// an AVX2 intrinsic where the compiler targets AVX2, and plain code elsewhere.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(ASTRAI_PORTABLE)
#define ASTRAI_AVX2 1
#include <immintrin.h>
#endif

#define ASTRAI_INLINE static inline __attribute__((always_inline))

namespace astrai {

typedef float f32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef int16_t i16x16 __attribute__((vector_size(32)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

constexpr int kLanes = 8;

// A half-precision number, and the upper half of a float, as they are stored.
struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

template <class V>
ASTRAI_INLINE V load_bytes(const void* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}

ASTRAI_INLINE f32x8 splat(float x) { return f32x8{x, x, x, x, x, x, x, x}; }
ASTRAI_INLINE f32x8 load(const float* p) { return load_bytes<f32x8>(p); }
ASTRAI_INLINE void store(float* p, f32x8 v) { memcpy(p, &v, sizeof v); }
ASTRAI_INLINE void store(int16_t* p, i16x16 v) { memcpy(p, &v, sizeof v); }
ASTRAI_INLINE f32x8 to_float(i32x8 v) { return __builtin_convertvector(v, f32x8); }

// a * b + c, rounded once where the machine can: never left to the compiler's choice.
ASTRAI_INLINE f32x8 fma(f32x8 a, f32x8 b, f32x8 c) {
#if ASTRAI_AVX2
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

ASTRAI_INLINE f32x8 max(f32x8 a, f32x8 b) {
#if ASTRAI_AVX2
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

ASTRAI_INLINE f32x8 min(f32x8 a, f32x8 b) {
#if ASTRAI_AVX2
  return _mm256_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

ASTRAI_INLINE f32x8 abs(f32x8 a) { return (f32x8)((i32x8)a & 0x7fffffff); }

// The sum of the lanes, always in the same order.
ASTRAI_INLINE float sum(f32x8 v) {
#if ASTRAI_AVX2
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
#else
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
#endif
}

// All lanes brought together by an operation whose order does not matter.
template <class Join>
ASTRAI_INLINE int32_t fold(i32x8 v, Join&& join) {
#if ASTRAI_AVX2
  typedef int32_t i32x4 __attribute__((vector_size(16)));
  i32x4 four = join((i32x4)_mm256_castsi256_si128((__m256i)v),
                    (i32x4)_mm256_extracti128_si256((__m256i)v, 1));
  four = join(four, (i32x4)_mm_shuffle_epi32((__m128i)four, 0x4e));
  return join(four, (i32x4)_mm_shuffle_epi32((__m128i)four, 0xb1))[0];
#else
  int32_t joined = v[0];
  for (int i = 1; i < kLanes; ++i) joined = join(joined, v[i]);
  return joined;
#endif
}

ASTRAI_INLINE int32_t sum(i32x8 v) {
  return fold(v, [](auto a, auto b) { return a + b; });
}

ASTRAI_INLINE float max(f32x8 v) {
#if ASTRAI_AVX2
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
#else
  float best = v[0];
  for (int i = 1; i < kLanes; ++i) best = v[i] > best ? v[i] : best;
  return best;
#endif
}

ASTRAI_INLINE i32x8 max(i32x8 a, i32x8 b) { return a > b ? a : b; }

ASTRAI_INLINE int32_t max(i32x8 v) {
  return fold(v, [](auto a, auto b) { return a > b ? a : b; });
}

// e^x to about 2 ulp, for x in [-87, 88]; beyond, the bounds' values.
ASTRAI_INLINE f32x8 exp(f32x8 x) {
  const f32x8 low = splat(-87.3f), high = splat(88.3f), rounder = splat(12582912.f);
  x = min(max(x, low), high);
  const f32x8 n = fma(x, splat(1.44269504f), rounder) - rounder;
  f32x8 r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  f32x8 p = splat(1.f / 720);
  p = fma(p, r, splat(1.f / 120));
  p = fma(p, r, splat(1.f / 24));
  p = fma(p, r, splat(1.f / 6));
  p = fma(p, r, splat(.5f));
  p = fma(p, r, splat(1.f));
  p = fma(p, r, splat(1.f));
  return (f32x8)((i32x8)p + (__builtin_convertvector(n, i32x8) << 23));
}

ASTRAI_INLINE f32x8 silu(f32x8 x) { return x / (splat(1.f) + exp(-x)); }

// To about 1e-7, not relative to a small result.
ASTRAI_INLINE f32x8 tanh(f32x8 x) {
  return splat(1.f) - splat(2.f) / (splat(1.f) + exp(x + x));
}

// The approximation of GELU by tanh: x * (1 + tanh(u)) / 2 is x / (1 + e^-2u).
ASTRAI_INLINE f32x8 gelu_tanh(f32x8 x) {
  const f32x8 u = splat(0.7978845608f) * fma(splat(0.044715f) * x * x, x, x);
  return x / (splat(1.f) + exp(splat(-2.f) * u));
}

// Rows become columns.
ASTRAI_INLINE void transpose(f32x8 (&rows)[kLanes]) {
#if ASTRAI_AVX2
  __m256 pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      quads[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
      quads[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
    }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
  }
#else
  for (int i = 0; i < kLanes; ++i)
    for (int j = 0; j < i; ++j) {
      const float moved = rows[i][j];
      rows[i][j] = rows[j][i];
      rows[j][i] = moved;
    }
#endif
}

// Integers nearest to the lanes, halves to even.
ASTRAI_INLINE i32x8 round_to_int(f32x8 v) {
#if ASTRAI_AVX2
  return (i32x8)_mm256_cvtps_epi32(v);
#else
  return __builtin_convertvector((v + splat(12582912.f)) - splat(12582912.f), i32x8);
#endif
}

// The lanes of two vectors; what is beyond 16 bits becomes their nearest bound.
ASTRAI_INLINE i16x16 narrow(i32x8 a, i32x8 b) {
#if ASTRAI_AVX2
  const __m256i packed = _mm256_packs_epi32((__m256i)a, (__m256i)b);  // half by half
  return (i16x16)_mm256_permute4x64_epi64(packed, 0xd8);
#else
  i16x16 v;
  for (int i = 0; i < kLanes; ++i) {
    v[i] = (int16_t)std::clamp(a[i], -32768, 32767);
    v[kLanes + i] = (int16_t)std::clamp(b[i], -32768, 32767);
  }
  return v;
#endif
}

// Two int16 activations, as the 32 bits they are stored in.
ASTRAI_INLINE int32_t load_pair(const int16_t* p) { return load_bytes<int32_t>(p); }
// Four int8 activations.
ASTRAI_INLINE int32_t load_quad(const int8_t* p) { return load_bytes<int32_t>(p); }

// Each 32-bit lane: the dot product of its two int16 with the pair.
ASTRAI_INLINE i32x8 dot_pair(i16x16 w, int32_t pair) {
#if ASTRAI_AVX2
  return (i32x8)_mm256_madd_epi16((__m256i)w, _mm256_set1_epi32(pair));
#else
  const i32x8 lanes = (i32x8)w;
  return ((lanes << 16) >> 16) * (int32_t)(int16_t)pair + (lanes >> 16) * (pair >> 16);
#endif
}

// Each 16-bit lane: the dot product of its two unsigned bytes, at most 15, with two of the quad.
ASTRAI_INLINE i16x16 dot_quad(u16x16 w, int32_t quad) {
#if ASTRAI_AVX2
  return (i16x16)_mm256_maddubs_epi16((__m256i)w, _mm256_set1_epi32(quad));
#else
  const i32x8 spread = i32x8{} + quad;
  const i16x16 even = ((i16x16)spread << 8) >> 8, odd = (i16x16)spread >> 8;
  return (i16x16)(w & 0xff) * even + (i16x16)(w >> 8) * odd;
#endif
}

ASTRAI_INLINE i32x8 add_neighbours(i16x16 v) { return dot_pair(v, 0x00010001); }

ASTRAI_INLINE float to_float(uint16_t half) {
#if ASTRAI_AVX2
  return _cvtsh_ss(half);
#else
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
  uint32_t bits;
  if (magnitude < 0x0400) {  // zero and subnormal numbers
    const float value = (float)magnitude * 5.9604644775390625e-8f;
    memcpy(&bits, &value, sizeof bits);
  } else {
    bits = (magnitude << 13) + (magnitude < 0x7c00 ? 0x38000000u : 0x70000000u);
  }
  bits |= sign;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

ASTRAI_INLINE uint16_t to_half(float value) {
#if ASTRAI_AVX2
  return (uint16_t)_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#else
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;
  if (bits >= 0x477ff000) return sign | 0x7c00;
  if (bits < 0x38800000) {  // rounds to a subnormal number: adding a power of two does it
    float magnitude;
    memcpy(&magnitude, &bits, sizeof magnitude);
    magnitude += 0.5f;
    memcpy(&bits, &magnitude, sizeof bits);
    return sign | (uint16_t)(bits - 0x3f000000);
  }
  return sign | (uint16_t)((bits - 0x38000000 + 0xfff + ((bits >> 13) & 1)) >> 13);
#endif
}

ASTRAI_INLINE f32x8 load(const f16* p) {
#if ASTRAI_AVX2
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
  f32x8 v;
  for (int i = 0; i < kLanes; ++i) v[i] = to_float(p[i].bits);
  return v;
#endif
}

ASTRAI_INLINE void store(f16* p, f32x8 v) {
#if ASTRAI_AVX2
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) p[i].bits = to_half(v[i]);
#endif
}

ASTRAI_INLINE f32x8 load(const bf16* p) {
#if ASTRAI_AVX2
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
#else
  i32x8 v;
  for (int i = 0; i < kLanes; ++i) v[i] = (int32_t)((uint32_t)p[i].bits << 16);
  return (f32x8)v;
#endif
}

ASTRAI_INLINE void store(bf16* p, f32x8 v) {
  const i32x8 bits = (i32x8)v;
  const i32x8 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const i32x8 is_nan = v != v;
  const i32x8 kept = (rounded & ~is_nan) | (((bits >> 16) | 0x40) & is_nan);
  for (int i = 0; i < kLanes; ++i) p[i].bits = (uint16_t)kept[i];
}

// The address, without what it was computed from. A thread's own variable is otherwise looked up at
// each use, and each of many loads beside each other gets an address of its own, computed so far
// ahead that compilers run out of registers.
template <class T>
ASTRAI_INLINE T* settled(T* address) {
  asm("" : "+r"(address));
  return address;
}

// Computes the value here and now. Compilers otherwise compute far ahead of its use whatever does
// not depend on it, run out of registers, and spend a third of the time on moving values around.
template <class V>
ASTRAI_INLINE void settle(V& v) {
#if ASTRAI_AVX2
  asm("" : "+x"(v));
#else
  (void)v;
#endif
}

ASTRAI_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

}  // namespace astrai
