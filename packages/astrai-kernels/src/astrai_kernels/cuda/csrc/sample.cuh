// Draws a token per row: temperature, top-k, top-p, min-p, and a draw that only the row's seed,
// choice and position decide. The same function as the engine's sampler.
//
// One block per row, and no sort. Where tokens are drawn in the order of their index, the block
// sums up weights by warp, then the chosen warp walks through its part. Where they are drawn in the
// order of their weight, tokens are counted and weighed in bins of distance, and the bin in which a
// sum is reached is divided further, three times; what is left are tokens of equal weight.
#pragma once
#include "draw.cuh"

namespace astrai {

struct Sample {
  using Params = SampleParams;
  static constexpr int num_warps = 16, threads = 32 * num_warps, blocks_at_once = 1;
  static constexpr int coarse_bins = 2048, fine_bins = 512;
  static constexpr int coarse_shift = 27, fine_step = 9;  // 2048 bins cover distances up to 64
  static constexpr double min_temperature = 1e-5;

  // Where a sum over tokens in the order of their distance passes a target.
  struct Passed {
    u64 distance, count, mass;  // the token's distance; number and weight of those closer
  };
  struct Shared {
    u64 coarse[2][coarse_bins];  // number and weight of the tokens of each bin
    u64 fine[2][fine_bins];
    u64 by_warp[num_warps];
    Passed passed;
  };
  static constexpr int shared_bytes = sizeof(Shared);
  enum Kind { by_count, by_mass };

  const SampleRow& row;
  const f32* logits;
  const int vocab;
  Shared& shared;
  i64& token_id;
  Distance distance{};

  static ASTRAI_DEVICE void run(const Params& p, u8* shared) {
    const i64 row = block_x();
    Sample(p, row, *(Shared*)shared).choose();
  }

  ASTRAI_DEVICE Sample(const Params& p, i64 index, Shared& memory)
      : row(p.rows[index]),
        logits(p.logits + index * p.logits_stride),
        vocab(p.vocab),
        shared(memory),
        token_id(p.token_ids[index]) {}

  ASTRAI_DEVICE void choose() {
    const u64 best = likeliest();
    const f32 largest = value_of((u32)(best >> 32));
    const i64 index = ~(u32)best;
    const bool is_greedy = row.temperature < min_temperature || row.top_k == 1 || row.top_p == 0;
    const bool is_finite = largest - largest == 0;
    if (is_greedy || !is_finite) {
      const i64 none = largest != largest ? -1 : -2;
      if (thread_index() == 0) token_id = largest > -infinity() ? index : none;
      return;
    }
    distance = {largest, 1.4426950408889634 / row.temperature};
    if (row.top_p < 1 || (row.top_k > 0 && row.top_k < vocab))
      choose_by_weight();
    else
      choose_by_index();
  }

  // ---- The likeliest token
  static ASTRAI_DEVICE f32 infinity() { return as_float(0x7F800000u); }
  // Larger floats have larger keys, NaN the largest of all.
  static ASTRAI_DEVICE u32 key_of(f32 x) {
    if (x != x) return ~0u;
    const u32 bits = as_bits(x + 0.0f);  // zero has one sign
    return bits >> 31 ? ~bits : bits | 1u << 31;
  }
  static ASTRAI_DEVICE f32 value_of(u32 key) {
    return as_float(key >> 31 ? key & ~(1u << 31) : ~key);
  }
  // The largest logit's key, and below it the complement of the first index that has it.
  ASTRAI_DEVICE u64 likeliest() {
    u64 best = 0;
    for (int i = thread_index(); i < vocab; i += threads) {
      const u64 mine = (u64)key_of(logits[i]) << 32 | (u32)~i;
      best = mine > best ? mine : best;
    }
    for (u32 mask = 16; mask > 0; mask /= 2) {
      const u64 other = shuffle_xor(best, mask);
      best = other > best ? other : best;
    }
    if (lane_index() == 0) shared.by_warp[warp_index()] = best;
    block_sync();
#pragma unroll 1
    for (int i = 0; i < num_warps; ++i) {
      const u64 other = shared.by_warp[i];
      best = other > best ? other : best;
    }
    return best;
  }

  // ---- Tokens in the order of their index
  ASTRAI_DEVICE void choose_by_index() {
    const u64 least = least_weight();
    const auto weight = [&](f32 logit) { return kept(logit, least); };
    const u64 total = sum(weight);
    find(weight, draw_below(total, row));
  }
  ASTRAI_DEVICE u64 kept(f32 logit, u64 least) const {
    const u64 weight = weight_of(distance(logit));
    return weight >= least ? weight : 0;
  }
  // What min-p demands.
  ASTRAI_DEVICE u64 least_weight() const {
    const double least = row.min_p * (double)(1ull << weight_bits);
    const u64 whole = (u64)least;
    return whole < 1 ? 1 : whole + ((double)whole < least ? 1 : 0);
  }
  // The tokens of a warp: a part of the vocabulary.
  ASTRAI_DEVICE int part_begin(int warp) const {
    const int size = (vocab + threads - 1) / threads * 32;
    return size * warp < vocab ? size * warp : vocab;
  }
  // The sum of a value over all tokens; those of the warps' parts stay in shared.by_warp.
  template <class Value>
  ASTRAI_DEVICE u64 sum(Value value) {
    const int warp = warp_index(), end = part_begin(warp + 1);
    u64 mine = 0;
    for (int i = part_begin(warp) + lane_index(); i < end; i += 32) mine += value(logits[i]);
    return sum_of_block(mine);
  }
  ASTRAI_DEVICE u64 sum_of_block(u64 mine) {
    for (u32 mask = 16; mask > 0; mask /= 2) mine += shuffle_xor(mine, mask);
    block_sync();
    if (lane_index() == 0) shared.by_warp[warp_index()] = mine;
    block_sync();
    u64 total = 0;
#pragma unroll 1
    for (int i = 0; i < num_warps; ++i) total += shared.by_warp[i];
    return total;
  }
  // Chooses the first token at which the sum of a value, taken by `sum` before, passes the target.
  template <class Value>
  ASTRAI_DEVICE void find(Value value, u64 target) {
    const int warp = warp_index(), end = part_begin(warp + 1);
#pragma unroll 1
    for (int i = 0; i < warp; ++i) {
      if (target < shared.by_warp[i]) return;
      target -= shared.by_warp[i];
    }
    if (target >= shared.by_warp[warp]) return;
    for (int base = part_begin(warp); base < end; base += 32) {
      const int i = base + lane_index();
      const u64 mine = i < end ? value(logits[i]) : 0, up_to = sum_up_to(mine);
      if (up_to > target && up_to - mine <= target) token_id = i;
      const u64 total = shuffle_from(up_to, 31);
      if (total > target) return;
      target -= total;
    }
  }
  // Over the lanes up to this one.
  static ASTRAI_DEVICE u64 sum_up_to(u64 x) {
    for (u32 delta = 1; delta < 32; delta *= 2) {
      const u64 before = shuffle_up(x, delta);
      x += lane_index() >= delta ? before : 0;
    }
    return x;
  }

  // ---- Tokens in the order of their weight, then of their index
  ASTRAI_DEVICE void choose_by_weight() {
    fill_coarse_bins();
    u64 mass = total_of(by_mass);
    const u64 top_k = row.top_k > 0 ? row.top_k : vocab;
    if (top_k < total_of(by_count)) {
      const Passed last = pass(by_count, top_k - 1);
      mass = last.mass + (top_k - last.count) * weight_of(last.distance);
    }
    if (row.top_p < 1) {  // up to the token at which the sum reaches what is wanted
      const double wanted = row.top_p * (double)mass;
      u64 below = (u64)wanted;
      if (below > 0 && (double)below == wanted) --below;
      const Passed last = pass(by_mass, below);
      const u64 weight = weight_of(last.distance);
      mass = last.mass + ((below - last.mass) / weight + 1) * weight;
    }
    if (row.min_p > 0) {
      const u64 least = least_weight();
      const u64 likely = sum([&](f32 logit) { return kept(logit, least); });
      mass = likely < mass ? likely : mass;
    }
    const u64 target = draw_below(mass, row);
    const Passed chosen = pass(by_mass, target);
    const auto is_chosen = [&](f32 logit) { return (u64)(distance(logit) == chosen.distance); };
    sum(is_chosen);
    find(is_chosen, (target - chosen.mass) / weight_of(chosen.distance));
  }
  ASTRAI_DEVICE u64 total_of(Kind kind) {
    u64 mine = 0;
    for (int i = thread_index(); i < coarse_bins; i += threads) mine += shared.coarse[kind][i];
    return sum_of_block(mine);
  }

  template <int n>
  ASTRAI_DEVICE void clear(u64 (&bins)[2][n]) {
    for (int i = thread_index(); i < 2 * n; i += threads) bins[i / n][i % n] = 0;
    block_sync();
  }
  static ASTRAI_DEVICE void add(u64& count, u64& mass, u64 token_distance) {
    shared_add(&count, 1ull);
    shared_add(&mass, weight_of(token_distance));
  }
  ASTRAI_DEVICE void fill_coarse_bins() {
    clear(shared.coarse);
    for (int i = thread_index(); i < vocab; i += threads) {
      const u64 mine = distance(logits[i]), bin = mine >> coarse_shift;
      if (mine < too_far) add(shared.coarse[by_count][bin], shared.coarse[by_mass][bin], mine);
    }
    block_sync();
  }
  // The bins of a bin.
  ASTRAI_DEVICE void fill_fine_bins(u64 parent, int shift) {
    clear(shared.fine);
    for (int i = thread_index(); i < vocab; i += threads) {
      const u64 mine = distance(logits[i]), bin = (mine >> shift) % fine_bins;
      if (mine < too_far && mine >> (shift + fine_step) == parent)
        add(shared.fine[by_count][bin], shared.fine[by_mass][bin], mine);
    }
    block_sync();
  }

  // Finds where the number or the weight of tokens passes a target that it does pass.
  ASTRAI_DEVICE Passed pass(Kind kind, u64 target) {
    if (thread_index() == 0) shared.passed = {0, 0, 0};
    block_sync();
    pass_bins(shared.coarse, kind, target);
    for (int shift = coarse_shift - fine_step; shift >= 0; shift -= fine_step) {
      fill_fine_bins(shared.passed.distance, shift);
      pass_bins(shared.fine, kind, target);
    }
    const Passed result = shared.passed;
    block_sync();
    return result;
  }
  // One warp goes through the bins, and adds what comes before the one in which the target lies.
  template <int n>
  ASTRAI_DEVICE void pass_bins(const u64 (&bins)[2][n], Kind kind, u64 target) {
    constexpr int own = n / 32;
    if (warp_index() == 0) {
      const int first = lane_index() * own;
      u64 sums[2] = {0, 0};
      for (int i = first; i < first + own; ++i) {
        sums[by_count] += bins[by_count][i];
        sums[by_mass] += bins[by_mass][i];
      }
      u64 count = shared.passed.count + sum_up_to(sums[by_count]) - sums[by_count];
      u64 mass = shared.passed.mass + sum_up_to(sums[by_mass]) - sums[by_mass];
      const u64 before = kind == by_count ? count : mass;
      const u64 parent = shared.passed.distance;
      warp_sync();
      if (before <= target && target < before + sums[kind]) {
        int bin = first;
        while ((kind == by_count ? count : mass) + bins[kind][bin] <= target) {
          count += bins[by_count][bin];
          mass += bins[by_mass][bin++];
        }
        shared.passed = {parent * n + bin, count, mass};
      }
    }
    block_sync();
  }
};

}  // namespace astrai
