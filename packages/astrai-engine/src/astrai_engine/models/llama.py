"""The Llama family: one decoder, described by a ``ModelConfig``."""

from collections.abc import Sequence

import torch

from astrai_engine.models.config import ModelConfig
from astrai_engine.models.rope import RopeConfig, inverse_frequencies
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
    Mixture,
    embedding,
    likeliest,
    likeliest_output,
    linear_residual,
    mix_experts,
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
        rotation: which of a step's rotations it uses; None for none.
    """

    def __init__(
        self, layer_id: int, config: ModelConfig, weights: LayerWeights, rotation: int | None
    ) -> None:
        self.layer_id = layer_id
        self.config = config
        self.weights = weights
        self.norms = weights.norms.shifted(config.norm_offset)
        self.rotation = rotation
        self.window = config.layers[layer_id].window

    @property
    def phases(self) -> LayerPhases | None:
        """What `forward` computes, for backends that run all layers at once."""
        config, weights, norms, mlp = self.config, self.weights, self.norms, self.weights.mlp
        if isinstance(mlp, Mixture) or config.qk_norm == "all":
            return None
        return LayerPhases(
            attention_norm=norms.attention,
            qkv=weights.qkv,
            query_norm=norms.query,
            key_norm=norms.key,
            output=weights.output,
            output_norm=norms.output,
            mlp_norm=norms.mlp,
            gate_up=mlp.gate_up,
            activation=config.activation,
            down=mlp.down,
            down_norm=norms.down,
            eps=config.rms_norm_eps,
            rotation=self.rotation,
            scale=config.attention_scale,
            softcap=config.attention_softcap,
            window=self.window,
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
            rotations: the step's, of which the layer uses one or none.
            cache: the step's view of the K/V cache.
            backend: computes attention.

        Returns:
            ``[tokens, hidden]``.
        """
        weights, norms, mlp, eps = (
            self.weights,
            self.norms,
            self.weights.mlp,
            self.config.rms_norm_eps,
        )
        qkv = norm_linear(hidden, norms.attention, eps, weights.qkv)
        attended = self._attend(qkv, rotations, cache, backend)
        hidden = linear_residual(
            attended, weights.output, hidden, norm_weight=norms.output, eps=eps
        )
        if isinstance(mlp, Mixture):
            return hidden + self._mix(hidden, mlp)
        inner = norm_gate_up(hidden, norms.mlp, eps, mlp.gate_up, self.config.activation)
        return linear_residual(inner, mlp.down, hidden, norm_weight=norms.down, eps=eps)

    def _attend(
        self,
        qkv: torch.Tensor,
        rotations: Sequence[Rotary],
        cache: AttentionCache,
        backend: AttentionBackend,
    ) -> torch.Tensor:
        config = self.config
        heads = qkv.view(qkv.shape[0], -1, config.head_dim)
        q, k, v = heads.split_with_sizes(
            (config.num_heads, config.num_kv_heads, config.num_kv_heads), 1
        )
        out = backend.attend(
            self._norm_heads(q, self.norms.query),
            self._norm_heads(k, self.norms.key),
            v,
            cache,
            self.layer_id,
            rotary=None if self.rotation is None else rotations[self.rotation],
            scale=config.attention_scale,
            softcap=config.attention_softcap,
            window=self.window,
        )
        return out.reshape(out.shape[0], -1)

    def _norm_heads(self, heads: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """Norm each head, or with a weight for all of a token's heads, those together."""
        if weight is None:
            return heads
        rows = heads.reshape(*heads.shape[:-2], -1, len(weight))
        return rms_norm(rows, weight, self.config.rms_norm_eps).view(heads.shape)

    def _mix(self, hidden: torch.Tensor, mixture: Mixture) -> torch.Tensor:
        norms, eps = self.norms, self.config.rms_norm_eps
        x = hidden if norms.mlp is None else rms_norm(hidden, norms.mlp, eps)
        return mix_experts(x, mixture, self.config.activation)


class LlamaModel:
    """A decoder-only language model; holds no state between calls.

    Args:
        config: what it is made of.
        weights: its tensors, filled.
    """

    def __init__(self, config: ModelConfig, weights: ModelWeights) -> None:
        self.config = config
        self.weights = weights
        self.norm = weights.norm + config.norm_offset if config.norm_offset else weights.norm
        ways = [(layer.rope or config.rope) if layer.rotary else None for layer in config.layers]
        self._ropes = list(dict.fromkeys(rope for rope in ways if rope is not None))
        self.layers = LayerStack(
            [
                DecoderLayer(i, config, layer, None if rope is None else self._ropes.index(rope))
                for i, (layer, rope) in enumerate(zip(weights.layers, ways, strict=True))
            ]
        )
        self.fit_context(config.default_seq_len)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.norm.device

    @property
    def dtype(self) -> torch.dtype:
        """Of activations."""
        return self.weights.dtype

    def fit_context(self, max_seq_len: int) -> None:
        """Prepare for positions below ``max_seq_len``, beside those of `position_offset`.

        A context beyond the trained one changes the frequencies of dynamic scaling: K/V computed
        before such a change are of no use after it.
        """
        originals = [r.original_max_seq_len for r in self._ropes if r.rope_type == "longrope"]
        self._short_context = min(originals, default=0)
        if self._short_context >= max_seq_len:
            self._short_context = 0
        self._tables = [self._table(rope, max_seq_len) for rope in self._ropes]

    def position_offset(self, seq_len: int) -> int:
        """What to add to the positions of a request that may grow to ``seq_len`` tokens.

        Longrope has one set of frequencies for requests within the original context and another
        for those beyond it. The second set is for positions behind the original context, so that
        a request has the same one from its first token to its last.
        """
        return self._short_context if seq_len > self._short_context else 0

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        cache: AttentionCache,
        backend: AttentionBackend,
        *,
        logit_rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute logits of packed tokens.

        Args:
            input_ids: int64 ``[tokens]``.
            position_ids: int64 ``[tokens]``, each token's position in its own request, plus that
                request's `position_offset`.
            cache: the step's view of the K/V cache; the step's keys and values are written.
            backend: computes attention.
            logit_rows: int64, the tokens whose logits are wanted; None is all.

        Returns:
            Logits, float32 ``[rows, vocab]``.
        """
        hidden = self._hidden(input_ids, position_ids, cache, backend, logit_rows)
        return self._logits(hidden)

    def likeliest(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        cache: AttentionCache,
        backend: AttentionBackend,
        *,
        logit_rows: torch.Tensor | None = None,
    ) -> tuple[list[float], list[int]]:
        """The largest logit of each row that `forward` would give, and its token.

        The same numbers, sooner where a kernel can leave the other logits unwritten.
        """
        hidden = self._hidden(input_ids, position_ids, cache, backend, logit_rows)
        config = self.config
        if config.logit_scale != 1.0 or config.logit_softcap is not None:
            return likeliest(self._logits(hidden))
        return likeliest_output(hidden, self.norm, config.rms_norm_eps, self.weights.head)

    def _hidden(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        cache: AttentionCache,
        backend: AttentionBackend,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """What the layers make of the tokens, of those that ``rows`` names."""
        hidden = embedding(input_ids, self.weights.embedding)
        if self.config.embedding_scale != 1.0:
            hidden = hidden * self.config.embedding_scale
        rotations = [Rotary(table(position_ids), interleaved=False) for table in self._tables]
        hidden = self.layers.forward(hidden, rotations, cache, backend, wanted=rows)
        return hidden if rows is None else hidden[rows]

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        config = self.config
        logits = norm_linear(hidden, self.norm, config.rms_norm_eps, self.weights.head)
        if logits.dtype is not torch.float32:
            logits = logits.float()
        if config.logit_scale != 1.0:
            logits *= config.logit_scale
        if config.logit_softcap is not None:
            logits = config.logit_softcap * torch.tanh(logits / config.logit_softcap)
        return logits

    def _table(self, rope: RopeConfig, max_seq_len: int) -> RotaryEmbedding:
        table = self._angles(rope, max_seq_len)
        if self._short_context:
            short = self._angles(rope, self._short_context)
            table.freqs_cis = torch.cat((short.freqs_cis, table.freqs_cis))
        return table

    def _angles(self, rope: RopeConfig, max_seq_len: int) -> RotaryEmbedding:
        frequencies = inverse_frequencies(rope, self.config.head_dim, max_seq_len)
        return RotaryEmbedding(
            2 * len(frequencies),
            max_seq_len,
            inv_freq=frequencies.to(self.device),
            attention_scaling=rope.attention_factor,
        )
