// What the attention kernels share: scores, and 16-bit tiles in shared memory for tensor cores.
#pragma once
#include "numbers.cuh"

namespace astrai {

// Below every score, and finite: the difference of two of them is 0, where infinities give NaN.
constexpr f32 lowest_score = -1e30f;
constexpr f32 log2_of_e = 1.4426950408889634f;

// Turns products of q and k into scores in units of log2, so that softmax needs only exp2.
struct Scorer {
  f32 factor, cap;

  ASTRAI_DEVICE Scorer(f32 scale, f32 soft_cap)
      : factor(soft_cap > 0 ? 2 * log2_of_e * scale / soft_cap : log2_of_e * scale),
        cap(log2_of_e * soft_cap) {}
  ASTRAI_DEVICE f32 operator()(f32 product) const {
    const f32 x = product * factor;
    return cap > 0 ? cap - 2 * cap * reciprocal(1 + exp2_fast(x)) : x;  // cap * tanh
  }
};

// Rows of head_dim 16-bit elements in shared memory, in 16-byte chunks whose place depends on the
// row, so that the eight rows which tensor cores read at once lie in different banks.
template <class T, int head_dim>
struct Tile {
  static constexpr int chunks = head_dim / 8;
  static_assert(chunks % 8 == 0 || chunks % 8 == 4, "no swizzle for this head_dim");

  static ASTRAI_DEVICE T* chunk(T* tile, int row, int index) {
    const int turn = chunks % 8 == 0 ? row & 7 : row >> 1 & 3;
    return tile + row * head_dim + (index ^ turn) * 8;
  }
  // The right operands of q k^T: 16 rows (keys) by 16 columns, for two products of 8 keys.
  static ASTRAI_DEVICE void load_keys(u32 (&b)[4], const T* tile, int row, int column) {
    const int lane = lane_index(), matrix = lane >> 3;
    load_matrices(b, chunk((T*)tile, row + (matrix >> 1) * 8 + (lane & 7),
                           column / 8 + (matrix & 1)));
  }
  // The right operands of p v: 16 rows (keys) by 16 columns, for two products of 8 columns.
  static ASTRAI_DEVICE void load_values(u32 (&b)[4], const T* tile, int row, int column) {
    const int lane = lane_index(), matrix = lane >> 3;
    load_matrices_transposed(b, chunk((T*)tile, row + (matrix & 1) * 8 + (lane & 7),
                                      column / 8 + (matrix >> 1)));
  }
  // A left operand: 16 rows by 16 columns.
  static ASTRAI_DEVICE void load_left(u32 (&a)[4], const T* tile, int row, int column) {
    const int lane = lane_index(), matrix = lane >> 3;
    load_matrices(a, chunk((T*)tile, row + (matrix & 1) * 8 + (lane & 7),
                           column / 8 + (matrix >> 1)));
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

}  // namespace astrai
