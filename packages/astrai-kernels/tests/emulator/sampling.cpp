// The sampling kernel alone.
#define ASTRAI_EMULATE
#include "interface.hpp"
#include "sample.cuh"

extern "C" {
INSTANCE(sample, Sample)
}
