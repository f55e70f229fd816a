// The linear phases, each in two jobs: inputs are brought into the weight's form, and multiplied.

#include <algorithm>
#include <vector>

#include "export.h"
#include "finish.h"
#include "leaders.h"
#include "linear.h"
#include "pool.h"
#include "tiles.h"
#include "unpacked.h"

namespace astrai {
namespace {

constexpr int kMaxRows = 4;                     // activation rows of one pass over a tile
constexpr int64_t kManyRows = 48;               // from here on unpacking a tile first pays
static_assert(kManyRows >= kUnpackedRows * (kUnpackedRows - 1), "any number is of sixes and fives");
constexpr int64_t kUnpackedDepth = kUnpackedGroups * kGroup;
constexpr int64_t kRowUnit = 12;                // of a block: whole passes of either kind
constexpr int64_t kMaxBlockRows = 192;
constexpr int64_t kBlockBytes = 192 * 1024;     // activations that should stay in a core's cache
constexpr int64_t kWorthSharing = 1 << 16;      // multiplications
constexpr int64_t kPreparedPerPiece = 1 << 11;  // activations

bool is_quantized(const Weight& weight) { return weight.format == kQ4 || weight.format == kQ8; }

// Q8 weights use all 8 bits, which leaves the int8 product no room to be summed.
bool uses_int8(const Weight& weight) {
  return weight.format == kQ4 && weight.activation_bits == 8;
}

// Memory for prepared activations, kept from call to call; used by one job at a time.
struct Scratch {
  std::vector<float> dense;
  std::vector<int16_t> integers;
  std::vector<GroupScale> scales;

  Activations reserve(const Linear& call) {
    const int64_t size = call.rows * call.weight.in_features;
    if (is_quantized(call.weight)) {
      grow(integers, size);
      grow(scales, size / kGroup);
    } else {
      grow(dense, size);
    }
    return {dense.data(), integers.data(), (const int8_t*)integers.data(), scales.data()};
  }
};

void prepare_row(const Linear& call, const Activations& target, int64_t row) {
  thread_local std::vector<float> memory;
  std::vector<float>& normalized = *settled(&memory);
  const int64_t size = call.weight.in_features;
  const float* x = call.x + row * size;
  if (call.norm != nullptr) {
    float* out = const_cast<float*>(target.dense) + row * size;
    if (is_quantized(call.weight)) {
      grow(normalized, size);
      out = normalized.data();
    }
    normalize(x, call.norm, size, call.eps, out);
    x = out;
  }
  GroupScale* scales = const_cast<GroupScale*>(target.scales) + row * (size / kGroup);
  if (uses_int8(call.weight))
    quantize_int8(x, size, const_cast<int8_t*>(target.int8) + row * size, scales);
  else if (is_quantized(call.weight))
    quantize_int16(x, size, const_cast<int16_t*>(target.int16) + row * size, scales);
}

template <int kRows>
ASTRAI_INLINE void multiply(const Weight& w, const uint8_t* tile, const Activations& x,
                            int64_t row, Outputs* out) {
  const int64_t at = row * w.in_features, group = at / kGroup;
  if (uses_int8(w))
    tile_q4_int8<kRows>(tile, w.in_features, x.int8 + at, x.scales + group, out);
  else if (w.format == kQ4)
    tile_q4_int16<kRows>(tile, w.in_features, x.int16 + at, x.scales + group, out);
  else if (w.format == kQ8)
    tile_q8_int16<kRows>(tile, w.in_features, x.int16 + at, x.scales + group, out);
  else if (w.format == kBF16)
    tile_bf16<kRows>(tile, w.in_features, x.dense + at, out);
  else
    tile_f32<kRows>(tile, w.in_features, x.dense + at, out);
}

template <int kRows>
__attribute__((noinline)) void multiply_rows(const Linear& call, const Activations& x, int64_t tile,
                                             int64_t row) {
  const Weight& w = call.weight;
  Outputs out[kRows];
  multiply<kRows>(w, w.tiles + tile * tile_bytes(w.format, w.in_features), x, row, out);
  finish(call, tile, row, kRows, out);
}

template <int kRows>
__attribute__((noinline)) void add_groups(const Weight& w, const Activations& x,
                                          const Unpacked& unpacked, int64_t group, int64_t row,
                                          Outputs* sums) {
  const int64_t at = row * w.in_features + group * kGroup;
  const GroupScale* scales = x.scales + at / kGroup;
  if (w.format == kQ4)
    multiply_unpacked<kRows, true>(unpacked, x.int16 + at, scales, w.in_features, sums);
  else
    multiply_unpacked<kRows, false>(unpacked, x.int16 + at, scales, w.in_features, sums);
}

// A tile times a block of rows: as many of its groups at a time as can be kept unpacked.
void multiply_many(const Linear& call, const Activations& x, int64_t tile, int64_t begin,
                   int64_t end) {
  thread_local struct {
    Unpacked unpacked;
    Outputs kept[kMaxBlockRows];
  } memory;
  auto& [unpacked, kept] = *settled(&memory);
  const Weight& w = call.weight;
  const int64_t rows = end - begin, groups = w.in_features / kGroup;
  const int64_t runs = (groups + kUnpackedGroups - 1) / kUnpackedGroups;
  const int64_t passes = (rows + kUnpackedRows - 1) / kUnpackedRows;
  const int64_t full_passes = rows - passes * (kUnpackedRows - 1);  // the others have a row less
  const uint8_t* packed = w.tiles + tile * tile_bytes(w.format, w.in_features);
  std::fill(kept, kept + rows, Outputs{});
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t group = run * groups / runs;
    unpacked.groups = (run + 1) * groups / runs - group;
    unpack(w.format, packed + tile_bytes(w.format, group * kGroup), unpacked);
    // What is unpacked next comes closer while this is multiplied.
    const uint8_t* behind = packed + tile_bytes(w.format, (group + unpacked.groups) * kGroup);
    const int64_t to_fetch = tile_bytes(w.format, unpacked.groups * kGroup) / passes;
    for (int64_t pass = 0, row = 0; pass < passes; ++pass) {
      for (int64_t at = 0; at < to_fetch; at += 64) prefetch(behind + pass * to_fetch + at);
      if (pass < full_passes)
        add_groups<kUnpackedRows>(w, x, unpacked, group, begin + row, kept + row);
      else
        add_groups<kUnpackedRows - 1>(w, x, unpacked, group, begin + row, kept + row);
      row += pass < full_passes ? kUnpackedRows : kUnpackedRows - 1;
    }
  }
  finish(call, tile, begin, rows, kept);
}

bool is_unpacked_first(const Weight& weight, int64_t rows) {
  return rows >= kManyRows && is_quantized(weight) && !uses_int8(weight);
}

void multiply_tile(const Linear& call, const Activations& x, int64_t tile, int64_t row,
                   int64_t end) {
  if (is_unpacked_first(call.weight, end - row))
    return multiply_many(call, x, tile, row, end);
  for (; row + kMaxRows <= end; row += kMaxRows) multiply_rows<kMaxRows>(call, x, tile, row);
  switch (end - row) {
    case 3: return multiply_rows<3>(call, x, tile, row);
    case 2: return multiply_rows<2>(call, x, tile, row);
    case 1: return multiply_rows<1>(call, x, tile, row);
  }
}

// How the product is cut: blocks of rows x runs of tiles, enough that no thread ends late.
struct Pieces {
  int64_t rows_per_block, num_blocks, tiles, tiles_per_run, num_runs;

  Pieces(const Linear& call, int num_threads) {
    tiles = num_tiles(call.weight.out_features, call.weight.is_paired);
    int64_t depth = call.weight.in_features;  // of the activations that a tile goes through at once
    if (is_unpacked_first(call.weight, call.rows)) depth = std::min(depth, kUnpackedDepth);
    const int64_t fitting = std::clamp<int64_t>(kBlockBytes / (2 * depth), kRowUnit, kMaxBlockRows);
    const int64_t most = fitting / kRowUnit * kRowUnit;
    num_blocks = (call.rows + most - 1) / most;
    const int64_t units = (call.rows + num_blocks * kRowUnit - 1) / (num_blocks * kRowUnit);
    rows_per_block = units * kRowUnit;
    const int64_t work = call.rows * call.weight.in_features * call.weight.out_features;
    const int64_t runs = work < kWorthSharing ? 1 : num_threads * (call.rows <= kMaxRows ? 4 : 8);
    tiles_per_run = (tiles + runs - 1) / runs;
    num_runs = (tiles + tiles_per_run - 1) / tiles_per_run;
  }

  int64_t count() const { return num_blocks * num_runs; }
};

Scratch scratch;  // of whoever holds the pool

Activations prepare(const Linear& call, Pool& pool) {
  Activations x = scratch.reserve(call);
  if (!is_quantized(call.weight) && call.norm == nullptr) {
    x.dense = call.x;
    return x;
  }
  const int64_t rows = std::max<int64_t>(1, kPreparedPerPiece / call.weight.in_features);
  pool.each((call.rows + rows - 1) / rows, [&](int64_t piece) {
    const int64_t end = std::min(call.rows, (piece + 1) * rows);
    for (int64_t row = piece * rows; row < end; ++row) prepare_row(call, x, row);
  });
  return x;
}

void multiply_piece(const Linear& call, const Activations& x, const Pieces& pieces, int64_t piece) {
  const int64_t first = piece / pieces.num_runs * pieces.rows_per_block;
  const int64_t end = std::min(call.rows, first + pieces.rows_per_block);
  const int64_t begin = piece % pieces.num_runs * pieces.tiles_per_run;
  if (call.leaders != nullptr) std::fill(call.leaders + first, call.leaders + end, Leaders{});
  for (int64_t tile = begin; tile < std::min(pieces.tiles, begin + pieces.tiles_per_run); ++tile)
    multiply_tile(call, x, tile, first, end);
}

}  // namespace

void apply(const Linear& call) {
  Pool& pool = Pool::get();
  const auto held = pool.lock();
  const Activations x = prepare(call, pool);
  const Pieces pieces(call, pool.num_threads());
  pool.each(pieces.count(), [&](int64_t piece) { multiply_piece(call, x, pieces, piece); });
}

void find_largest_outputs(const Linear& call, float* values, int64_t* columns) {
  static std::vector<Leaders> leaders;  // [runs, rows]
  Pool& pool = Pool::get();
  const auto held = pool.lock();
  const Activations x = prepare(call, pool);
  const Pieces pieces(call, pool.num_threads());
  grow(leaders, pieces.num_runs * call.rows);
  pool.each(pieces.count(), [&](int64_t piece) {
    Linear part = call;
    part.leaders = leaders.data() + piece % pieces.num_runs * call.rows;
    multiply_piece(part, x, pieces, piece);
  });
  pool.each(call.rows, [&](int64_t row) {
    Entry best = {-INFINITY, 0};
    for (int64_t run = 0; run < pieces.num_runs; ++run)
      best = leaders[(size_t)(run * call.rows + row)].best(best);
    values[row] = best.value;
    columns[row] = best.column;
  });
}

void add_normed(const float* added, const float* norm, float eps, int64_t rows, int64_t size,
                float* hidden) {
  Pool& pool = Pool::get();
  const auto held = pool.lock();
  const int64_t piece_rows = std::max<int64_t>(1, kPreparedPerPiece / size);
  pool.each((rows + piece_rows - 1) / piece_rows, [&](int64_t piece) {
    thread_local std::vector<float> normed;
    grow(normed, size);
    for (int64_t row = piece * piece_rows; row < std::min(rows, (piece + 1) * piece_rows); ++row) {
      normalize(added + row * size, norm, size, eps, normed.data());
      float* to = hidden + row * size;
      for (int64_t i = 0; i < size; ++i) to[i] += normed[(size_t)i];
    }
  });
}

}  // namespace astrai

ASTRAI_EXPORT void astrai_add_normed(const float* added, const float* norm, float eps, int64_t rows,
                                     int64_t size, float* hidden) {
  astrai::add_normed(added, norm, eps, rows, size, hidden);
}

// out = epilogue(weight * norm(x)); see astrai_kernels.cpu.weights for what the phases pass.
ASTRAI_EXPORT void astrai_linear(const astrai::Weight* weight, const float* x, int64_t rows,
                                 const float* norm, float eps, float* out, int32_t epilogue) {
  if (rows > 0) astrai::apply({*weight, x, rows, norm, eps, out, (astrai::Epilogue)epilogue});
}

// values, columns [rows]: the largest of weight * norm(x) in each row, as astrai_largest gives it.
ASTRAI_EXPORT void astrai_largest_outputs(const astrai::Weight* weight, const float* x,
                                          int64_t rows, const float* norm, float eps,
                                          float* values, int64_t* columns) {
  const astrai::Linear call = {*weight, x, rows, norm, eps, nullptr, astrai::kStore};
  if (rows > 0) astrai::find_largest_outputs(call, values, columns);
}
