// The linear phases of a decoder layer: optional norm, product, and what follows it.
#pragma once

#include <cstdint>

#include "weights.h"

namespace astrai {

enum Epilogue : int32_t { kStore = 0, kAdd = 1, kSwiGLU = 2, kGeGLU = 3 };

struct Leaders;

// out = epilogue(weight * norm(x))
struct Linear {
  const Weight& weight;
  const float* x;  // [rows, in_features]
  int64_t rows;
  const float* norm;  // [in_features], or null
  float eps;
  float* out;  // [rows, out_features], half of them for a gate
  Epilogue epilogue;
  // [rows], which outputs meet in the place of `epilogue` and `out`; or null.
  Leaders* leaders = nullptr;
};

void apply(const Linear& call);

// The largest output of each row and its column, as `comes_before` orders them; none is stored.
void find_largest_outputs(const Linear& call, float* values, int64_t* columns);

// hidden += norm(added), both [rows, size].
void add_normed(const float* added, const float* norm, float eps, int64_t rows, int64_t size,
                float* hidden);

}  // namespace astrai
