// All layers of a decoder in one call: five phases each, as the model's own code has them.

#include <algorithm>
#include <cmath>

#include "attention.h"
#include "export.h"
#include "linear.h"

namespace astrai {
namespace {

// Shared with Python: see astrai_kernels.cpu.library.
struct Layer {
  const Weight *qkv, *output, *gate_up, *down;
  const float *attention_norm, *mlp_norm;  // [hidden], or null
  const float *output_norm, *down_norm;    // [hidden], of what is added to the stream; or null
  const float *query_norm, *key_norm;      // [head_dim], or null
  int64_t window;                          // 0: none
  float eps;
  float scale;         // 0: head_dim ^ -0.5
  float softcap;       // 0: none
  int32_t activation;  // an epilogue
  int32_t rotation;    // index into the stack's, or -1
};

struct Stack {
  const Layer* layers;
  int64_t num_layers;
  // The step, as its first layer sees it: q, k and v are parts of a row of `qkv`.
  const Attention* attention;
  int64_t key_layer_bytes, value_layer_bytes;
  const float* const* rotations;  // each [tokens, rotary_dim / 2, 2]
  float* hidden;                  // [tokens, hidden], changed in place
  float* qkv;                     // [tokens, qkv features]
  float* attended;                // [tokens, heads * head_dim]
  float* inner;                   // [tokens, intermediate]
  float* added;                   // [tokens, hidden]; null where no layer norms what it adds
  const int64_t* wanted;          // tokens whose end of the stream is asked for; null: all
  int64_t num_wanted;
};

// Tokens on their way through what follows a layer's attention.
struct Rows {
  int64_t count;
  const float* attended;
  float* hidden;
};

// The output and down phases: hidden += weight * x, or the norm of that.
void add(const Stack& stack, const Rows& rows, const Weight& weight, const float* x,
         const float* norm, float eps) {
  if (norm == nullptr) return apply({weight, x, rows.count, nullptr, 0.f, rows.hidden, kAdd});
  apply({weight, x, rows.count, nullptr, 0.f, stack.added, kStore});
  add_normed(stack.added, norm, eps, rows.count, weight.out_features, rows.hidden);
}

// What follows a layer's attention.
void finish(const Stack& stack, const Layer& layer, const Rows& rows) {
  add(stack, rows, *layer.output, rows.attended, layer.output_norm, layer.eps);
  apply({*layer.gate_up, rows.hidden, rows.count, layer.mlp_norm, layer.eps, stack.inner,
         (Epilogue)layer.activation});
  add(stack, rows, *layer.down, stack.inner, layer.down_norm, layer.eps);
}

// The same for the wanted tokens alone, few enough to be brought together where queries and keys
// were.
void finish_wanted(const Stack& stack, const Layer& layer) {
  if (stack.num_wanted == 0) return;
  const int64_t size = layer.output->out_features, attended_size = layer.output->in_features;
  float* attended = stack.qkv;
  float* hidden = attended + stack.num_wanted * attended_size;
  for (int64_t i = 0; i < stack.num_wanted; ++i) {
    const int64_t token = stack.wanted[i];
    std::copy_n(stack.attended + token * attended_size, attended_size,
                attended + i * attended_size);
    std::copy_n(stack.hidden + token * size, size, hidden + i * size);
  }
  finish(stack, layer, {stack.num_wanted, attended, hidden});
  for (int64_t i = 0; i < stack.num_wanted; ++i)
    std::copy_n(hidden + i * size, size, stack.hidden + stack.wanted[i] * size);
}

void set_layer(const Stack& stack, const Layer& layer, Attention& attention) {
  attention.window = layer.window;
  attention.rotary = layer.rotation < 0 ? nullptr : stack.rotations[layer.rotation];
  attention.query_norm = layer.query_norm;
  attention.key_norm = layer.key_norm;
  attention.norm_eps = layer.eps;
  attention.softcap = layer.softcap;
  attention.scale =
      layer.scale > 0.f ? layer.scale : (float)std::pow((double)attention.head_dim, -0.5);
}

void run(const Stack& stack) {
  Attention attention = *stack.attention;
  const int64_t tokens = attention.tokens;
  for (const Layer* layer = stack.layers; layer < stack.layers + stack.num_layers; ++layer) {
    apply({*layer->qkv, stack.hidden, tokens, layer->attention_norm, layer->eps, stack.qkv,
           kStore});
    set_layer(stack, *layer, attention);
    attend(attention);
    attention.keys = (char*)attention.keys + stack.key_layer_bytes;
    attention.values = (char*)attention.values + stack.value_layer_bytes;
    const bool is_last = layer == stack.layers + stack.num_layers - 1;
    if (is_last && stack.wanted != nullptr)
      finish_wanted(stack, *layer);
    else
      finish(stack, *layer, {tokens, stack.attended, stack.hidden});
  }
}

}  // namespace
}  // namespace astrai

// Advances the residual stream `hidden` by all layers; with `wanted`, that of other tokens ends
// before the last layer's output.
ASTRAI_EXPORT void astrai_run_stack(const astrai::Stack* stack) { astrai::run(*stack); }
