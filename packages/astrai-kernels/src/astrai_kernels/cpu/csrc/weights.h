// How weights are laid out in memory.
//
// Every format is cut into tiles of 16 output rows, so that a vector holds the same inputs of 8
// rows; within a tile all that belongs to the next inputs is consecutive, so that a tile is read
// front to back. Rows beyond the last are zero. `G` is a group of 32 inputs sharing a scale.
//
//   kQ4    per G: 16 f16 scales, 16 f16 minima, then for each half tile 4 vectors of 8 rows x
//          8 inputs. A row's 32 bits are two 16-bit lanes of four nibbles; nibble p of the lower
//          lane is input 2p, of the upper lane input 2p + 1.
//   kQ8    per G: 16 f16 scales, then for each half tile 8 vectors of 8 rows x 4 inputs, a row's
//          bytes in the order 0, 2, 1, 3.
//   kF32   per input: 16 floats.
//   kBF16  per two inputs: for each half tile 8 rows x 2 bf16.
//
// A paired weight is two of equal size, gate and up, of which every tile holds 8 rows each: one
// pass over a tile gives both factors of 8 outputs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace astrai {

constexpr int kTileRows = 16;
constexpr int kHalfTile = 8;
constexpr int kGroup = 32;

enum Format : int32_t { kF32 = 0, kBF16 = 1, kQ4 = 2, kQ8 = 3 };

constexpr int kQ4GroupBytes = 2 * 32 + 2 * 4 * 32;
constexpr int kQ8GroupBytes = 32 + 2 * 8 * 32;

// Shared with Python: see astrai_kernels.cpu.library.
struct Weight {
  int32_t format;
  int32_t is_paired;
  int32_t activation_bits;
  int32_t reserved;
  int64_t in_features;
  int64_t out_features;  // of both halves of a paired weight
  const uint8_t* tiles;
  const float* bias;  // of out_features, or null
};

inline int64_t tile_bytes(int32_t format, int64_t in_features) {
  switch (format) {
    case kQ4: return in_features / kGroup * kQ4GroupBytes;
    case kQ8: return in_features / kGroup * kQ8GroupBytes;
    case kBF16: return in_features * kTileRows * 2;
    default: return in_features * kTileRows * 4;
  }
}

inline int64_t num_tiles(int64_t out_features, bool is_paired) {
  const int64_t rows = is_paired ? out_features / 2 : out_features;
  const int64_t per_tile = is_paired ? kHalfTile : kTileRows;
  return (rows + per_tile - 1) / per_tile;
}

// Where the layout keeps a row: its tile, and its place in it.
struct Place {
  int64_t tile;
  int row;
};

inline Place place_of(int64_t row, int64_t out_features, bool is_paired) {
  if (!is_paired) return {row / kTileRows, (int)(row % kTileRows)};
  const int64_t half = out_features / 2, of_half = row < half ? row : row - half;
  return {of_half / kHalfTile, (int)(of_half % kHalfTile) + (row < half ? 0 : kHalfTile)};
}

}  // namespace astrai
