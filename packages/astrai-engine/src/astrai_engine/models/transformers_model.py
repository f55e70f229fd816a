"""Any decoder that transformers knows: its own module, over our attention and paged cache."""

from typing import Any

import torch
from torch import Tensor

from astrai_engine.models.config import ModelConfig
from astrai_engine.models.transformers_attention import StepAttention, attention_of
from astrai_kernels import AttentionBackend, AttentionCache


class TransformersModel:
    """A model that runs transformers' module; see `load_with_transformers`.

    Args:
        module: a causal language model whose attention is ours.
        config: what the engine needs to know of it.
    """

    def __init__(self, module: Any, config: ModelConfig) -> None:
        self.config = config
        self._module = module

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return torch.device(self._module.device)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        dtype: torch.dtype = self._module.dtype
        return dtype

    def fit_context(self, max_seq_len: int) -> None:
        """Nothing to prepare: the module computes its angles as it goes."""

    def position_offset(self, seq_len: int) -> int:
        """See `LlamaModel.position_offset`: always 0."""
        del seq_len
        return 0

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        cache: AttentionCache,
        backend: AttentionBackend,
        *,
        logit_rows: Tensor | None = None,
    ) -> Tensor:
        """Compute logits of packed tokens; see `LlamaModel.forward`."""
        with attention_of(StepAttention(cache, backend)):
            return logits_of(self._module, input_ids, position_ids, logit_rows)


def logits_of(
    module: Any, input_ids: Tensor, position_ids: Tensor, rows: Tensor | None = None
) -> Tensor:
    """A module's logits, float32 ``[rows, vocab]``, of packed tokens; None is all rows."""
    out = module(
        input_ids=input_ids.unsqueeze(0),
        position_ids=position_ids.unsqueeze(0),
        use_cache=False,
        logits_to_keep=0 if rows is None else rows,
    )
    logits: Tensor = out.logits[0].float()
    return logits
