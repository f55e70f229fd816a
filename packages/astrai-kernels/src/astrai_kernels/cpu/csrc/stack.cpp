// All layers of a decoder in one call: five phases each, as the model's own code has them.

#include "attention.h"
#include "export.h"
#include "linear.h"

namespace astrai {
namespace {

// Shared with Python: see astrai_kernels.cpu.library.
struct Layer {
  const Weight *qkv, *output, *gate_up, *down;
  const float *attention_norm, *mlp_norm;  // [hidden]
  int64_t window;                          // 0: none
  float eps;
  int32_t is_rotated;
};

struct Stack {
  const Layer* layers;
  int64_t num_layers;
  // The step, as its first layer sees it: q, k and v are parts of a row of `qkv`.
  const Attention* attention;
  int64_t key_layer_bytes, value_layer_bytes;
  float* hidden;    // [tokens, hidden], changed in place
  float* qkv;       // [tokens, qkv features]
  float* attended;  // [tokens, heads * head_dim]
  float* inner;     // [tokens, intermediate]
};

void run(const Stack& stack) {
  Attention attention = *stack.attention;
  const int64_t tokens = attention.tokens;
  for (const Layer* layer = stack.layers; layer < stack.layers + stack.num_layers; ++layer) {
    apply({*layer->qkv, stack.hidden, tokens, layer->attention_norm, layer->eps, stack.qkv, kStore});
    attention.window = layer->window;
    attention.rotary = layer->is_rotated ? stack.attention->rotary : nullptr;
    attend(attention);
    attention.keys = (char*)attention.keys + stack.key_layer_bytes;
    attention.values = (char*)attention.values + stack.value_layer_bytes;
    apply({*layer->output, stack.attended, tokens, nullptr, 0.f, stack.hidden, kAdd});
    apply({*layer->gate_up, stack.hidden, tokens, layer->mlp_norm, layer->eps, stack.inner, kSwiGLU});
    apply({*layer->down, stack.inner, tokens, nullptr, 0.f, stack.hidden, kAdd});
  }
}

}  // namespace
}  // namespace astrai

// Advances the residual stream `hidden` by all layers.
ASTRAI_EXPORT void astrai_run_stack(const astrai::Stack* stack) { astrai::run(*stack); }
