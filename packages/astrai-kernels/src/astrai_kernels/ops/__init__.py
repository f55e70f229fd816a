"""The operations of a decoder layer, each a function with a torch reference.

A layer is five phases: `norm_linear` (norm and qkv), `AttentionBackend.attend` (rotary, cache
write, attention), `linear_residual` (output), `norm_gate_up` (norm, gate, up, SwiGLU), and
`linear_residual` again (down). What a phase runs is decided by the type of its weight. In the
place of the last two, `mix_experts` runs a mixture of experts.

`attn_paged_decode`, `attn_paged_prefill`, `rotary_emb`, `rotary_emb_store` and `sample_rows` are
the CUDA kernels themselves, as torch ops of the namespace ``astrai``, with torch behind them on
CPUs.
"""

from astrai_kernels.ops.activation import Activation
from astrai_kernels.ops.embedding import Table, embedding
from astrai_kernels.ops.largest import largest, likeliest
from astrai_kernels.ops.linear import likeliest_output, linear, linear_residual, norm_linear
from astrai_kernels.ops.mixture import Mixture, mix_experts
from astrai_kernels.ops.mlp import norm_gate_up
from astrai_kernels.ops.norm import rms_norm
from astrai_kernels.ops.paged_attention import attn_paged_decode, attn_paged_prefill
from astrai_kernels.ops.phases import LayerPhases
from astrai_kernels.ops.rotary_emb import rotary_emb, rotary_emb_store
from astrai_kernels.ops.sample import (
    SampleRow,
    pack_rows,
    sample_rows,
    sampling_unavailable_reason,
)
from astrai_kernels.ops.weight import LinearWeight, Weight

__all__ = [
    "Activation",
    "LayerPhases",
    "LinearWeight",
    "Mixture",
    "SampleRow",
    "Table",
    "Weight",
    "attn_paged_decode",
    "attn_paged_prefill",
    "embedding",
    "largest",
    "likeliest",
    "likeliest_output",
    "linear",
    "linear_residual",
    "mix_experts",
    "norm_gate_up",
    "norm_linear",
    "pack_rows",
    "rms_norm",
    "rotary_emb",
    "rotary_emb_store",
    "sample_rows",
    "sampling_unavailable_reason",
]
