// The keys of a decode row that one block attends, and the merge of what all its blocks find.
#pragma once
#include "attention.cuh"
#include "params.cuh"

namespace astrai {

// One block's share of a row. Shares are multiples of `granularity` keys: short rows have few.
struct Share {
  static constexpr int granularity = 64;
  int begin = 0, end = 0;  // positions
  int num_shares = 0;      // of the row; 0: this block has nothing to do
  i64 token = 0;           // the row's query
  const i32* slots = nullptr;  // of the row's positions

  ASTRAI_DEVICE explicit Share(const DecodeParams& p) {
    const i64 row = block_y();
    token = row;
    if (p.qo_indptr) {
      token = p.qo_indptr[row];
      if (p.qo_indptr[row + 1] - token != 1) return;
    }
    const int length = (int)p.seq_lens[row];
    const int first = p.window > 0 && p.window < length ? length - p.window : 0;
    const int even = (length - first + p.num_splits - 1) / p.num_splits;
    const int size = (even + granularity - 1) / granularity * granularity;
    const int needed = length > first ? (length - first + size - 1) / size : 1;
    begin = first + (int)block_z() * size;
    end = begin + size < length ? begin + size : length;
    slots = p.req_to_token + p.req_pool_indices[row] * p.table_stride;
    num_shares = (int)block_z() < needed ? needed : 0;
  }
};

// What is known of one head's attention: the largest score in units of log2, the sum of the
// weights relative to it, and two columns of the weighted sum of v.
struct Part {
  f32 largest = hidden_score, sum = 0, out[2] = {0, 0};

  ASTRAI_DEVICE void add(const f32* stats, const f32* columns) {
    const f32 both = larger(largest, stats[0]);
    const f32 ours = exp2_fast(largest - both), theirs = exp2_fast(stats[0] - both);
    largest = both;
    sum = sum * ours + stats[1] * theirs;
    out[0] = out[0] * ours + columns[0] * theirs;
    out[1] = out[1] * ours + columns[1] * theirs;
  }
};

// What the warps of a block leave in shared memory: a Part of each head.
template <int num_warps, int num_heads, int head_dim>
struct WarpParts {
  f32 out[num_warps][num_heads][head_dim];
  f32 stats[num_warps][num_heads][2];
  u32 is_last;  // whether this block is the last one of its row
};

// Merges the parts of a block's warps and, in the last block of a row, those of the row's blocks.
template <class T, int num_warps, int num_heads, int head_dim>
struct Merge {
  static constexpr int threads = 32 * num_warps, pairs = head_dim / 2;
  const DecodeParams& p;
  const Share& share;
  const int group, first_head, heads;  // heads [first_head, first_head + heads)
  WarpParts<num_warps, num_heads, head_dim>& parts;

  // All threads call this, after the warps have left their parts.
  ASTRAI_DEVICE void run() const {
    block_sync();
    for (int i = thread_index(); i < heads * pairs; i += threads) {
      const int head = i / pairs, column = i % pairs * 2;
      Part part;
#pragma unroll
      for (int warp = 0; warp < num_warps; ++warp)
        part.add(parts.stats[warp][head], &parts.out[warp][head][column]);
      if (share.num_shares == 1)
        write(head, column, part);
      else
        keep(head, column, part);
    }
    if (share.num_shares > 1) merge_blocks();
  }

 private:
  ASTRAI_DEVICE void merge_blocks() const {
    block_sync();
    if (thread_index() == 0) {
      u32* counter = p.counters + (i64)block_y() * (p.num_kv_heads * head_tiles()) + block_x();
      parts.is_last = count_up(counter, share.num_shares - 1) == (u32)share.num_shares - 1;
    }
    block_sync();
    if (!parts.is_last) return;
    for (int i = thread_index(); i < heads * pairs; i += threads) {
      const int head = i / pairs, column = i % pairs * 2;
      Part part;
      for (int split = 0; split < share.num_shares; ++split) {
        const i64 place = kept(head, split);
        part.add(p.partial_stats + 2 * place, p.partial_out + place * head_dim + column);
      }
      write(head, column, part);
    }
  }
  ASTRAI_DEVICE void keep(int head, int column, const Part& part) const {
    const i64 place = kept(head, block_z());
    p.partial_out[place * head_dim + column] = part.out[0];
    p.partial_out[place * head_dim + column + 1] = part.out[1];
    if (column == 0) {
      p.partial_stats[2 * place] = part.largest;
      p.partial_stats[2 * place + 1] = part.sum;
    }
  }
  ASTRAI_DEVICE i64 kept(int head, int split) const {
    const i64 row_head = (i64)block_y() * (p.num_kv_heads * group) + first_head + head;
    return row_head * p.num_splits + split;
  }
  ASTRAI_DEVICE int head_tiles() const { return (group + 15) / 16; }
  ASTRAI_DEVICE void write(int head, int column, const Part& part) const {
    const f32 factor = part.sum > 0 ? 1 / part.sum : 0;
    T* out = (T*)p.out + share.token * p.out_token_stride + (first_head + head) * p.out_head_stride;
    *(u32*)(out + column) =
        Numbers<T>::pack_pair(part.out[0] * factor, part.out[1] * factor);
  }
};

}  // namespace astrai
