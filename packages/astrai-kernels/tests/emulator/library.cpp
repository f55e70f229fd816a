// The kernels that the tests run on the emulator.
#define ASTRAI_EMULATE
#include "decode.cuh"
#include "interface.hpp"
#include "prefill.cuh"
#include "rotary.cuh"
#include "sample.cuh"

extern "C" {
INSTANCE(rotary_f32_64, Rotary<f32, 64>)
INSTANCE(rotary_bf16_64, Rotary<bf16, 64>)
INSTANCE(rotary_f16_96, Rotary<f16, 96>)
INSTANCE(decode_bf16_64_3, Decode<bf16, 64, 3>)
INSTANCE(decode_f16_96_1, Decode<f16, 96, 1>)
INSTANCE(decode_bf16_128_4, Decode<bf16, 128, 4>)
INSTANCE(decode_f16_256_2, Decode<f16, 256, 2>)
INSTANCE(decode_f16_64_8, Decode<f16, 64, 8>)
INSTANCE(decode_f16_64_9, Decode<f16, 64, 9>)
INSTANCE(decode_bf16_96_5, Decode<bf16, 96, 5>)
INSTANCE(decode_f16_256_4, Decode<f16, 256, 4>)
INSTANCE(decode_bf16_128_20, Decode<bf16, 128, 20>)
INSTANCE(decode_bf16_256_16, Decode<bf16, 256, 16>)
INSTANCE(prefill_bf16_64_3, Prefill<bf16, 64, 3>)
INSTANCE(prefill_f16_96_1, Prefill<f16, 96, 1>)
INSTANCE(prefill_bf16_128_4, Prefill<bf16, 128, 4>)
INSTANCE(prefill_f16_256_2, Prefill<f16, 256, 2>)
INSTANCE(sample, Sample)

extern const u32 parameter_bytes[] = {sizeof(RotaryParams), sizeof(DecodeParams),
                                      sizeof(PrefillParams), sizeof(SampleParams),
                                      sizeof(SampleRow)};
}
