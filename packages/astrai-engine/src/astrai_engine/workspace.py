"""Fixed buffers that every step writes into.

Their addresses never change, so that a captured CUDA graph can be replayed on them.
"""

from array import array

import torch
from torch import Tensor

from astrai_kvcache import BindWorkspace
from astrai_kvcache.staging import host_view


class InferenceWorkspace(BindWorkspace):
    """What a forward pass reads besides weights and cache.

    Args:
        max_batch_size: sequences in one step.
        max_step_tokens: tokens in one step.
        max_seq_len: context per sequence; the width of the decode mask.
        device: where the buffers live.
    """

    def __init__(
        self, max_batch_size: int, max_step_tokens: int, max_seq_len: int, device: torch.device
    ) -> None:
        super().__init__(max_batch_size, max_step_tokens, device)
        self._tokens = torch.zeros((2, max_step_tokens), dtype=torch.long, device=device)
        self.input_ids, self.position_ids = self._tokens
        self._loaded = (self.input_ids, self.position_ids)
        self._host = host_view(self._tokens)
        self._columns = torch.arange(max_seq_len, device=device)
        self._decode_mask = torch.zeros(
            (max_batch_size, max_seq_len), dtype=torch.bool, device=device
        )

    def load_tokens(self, token_ids: list[int], position_ids: list[int]) -> tuple[Tensor, Tensor]:
        """Copy a step's tokens in.

        Args:
            token_ids: packed tokens of all sequences.
            position_ids: the position of each.

        Returns:
            Views ``[tokens]`` int64 of the two buffers.
        """
        if len(self._loaded[0]) != len(token_ids):
            inputs, positions = self._tokens[:, : len(token_ids)]
            self._loaded = inputs, positions
        if self._host is not None:
            start = len(self.input_ids)
            self._host[: len(token_ids)] = array("q", token_ids)
            self._host[start : start + len(position_ids)] = array("q", position_ids)
        else:
            numbers = torch.tensor([token_ids, position_ids], dtype=torch.long)
            self._tokens[:, : len(token_ids)].copy_(numbers, non_blocking=True)
        return self._loaded

    def decode_mask(self, batch_size: int) -> Tensor:
        """Which columns each decoding row may read: ``[batch_size, max_seq_len]`` booleans.

        Written in place from ``seq_lens``, without asking the device for anything.
        """
        mask = self._decode_mask[:batch_size]
        torch.lt(self._columns, self.seq_lens[:batch_size, None], out=mask)
        return mask
