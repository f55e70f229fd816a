// Decode attention: CUDA cores for few query heads per K/V head, tensor cores for more, for which
// registers would leave too few warps on CUDA cores to keep the memory busy.
#pragma once
#include "decode_cores.cuh"
#include "decode_mma.cuh"

namespace astrai {

constexpr bool fits_cores(int head_dim, int group) { return group <= (head_dim == 96 ? 2 : 3); }

template <class T, int head_dim, int group, bool on_cores = fits_cores(head_dim, group)>
struct Decode : DecodeCores<T, head_dim, group> {};

template <class T, int head_dim, int group>
struct Decode<T, head_dim, group, false> : DecodeMma<T, head_dim, group> {};

}  // namespace astrai
