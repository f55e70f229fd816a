// What every library of kernels for the emulator offers besides its instances.
#pragma once
#include "params.cuh"

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
}
