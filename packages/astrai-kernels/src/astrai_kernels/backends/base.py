"""What an attention backend is, and what it needs of a cache."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor

from astrai_kernels.rotary import Rotary

if TYPE_CHECKING:
    from astrai_kernels.layer_stack import LayerStack


class ATTN_BACKEND(Enum):  # noqa: N801 - mirrors the constants of torch.nn.attention
    """The attention backends; the values are what ``ASTRAI_BACKEND`` accepts."""

    TORCH_NATIVE = "torch_native"
    CUDA = "cuda"
    CPU = "cpu"


class AttentionCache(Protocol):
    """The paged K/V of one step, as pure data.

    A cache object describes one step and is not changed during it: backends keep what they derive
    from it for as long as they are called with the same object.
    """

    @property
    def k_buffer(self) -> Tensor:
        """``[n_layers, size, n_kv_heads, head_dim]``: the keys of every token slot."""

    @property
    def v_buffer(self) -> Tensor:
        """``[n_layers, size, n_kv_heads, head_dim]``: the values of every token slot."""

    @property
    def req_to_token(self) -> Tensor:
        """``[num_reqs, max_ctx_len]`` int32: the token slot of each position."""

    @property
    def req_pool_indices(self) -> Tensor:
        """``[batch]``: each row's row in `req_to_token`."""

    @property
    def seq_lens(self) -> Tensor:
        """``[batch]``: tokens of each row, this step's included; 0 for an idle row."""

    @property
    def out_cache_loc(self) -> Tensor:
        """``[tokens]`` or ``[batch, q_len]``: slots to write; negative ones are not written."""

    @property
    def max_len(self) -> int:
        """At least the largest of `seq_lens`."""

    @property
    def kv_indptr(self) -> Tensor | None:
        """``[batch + 1]`` int32: prefix sums of `seq_lens`; None where nobody precomputed them."""

    @property
    def qo_indptr(self) -> Tensor | None:
        """``[batch + 1]`` int32: prefix sums of the rows' query tokens; None if all are equal."""


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """What all calls of one model have in common.

    Attributes:
        device: where its tensors are.
        dtype: of q, k and v.
        kv_dtype: of the cache.
        num_heads: query heads.
        num_kv_heads: K/V heads.
        head_dim: elements of a head.
        max_batch_size: rows in one call.
    """

    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_batch_size: int


class AttentionBackend(ABC):
    """An implementation of attention over a paged K/V cache, for inference.

    Attributes:
        name: the member that selects this backend.
    """

    name: ClassVar[ATTN_BACKEND]

    @classmethod
    @abstractmethod
    def availability(cls, device: torch.device) -> str | None:
        """Say why this backend cannot run on a device, in a sentence; None when it can."""

    def warmup(self, shape: AttentionShape) -> str | None:
        """Build and load everything that a model's calls will need, before the first of them.

        Args:
            shape: what the calls have in common.

        Returns:
            Why a CUDA graph cannot hold the model's decode calls, as a sentence; None when it can:
            rows of one token each, bound without ``qo_indptr``.

        Raises:
            BackendUnavailableError: the backend is strict, and cannot serve such a model.
        """
        del shape
        return f"the backend {self.name.value!r} plans every step anew."

    @abstractmethod
    def attend(  # noqa: PLR0913 - the phase's inputs; grouping them would only rename them
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: AttentionCache,
        layer_id: int,
        *,
        rotary: Rotary | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        """Rotate q and k, write k and v to the cache, and attend over it.

        Tokens are packed row after row; a row's query tokens are the last of its `seq_lens`
        positions, and each sees the positions up to its own. The cache's buffers are changed in
        place; no gradient is recorded.

        Args:
            q: ``[tokens, n_heads, head_dim]``; any strides.
            k: ``[tokens, n_kv_heads, head_dim]``; ``n_heads`` is a multiple of ``n_kv_heads``.
            v: ``[tokens, n_kv_heads, head_dim]``.
            cache: where K/V live; its dtype may differ from q's.
            layer_id: index into the cache's buffers.
            rotary: angles of this step's tokens; None leaves q and k as they are.
            scale: factor on the scores; None is ``head_dim ** -0.5``.
            softcap: scores become ``softcap * tanh(score / softcap)``; None leaves them.
            window: a token sees only the last ``window`` positions, its own among them; None
                sees all.

        Returns:
            ``[tokens, n_heads, head_dim]`` of q's dtype, contiguous; zeros for idle rows' tokens.

        Raises:
            ShapeError: the tensors do not fit together, or ``window`` is below 1.
        """

    def run_layers(
        self,
        layers: "LayerStack",
        hidden: Tensor,
        rotations: Sequence[Rotary],
        cache: AttentionCache,
        *,
        wanted: Tensor | None = None,  # noqa: ARG002 - for backends that can leave tokens out
    ) -> Tensor:
        """Advance the residual stream by all layers, one by one unless a backend can do better.

        Args:
            layers: the model's layers.
            hidden: ``[tokens, hidden]``; may be changed in place.
            rotations: angles of this step's tokens; each layer uses one of them, or none.
            cache: where K/V live.
            wanted: int64, the tokens whose result is used; None is all. The K/V of the others are
                written all the same, but the last layer may leave them as they are.

        Returns:
            ``[tokens, hidden]``.

        Raises:
            ShapeError: the tensors do not fit together.
        """
        for layer in layers:
            hidden = layer.forward(hidden, rotations, cache, self)
        return hidden
