// The arithmetic of sampling: all integers, so that a draw is the same on every device.
//
// A token's *distance* is how far its logit lies below the largest one, in units of log2 and of the
// temperature, with 32 fractional bits. Its *weight* is 2^-distance with 44 fractional bits; beyond
// that it is 0. Sums of weights do not depend on their order, as those of floats would.
#pragma once
#include "params.cuh"

namespace astrai {

constexpr int weight_bits = 44;
constexpr u64 too_far = (u64)(weight_bits + 1) << 32;  // from here on weights are 0

struct Distance {
  double largest, factor;  // log2(e) / temperature

  ASTRAI_DEVICE u64 operator()(f32 logit) const {
    const double distance = (largest - (double)logit) * factor;
    return distance < weight_bits + 1 ? (u64)(distance * 4294967296.0) : too_far;
  }
};

// 2^-distance; off by at most 1e-9 of itself, and by one unit.
ASTRAI_DEVICE u64 weight_of(u64 distance) {
  if (distance >= too_far) return 0;
  // (1 - 2^-f) / f as a polynomial with alternating signs, by interpolation in Chebyshev's nodes.
  constexpr u32 coefficients[] = {2977044472u, 1031764990u, 238388304u, 41309330u,
                                  5725847u,    659687u,     63216u,     4185u};
  const u32 f = (u32)distance;
  u32 x = coefficients[7];
#pragma unroll
  for (int i = 6; i >= 0; --i) x = coefficients[i] - multiply_high(f, x);
  const u64 power = (1ull << 32) - multiply_high(f, x);  // 2^-f with 32 fractional bits
  return power << (weight_bits - 32) >> (distance >> 32);
}

// The finaliser of SplitMix64 (Steele, Lea and Flood): every input bit changes every output bit.
ASTRAI_DEVICE u64 mix(u64 x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

// A number below `total` (itself below 2^62), from 53 random bits that only the row decides.
ASTRAI_DEVICE u64 draw_below(u64 total, const SampleRow& row) {
  constexpr u64 golden = 0x9E3779B97F4A7C15ull;
  u64 state = mix(row.seed + golden);
  state = mix(state ^ ((u64)row.choice * golden + golden));
  state = mix(state ^ ((u64)row.position * golden + golden));
  const u64 bits = state >> 11;
  return multiply_high(bits, total) << 11 | bits * total >> 53;
}

}  // namespace astrai
