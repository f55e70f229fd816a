"""Our attention, as transformers calls it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name the torch world knows it by

from astrai_kernels import AttentionBackend, AttentionCache

ATTENTION = "astrai"
"""What transformers calls our attention."""


class LayerAttention(Protocol):
    """What computes the attention of a step's layers."""

    def attend(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """See `astrai_kernels.AttentionBackend.attend`."""
        ...


@dataclass(frozen=True)
class StepAttention:
    """Attention over a step's cache.

    Attributes:
        cache: the step's view of the K/V cache.
        backend: computes attention.
    """

    cache: AttentionCache
    backend: AttentionBackend

    def attend(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """See `astrai_kernels.AttentionBackend.attend`."""
        return self.backend.attend(q, k, v, self.cache, layer_id, **options)


# A context variable, since not every module passes on what it does not know.
_current: ContextVar[LayerAttention] = ContextVar("astrai_attention")


@contextmanager
def attention_of(step: LayerAttention) -> Iterator[None]:
    """Make `attend` compute a step's attention."""
    token = _current.set(step)
    try:
        yield
    finally:
        _current.reset(token)


def attend(  # noqa: PLR0913 - transformers' interface
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it, of the step under way.

    Args:
        module: the attention layer.
        query: ``[1, n_heads, tokens, head_dim]``, rotated.
        key: ``[1, n_kv_heads, tokens, head_dim]``, rotated.
        value: the same, with a ``head_dim`` that may be smaller.
        attention_mask: unused: what a token sees is known from the cache.
        scaling: factor on scores.
        sliding_window: in tokens, or None.
        softcap: of scores, or None.
        options: what else transformers passes; the trial at load shows whether any of it matters.

    Returns:
        ``[1, tokens, n_heads, value's head_dim]``, and no attention weights.
    """
    del attention_mask, options
    q, k, v = (each.squeeze(0).transpose(0, 1) for each in (query, key, value))
    width = v.shape[-1]
    if width < k.shape[-1]:
        v = F.pad(v, (0, k.shape[-1] - width))
    out = _current.get().attend(
        module.layer_idx, q, k, v, scale=scaling, softcap=softcap, window=sliding_window
    )
    return out[..., :width].unsqueeze(0), None
