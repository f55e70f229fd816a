// What the attention kernels share: scores, and 16-bit tiles in shared memory for tensor cores.
#pragma once
#include "numbers.cuh"

namespace astrai {

// The score of a hidden key: below all others, and finite, since infinities minus each other are
// NaN.
constexpr f32 hidden_score = -1e30f;
constexpr f32 log2_of_e = 1.4426950408889634f;

// From products of q and k to weights: exp2(factor * score), relative to the largest score.
struct Scorer {
  f32 factor, cap, into_cap;

  ASTRAI_DEVICE Scorer(f32 scale, f32 soft_cap)
      : factor(soft_cap > 0 ? log2_of_e * soft_cap : log2_of_e * scale),
        cap(soft_cap),
        into_cap(soft_cap > 0 ? 2 * log2_of_e * scale / soft_cap : 0) {}

  ASTRAI_DEVICE f32 score(f32 product) const {  // with a cap: tanh(product * scale / cap)
    return cap > 0 ? 1 - 2 * reciprocal(1 + exp2_fast(product * into_cap)) : product;
  }
  // What weights are relative to; 0 as long as all keys are hidden, so that theirs are 0.
  ASTRAI_DEVICE f32 base(f32 largest) const {
    return largest > hidden_score ? largest * factor : 0;
  }
  ASTRAI_DEVICE f32 weight(f32 score, f32 base) const {
    return exp2_fast(score * factor - base);
  }
  ASTRAI_DEVICE f32 in_log2(f32 largest) const {
    return largest > hidden_score ? largest * factor : hidden_score;
  }
};

// Rows of head_dim 16-bit elements in shared memory, in 16-byte chunks whose place depends on the
// row, so that the eight rows which tensor cores read at once lie in different banks.
template <class T, int head_dim>
struct Tile {
  static constexpr int chunks = head_dim / 8;
  static constexpr int period = chunks % 8 == 0 ? 8 : 4;  // chunks that change places
  static_assert(chunks % period == 0, "no swizzle for this head_dim");

  static ASTRAI_DEVICE int turn(int row) { return period == 8 ? row & 7 : row >> 1 & 3; }
  static ASTRAI_DEVICE T* chunk(T* tile, int row, int index) {
    return tile + (row * chunks + (index ^ turn(row))) * 8;
  }

  // The right operands of q k^T: 16 rows (keys) by 16 columns, for two products of 8 keys.
  static ASTRAI_DEVICE void load_keys(u32 (&b)[4], const T* tile, int row, int column) {
    const int lane = lane_index(), matrix = lane >> 3;
    const u32 own = own_place((matrix >> 1) * 8 + (lane & 7), matrix & 1);
    load_matrices(b, at(tile, own, row, column / 8));
  }
  // The right operands of p v: 16 rows (keys) by 16 columns, for two products of 8 columns.
  static ASTRAI_DEVICE void load_values(u32 (&b)[4], const T* tile, int row, int column) {
    const int lane = lane_index(), matrix = lane >> 3;
    const u32 own = own_place((matrix & 1) * 8 + (lane & 7), matrix >> 1);
    load_matrices_transposed(b, at(tile, own, row, column / 8));
  }
  // A left operand: 16 rows by 16 columns.
  static ASTRAI_DEVICE void load_left(u32 (&a)[4], const T* tile, int row, int column) {
    const int lane = lane_index(), matrix = lane >> 3;
    const u32 own = own_place((matrix & 1) * 8 + (lane & 7), matrix >> 1);
    load_matrices(a, at(tile, own, row, column / 8));
  }
  // The same 16 rows by 16 columns, transposed: the columns are the operand's rows.
  static ASTRAI_DEVICE void load_left_transposed(u32 (&a)[4], const T* tile, int row, int column) {
    const int lane = lane_index(), matrix = lane >> 3;
    const u32 own = own_place((matrix >> 1) * 8 + (lane & 7), matrix & 1);
    load_matrices_transposed(a, at(tile, own, row, column / 8));
  }

 private:
  // A lane's chunk in the 16 rows and 16 columns at the beginning of a tile, in bytes. Elsewhere it
  // lies where `at` says: all but one operation is done by the compiler, which saves registers.
  static ASTRAI_DEVICE u32 own_place(int row, int index) {
    return (row * chunks + (index ^ turn(row))) * 16;
  }
  static ASTRAI_DEVICE const u8* at(const T* tile, u32 own, int row, int index) {
    const u32 skipped = (row * chunks + index / period * period) * 16;
    return (const u8*)tile + skipped + (own ^ (index % period * 16));
  }
};

// Over the four lanes that share a row of a product.
ASTRAI_DEVICE f32 largest_of_row(f32 x) {
  x = larger(x, shuffle_xor(x, 1));
  return larger(x, shuffle_xor(x, 2));
}
ASTRAI_DEVICE f32 sum_of_row(f32 x) {
  x += shuffle_xor(x, 1);
  return x + shuffle_xor(x, 2);
}
// Over the eight lanes that share a column.
ASTRAI_DEVICE f32 largest_of_column(f32 x) {
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) x = larger(x, shuffle_xor(x, mask));
  return x;
}
ASTRAI_DEVICE f32 sum_of_column(f32 x) {
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) x += shuffle_xor(x, mask);
  return x;
}

}  // namespace astrai
