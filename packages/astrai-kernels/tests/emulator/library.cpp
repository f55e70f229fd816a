// The kernels that the tests run on the emulator, behind a plain C interface.
#define ASTRAI_EMULATE
#include "decode.cuh"
#include "prefill.cuh"
#include "rotary.cuh"

using namespace astrai;

extern "C" {

struct Instance {
  void (*run)(const void* params);
  u32 threads, shared_bytes;
};

bool emulator_launch(const Instance* instance, const void* params, const u32* grid, int schedule,
                     int copies, u32 seed) {
  auto& m = machine();
  m.schedule = static_cast<emulator::Schedule>(schedule);
  m.copies = static_cast<emulator::Copies>(copies);
  m.random.seed(seed);
  return emulator::launch(instance->run, params, {grid[0], grid[1], grid[2]}, instance->threads,
                          instance->shared_bytes);
}
const char* emulator_error() { return machine().error.c_str(); }
const emulator::Counts* emulator_counts() { return &machine().counts; }

#define INSTANCE(name, ...)                                             \
  Instance name = {[](const void* params) {                             \
                     using Kernel = __VA_ARGS__;                        \
                     const auto own = *(const Kernel::Params*)params;   \
                     Kernel::run(own, machine().shared);                \
                   },                                                   \
                   (__VA_ARGS__::threads), (__VA_ARGS__::shared_bytes)};

INSTANCE(rotary_f32_64, Rotary<f32, 64>)
INSTANCE(rotary_bf16_64, Rotary<bf16, 64>)
INSTANCE(rotary_f16_96, Rotary<f16, 96>)
INSTANCE(decode_bf16_64_3, Decode<bf16, 64, 3>)
INSTANCE(decode_f16_96_1, Decode<f16, 96, 1>)
INSTANCE(decode_bf16_128_4, Decode<bf16, 128, 4>)
INSTANCE(decode_f16_256_2, Decode<f16, 256, 2>)
INSTANCE(decode_f16_64_8, Decode<f16, 64, 8>)
INSTANCE(decode_bf16_96_5, Decode<bf16, 96, 5>)
INSTANCE(decode_bf16_128_20, Decode<bf16, 128, 20>)
INSTANCE(decode_bf16_256_16, Decode<bf16, 256, 16>)
INSTANCE(prefill_bf16_64_3, Prefill<bf16, 64, 3>)
INSTANCE(prefill_f16_96_1, Prefill<f16, 96, 1>)
INSTANCE(prefill_bf16_128_4, Prefill<bf16, 128, 4>)
INSTANCE(prefill_f16_256_2, Prefill<f16, 256, 2>)
}
