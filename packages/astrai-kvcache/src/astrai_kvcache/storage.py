"""The K/V of all tokens."""

import torch
from torch import Tensor


class KVStorage:
    """Keys and values by token slot, for all layers.

    The buffers are not initialised: readers take only slots that the table names for positions
    below a request's length.

    Args:
        size: number of token slots.
        n_layers: number of layers.
        n_kv_heads: K/V heads per layer.
        head_dim: dimension of a head.
        device: where the buffers live.
        dtype: of the stored K/V, which may differ from the model's.

    Attributes:
        size: number of token slots.
        k_buffer: ``[n_layers, size, n_kv_heads, head_dim]``.
        v_buffer: same shape.
    """

    def __init__(
        self,
        size: int,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.size = size
        shape = (n_layers, size, n_kv_heads, head_dim)
        # Buffers made in inference mode could only ever be written in inference mode.
        with torch.inference_mode(False):
            self.k_buffer = torch.empty(shape, device=device, dtype=dtype)
            self.v_buffer = torch.empty(shape, device=device, dtype=dtype)

    def get_key_buffer(self, layer_id: int) -> Tensor:
        """Keys of one layer, ``[size, n_kv_heads, head_dim]``, as a view."""
        return self.k_buffer[layer_id]

    def get_value_buffer(self, layer_id: int) -> Tensor:
        """Values of one layer, ``[size, n_kv_heads, head_dim]``, as a view."""
        return self.v_buffer[layer_id]

    def set_kv_buffer(self, layer_id: int, loc: Tensor, k: Tensor, v: Tensor) -> None:
        """Store K/V of one layer.

        Args:
            layer_id: the layer.
            loc: token slots, any shape.
            k: ``[*loc.shape, n_kv_heads, head_dim]``, converted to the storage's dtype.
            v: like ``k``.
        """
        self.k_buffer[layer_id, loc] = k.to(self.k_buffer.dtype)
        self.v_buffer[layer_id, loc] = v.to(self.v_buffer.dtype)

    def read(self, start: int, count: int) -> tuple[Tensor, Tensor]:
        """K/V of ``count`` consecutive slots, copied to host memory.

        Returns:
            Keys and values, ``[n_layers, count, n_kv_heads, head_dim]`` each.
        """
        keys, values = (
            buffer[:, start : start + count].to(
                "cpu", copy=True, memory_format=torch.contiguous_format
            )
            for buffer in (self.k_buffer, self.v_buffer)
        )
        return keys, values

    def write(self, start: int, keys: Tensor, values: Tensor) -> None:
        """Put back what :meth:`read` gave, at ``start``."""
        for buffer, content in ((self.k_buffer, keys), (self.v_buffer, values)):
            buffer[:, start : start + content.size(1)] = content.to(buffer.device)

    def copy_slots(self, source: int, target: int, count: int) -> None:
        """Copy the K/V of ``count`` consecutive slots, in all layers; they do not overlap."""
        for buffer in (self.k_buffer, self.v_buffer):
            buffer[:, target : target + count] = buffer[:, source : source + count]
