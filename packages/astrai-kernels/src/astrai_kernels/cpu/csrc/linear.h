// The linear phases of a decoder layer: optional norm, product, and what follows it.
#pragma once

#include <cstdint>

#include "weights.h"

namespace astrai {

enum Epilogue : int32_t { kStore = 0, kAdd = 1, kSwiGLU = 2 };

// out = epilogue(weight * norm(x))
struct Linear {
  const Weight& weight;
  const float* x;  // [rows, in_features]
  int64_t rows;
  const float* norm;  // [in_features], or null
  float eps;
  float* out;  // [rows, out_features], half of them for kSwiGLU
  Epilogue epilogue;
};

void apply(const Linear& call);

}  // namespace astrai
