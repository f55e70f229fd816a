// Decode attention: CUDA cores where tensor cores would idle, tensor cores above.
#pragma once
#include "decode_cores.cuh"
#include "decode_mma.cuh"

namespace astrai {

template <class T, int head_dim, int group, bool is_small = (group <= 4)>
struct Decode : DecodeCores<T, head_dim, group> {};

template <class T, int head_dim, int group>
struct Decode<T, head_dim, group, false> : DecodeMma<T, head_dim, group> {};

}  // namespace astrai
