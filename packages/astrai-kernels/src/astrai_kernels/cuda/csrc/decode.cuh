// Decode attention: CUDA cores for up to three query heads per K/V head, tensor cores for more,
// for which registers would leave too few warps on CUDA cores to keep the memory busy.
#pragma once
#include "decode_cores.cuh"
#include "decode_mma.cuh"

namespace astrai {

template <class T, int head_dim, int group, bool is_small = (group <= 3)>
struct Decode : DecodeCores<T, head_dim, group> {};

template <class T, int head_dim, int group>
struct Decode<T, head_dim, group, false> : DecodeMma<T, head_dim, group> {};

}  // namespace astrai
