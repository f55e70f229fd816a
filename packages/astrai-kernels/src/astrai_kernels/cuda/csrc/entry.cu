// One kernel per compilation, chosen by macros:
//
//   ASTRAI_KERNEL     ASTRAI_ROTARY, ASTRAI_DECODE, ASTRAI_PREFILL or ASTRAI_SAMPLE
//   ASTRAI_DTYPE      astrai::bf16 or astrai::f16; rotary also astrai::f32     (not for sample)
//   ASTRAI_HEAD_DIM   64, 96, 128 or 256; rotary any multiple of 32 bytes      (not for sample)
//   ASTRAI_GROUP      query heads per K/V head, 1 and up                 (decode, prefill only)
//
// The entry point is always `astrai_entry`; it takes its parameters by value (params.cuh). Threads
// and dynamic shared memory are `threads` and `shared_bytes` of the kernel's class; registers let
// `blocks_at_once` run on a processor.
#define ASTRAI_ROTARY 1
#define ASTRAI_DECODE 2
#define ASTRAI_PREFILL 3
#define ASTRAI_SAMPLE 4

#if ASTRAI_KERNEL == ASTRAI_ROTARY
#include "rotary.cuh"
using Kernel = astrai::Rotary<ASTRAI_DTYPE, ASTRAI_HEAD_DIM>;
#elif ASTRAI_KERNEL == ASTRAI_DECODE
#include "decode.cuh"
using Kernel = astrai::Decode<ASTRAI_DTYPE, ASTRAI_HEAD_DIM, ASTRAI_GROUP>;
#elif ASTRAI_KERNEL == ASTRAI_PREFILL
#include "prefill.cuh"
using Kernel = astrai::Prefill<ASTRAI_DTYPE, ASTRAI_HEAD_DIM, ASTRAI_GROUP>;
#elif ASTRAI_KERNEL == ASTRAI_SAMPLE
#include "sample.cuh"
using Kernel = astrai::Sample;
#else
#error "ASTRAI_KERNEL must name a kernel"
#endif

extern "C" __global__ void __launch_bounds__(Kernel::threads, Kernel::blocks_at_once)
    astrai_entry(const __grid_constant__ Kernel::Params params) {
  extern __shared__ __align__(128) astrai::u8 shared[];
  Kernel::run(params, shared);
}
