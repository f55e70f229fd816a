// One instance of each kernel, for the sanitizers, whose builds take long.
#define ASTRAI_EMULATE
#include "decode.cuh"
#include "interface.hpp"
#include "prefill.cuh"
#include "rotary.cuh"
#include "sample.cuh"

extern "C" {
INSTANCE(rotary_bf16_64, Rotary<bf16, 64>)
INSTANCE(decode_bf16_64_3, Decode<bf16, 64, 3>)
INSTANCE(decode_f16_64_8, Decode<f16, 64, 8>)
INSTANCE(prefill_bf16_64_3, Prefill<bf16, 64, 3>)
INSTANCE(sample, Sample)
}
