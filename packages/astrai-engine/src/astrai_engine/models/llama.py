"""The Llama family: one decoder, described by a ``ModelConfig``."""

from collections.abc import Sequence

import torch

from astrai_engine.models.config import LayerConfig, ModelConfig
from astrai_engine.models.rope import inverse_frequencies
from astrai_engine.models.weights import LayerWeights, ModelWeights
from astrai_kernels import (
    AttentionBackend,
    AttentionCache,
    LayerStack,
    Rotary,
    RotaryEmbedding,
)
from astrai_kernels.ops import (
    LayerPhases,
    embedding,
    linear_residual,
    norm_gate_up,
    norm_linear,
    rms_norm,
)


class DecoderLayer:
    """One layer in five phases, on packed tokens.

    Args:
        layer_id: its index, which names its part of the cache.
        config: the model's configuration.
        weights: its tensors.
    """

    def __init__(self, layer_id: int, config: ModelConfig, weights: LayerWeights) -> None:
        self.layer_id = layer_id
        self.layer_config: LayerConfig = config.layers[layer_id]
        self.config = config
        self.weights = weights

    @property
    def phases(self) -> LayerPhases:
        """What `forward` computes, for backends that run all layers at once."""
        config, weights = self.layer_config, self.weights
        return LayerPhases(
            attention_norm=weights.attention_norm,
            qkv=weights.qkv,
            query_norm=weights.query_norm,
            key_norm=weights.key_norm,
            output=weights.output,
            mlp_norm=weights.mlp_norm,
            gate_up=weights.gate_up,
            down=weights.down,
            eps=self.config.rms_norm_eps,
            rotation=0 if config.rotary else None,
            window=config.window,
        )

    def forward(
        self,
        hidden: torch.Tensor,
        rotations: Sequence[Rotary],
        cache: AttentionCache,
        backend: AttentionBackend,
    ) -> torch.Tensor:
        """Advance the residual stream by one layer.

        Args:
            hidden: ``[tokens, hidden]``; may be changed in place.
            rotations: the step's.
            cache: the step's view of the K/V cache.
            backend: computes attention.

        Returns:
            ``[tokens, hidden]``.
        """
        weights, eps = self.weights, self.config.rms_norm_eps
        qkv = norm_linear(hidden, weights.attention_norm, eps, weights.qkv)
        attended = self._attend(qkv, rotations, cache, backend)
        hidden = linear_residual(attended, weights.output, hidden)
        inner = norm_gate_up(hidden, weights.mlp_norm, eps, weights.gate_up)
        return linear_residual(inner, weights.down, hidden)

    def _attend(
        self,
        qkv: torch.Tensor,
        rotations: Sequence[Rotary],
        cache: AttentionCache,
        backend: AttentionBackend,
    ) -> torch.Tensor:
        config, weights = self.config, self.weights
        heads = qkv.view(qkv.shape[0], -1, config.head_dim)
        first_key = config.num_heads
        first_value = first_key + config.num_kv_heads
        q, k, v = heads[:, :first_key], heads[:, first_key:first_value], heads[:, first_value:]
        if weights.query_norm is not None and weights.key_norm is not None:
            q = rms_norm(q, weights.query_norm, config.rms_norm_eps)
            k = rms_norm(k, weights.key_norm, config.rms_norm_eps)
        out = backend.attend(
            q,
            k,
            v,
            cache,
            self.layer_id,
            rotary=rotations[0] if self.layer_config.rotary else None,
            window=self.layer_config.window,
        )
        return out.reshape(out.shape[0], -1)


class LlamaModel:
    """A decoder-only language model; holds no state between calls.

    Args:
        config: what it is made of.
        weights: its tensors, filled.
    """

    def __init__(self, config: ModelConfig, weights: ModelWeights) -> None:
        self.config = config
        self.weights = weights
        self.layers = LayerStack(
            [DecoderLayer(i, config, layer) for i, layer in enumerate(weights.layers)]
        )
        self._rotary = RotaryEmbedding(
            config.head_dim,
            config.max_seq_len,
            inv_freq=inverse_frequencies(config.rope, config.head_dim).to(self.device),
            attention_scaling=config.rope.attention_factor,
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.norm.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self.weights.norm.dtype

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        cache: AttentionCache,
        backend: AttentionBackend,
        *,
        logit_rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run one step over a packed, ragged batch.

        Args:
            input_ids: int64 ``[tokens]``.
            position_ids: int64 ``[tokens]``, each token's position in its own request.
            cache: the step's view of the K/V cache; the step's keys and values are written.
            backend: computes attention.
            logit_rows: int64, the tokens whose logits are wanted; None is all.

        Returns:
            Logits, float32 ``[rows, vocab]``.
        """
        hidden = embedding(input_ids, self.weights.embedding)
        rotary = Rotary(self._rotary(position_ids), interleaved=False)
        hidden = self.layers.forward(hidden, (rotary,), cache, backend)
        if logit_rows is not None:
            hidden = hidden[logit_rows]
        eps = self.config.rms_norm_eps
        return norm_linear(hidden, self.weights.norm, eps, self.weights.head).float()
