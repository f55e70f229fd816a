// Bringing weights into their layout, and single rows back out of it.

#include <algorithm>

#include "export.h"
#include "pool.h"
#include "simd.h"
#include "weights.h"

namespace astrai {
namespace {

// Block formats as GGUF files store them.
enum Source : int32_t { kDense = 0, kQ4_0 = 1, kQ4_1 = 2, kQ8_0 = 3 };

int64_t row_bytes(int32_t source, int64_t in_features) {
  switch (source) {
    case kQ4_0: return in_features / kGroup * 18;
    case kQ4_1: return in_features / kGroup * 20;
    case kQ8_0: return in_features / kGroup * 34;
    default: return in_features * 4;
  }
}

uint8_t* at_row(uint8_t* scales, int row) { return scales + 2 * row; }

// The bytes of 8 (kQ4) or 4 (kQ8) inputs of a row: one 32-bit lane of a vector.
uint8_t* lane(uint8_t* vectors, int per_half, int row, int vector) {
  return vectors + 32 * (per_half * (row / kHalfTile) + vector) + 4 * (row % kHalfTile);
}

void pack_q4_group(const uint8_t* block, bool has_minimum, int row, uint8_t* group) {
  const uint8_t* nibbles = block + (has_minimum ? 4 : 2);
  uint16_t minimum;
  if (has_minimum) {
    memcpy(&minimum, block + 2, 2);
  } else {  // Q4_0 counts from -8: exact, as it only shifts the exponent
    uint16_t scale;
    memcpy(&scale, block, 2);
    minimum = to_half(-8.f * to_float(scale));
  }
  memcpy(at_row(group, row), block, 2);
  memcpy(at_row(group + 32, row), &minimum, 2);
  for (int vector = 0; vector < 4; ++vector) {
    uint32_t bits = 0;
    for (int i = 0; i < 8; ++i) {
      const int input = 8 * vector + i;
      const uint32_t nibble = input < 16 ? nibbles[input] & 15 : nibbles[input - 16] >> 4;
      bits |= nibble << (16 * (i % 2) + 4 * (i / 2));
    }
    memcpy(lane(group + 64, 4, row, vector), &bits, 4);
  }
}

void pack_q8_group(const uint8_t* block, int row, uint8_t* group) {
  memcpy(at_row(group, row), block, 2);
  for (int vector = 0; vector < 8; ++vector) {
    const uint8_t* inputs = block + 2 + 4 * vector;
    const uint8_t ordered[4] = {inputs[0], inputs[2], inputs[1], inputs[3]};
    memcpy(lane(group + 32, 8, row, vector), ordered, 4);
  }
}

void pack_row(int32_t source, int32_t format, const uint8_t* from, int64_t in_features, int row,
              uint8_t* tile) {
  const int64_t groups = in_features / kGroup;
  if (format == kQ4) {
    const int size = source == kQ4_1 ? 20 : 18;
    for (int64_t g = 0; g < groups; ++g)
      pack_q4_group(from + g * size, source == kQ4_1, row, tile + g * kQ4GroupBytes);
  } else if (format == kQ8) {
    for (int64_t g = 0; g < groups; ++g)
      pack_q8_group(from + g * 34, row, tile + g * kQ8GroupBytes);
  } else if (format == kF32) {
    for (int64_t k = 0; k < in_features; ++k)
      memcpy(tile + 4 * (kTileRows * k + row), from + 4 * k, 4);
  } else {
    for (int64_t k = 0; k < in_features; ++k) {
      f32x8 value = splat(reinterpret_cast<const float*>(from)[k]);
      bf16 rounded[kLanes];
      store(rounded, value);
      const int64_t half = 2 * (k / 2) + row / kHalfTile;
      memcpy(tile + 32 * half + 4 * (row % kHalfTile) + 2 * (k % 2), rounded, 2);
    }
  }
}

void unpack_q4(const uint8_t* tile, int64_t groups, int row, float* out) {
  for (int64_t g = 0; g < groups; ++g, tile += kQ4GroupBytes) {
    uint8_t* group = const_cast<uint8_t*>(tile);
    uint16_t scale, minimum;
    memcpy(&scale, at_row(group, row), 2);
    memcpy(&minimum, at_row(group + 32, row), 2);
    for (int vector = 0; vector < 4; ++vector) {
      const uint32_t bits = load_bytes<uint32_t>(lane(group + 64, 4, row, vector));
      for (int i = 0; i < 8; ++i) {
        const uint32_t nibble = bits >> (16 * (i % 2) + 4 * (i / 2)) & 15;
        *out++ = to_float(scale) * (float)nibble + to_float(minimum);
      }
    }
  }
}

void unpack_q8(const uint8_t* tile, int64_t groups, int row, float* out) {
  for (int64_t g = 0; g < groups; ++g, tile += kQ8GroupBytes) {
    uint8_t* group = const_cast<uint8_t*>(tile);
    uint16_t scale;
    memcpy(&scale, at_row(group, row), 2);
    for (int vector = 0; vector < 8; ++vector) {
      const int8_t* bytes = (const int8_t*)lane(group + 32, 8, row, vector);
      for (int i : {0, 2, 1, 3}) *out++ = to_float(scale) * (float)bytes[i];
    }
  }
}

void unpack_row(const Weight& weight, int64_t row, float* out) {
  const Place place = place_of(row, weight.out_features, weight.is_paired);
  const uint8_t* tile = weight.tiles + place.tile * tile_bytes(weight.format, weight.in_features);
  const int64_t groups = weight.in_features / kGroup;
  if (weight.format == kQ4) return unpack_q4(tile, groups, place.row, out);
  if (weight.format == kQ8) return unpack_q8(tile, groups, place.row, out);
  for (int64_t k = 0; k < weight.in_features; ++k) {
    if (weight.format == kF32) {
      memcpy(out + k, tile + 4 * (kTileRows * k + place.row), 4);
    } else {
      const int64_t half = 2 * (k / 2) + place.row / kHalfTile;
      const uint8_t* bits = tile + 32 * half + 4 * (place.row % kHalfTile) + 2 * (k % 2);
      const uint32_t value = (uint32_t)load_bytes<uint16_t>(bits) << 16;
      memcpy(out + k, &value, 4);
    }
  }
}

constexpr int64_t kRowsPerPiece = 64;

}  // namespace
}  // namespace astrai

ASTRAI_EXPORT int64_t astrai_packed_bytes(int32_t format, int64_t out_features,
                                          int64_t in_features, int is_paired) {
  return astrai::num_tiles(out_features, is_paired) * astrai::tile_bytes(format, in_features);
}

// Packs out_features consecutive rows; `tiles` is zeroed memory of astrai_packed_bytes.
ASTRAI_EXPORT void astrai_pack(int32_t source, int32_t format, const uint8_t* rows,
                               int64_t out_features, int64_t in_features, int is_paired,
                               uint8_t* tiles) {
  using namespace astrai;
  Pool& pool = Pool::get();
  const auto held = pool.lock();
  const int64_t stride = row_bytes(source, in_features), size = tile_bytes(format, in_features);
  pool.each((out_features + kRowsPerPiece - 1) / kRowsPerPiece, [&](int64_t piece) {
    const int64_t first = piece * kRowsPerPiece;
    for (int64_t row = first; row < std::min(out_features, first + kRowsPerPiece); ++row) {
      const Place place = place_of(row, out_features, is_paired);
      pack_row(source, format, rows + row * stride, in_features, place.row,
               tiles + place.tile * size);
    }
  });
}

// Writes the values of the named rows, [count, in_features]; -1 where an id names no row.
ASTRAI_EXPORT int astrai_unpack_rows(const astrai::Weight* weight, const int64_t* ids,
                                     int64_t count, float* out) {
  using namespace astrai;
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= weight->out_features) return -1;
  Pool& pool = Pool::get();
  const auto held = pool.lock();
  pool.each((count + kRowsPerPiece - 1) / kRowsPerPiece, [&](int64_t piece) {
    const int64_t first = piece * kRowsPerPiece;
    for (int64_t i = first; i < std::min(count, first + kRowsPerPiece); ++i)
      unpack_row(*weight, ids[i], out + i * weight->in_features);
  });
  return 0;
}
