// Kernels whose sources test_faults.py breaks.
#define ASTRAI_EMULATE
#include "decode.cuh"
#include "interface.hpp"
#include "prefill.cuh"

extern "C" {
INSTANCE(decode_bf16_64_3, Decode<bf16, 64, 3>)
INSTANCE(decode_f16_64_8, Decode<f16, 64, 8>)
INSTANCE(prefill_bf16_64_3, Prefill<bf16, 64, 3>)
}
