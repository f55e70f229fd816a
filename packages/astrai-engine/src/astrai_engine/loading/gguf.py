"""A GGUF file's tensors, under the names and in the order that Hugging Face has them."""

from typing import Any

import numpy as np
import torch

from astrai_engine.loading.completeness import check_complete
from astrai_engine.loading.gguf_config import LONG_FACTORS, ROPE_DIVISORS, SHORT_FACTORS
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.models.config import ModelConfig
from astrai_engine.models.share import Cut, Share
from astrai_engine.models.weights import ModelWeights

_PERMUTED = ("llama", "smollm3")
"""Architectures whose query and key rows the converter reordered for interleaved rotation."""

_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA_NAMES = {"ffn_norm": "pre_feedforward_layernorm"}
_OTHER_NAMES: dict[str, dict[str, str]] = {
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
    "gemma2": _GEMMA_NAMES,
    "gemma3": _GEMMA_NAMES,
}
"""Where an architecture's tensors mean something else than their names elsewhere."""

_NOT_WEIGHTS = (ROPE_DIVISORS, LONG_FACTORS, SHORT_FACTORS)

Array = np.ndarray[Any, Any]


class GGUFTensors:
    """The tensors of a file.

    Args:
        file: the open file.
        config: what ``read_config`` made of it.
        share: the part of each tensor that there is; None is all.

    Attributes:
        file: the same.
        names: Hugging Face's name of each tensor to the file's own.
    """

    def __init__(self, file: GGUFFile, config: ModelConfig, share: Share | None = None) -> None:
        self.file = file
        self._share = share
        self.names = {
            _hf_name(name, file.architecture): name
            for name in file.tensors
            if name not in _NOT_WEIGHTS
        }
        self._head_dim = config.head_dim

    def shape(self, name: str) -> tuple[int, ...] | None:
        """A tensor's shape by its Hugging Face name; None where there is none."""
        if name not in self.names:
            return None
        shape, cut = self.file.shape(self.names[name]), self._cut(name)
        return shape if cut is None else cut.shape(shape)

    def kind(self, name: str) -> str:
        """A tensor's quantisation, such as ``Q4_1``."""
        return self.file.kind(self.names[name])

    def blocks(self, name: str) -> Array | None:
        """A tensor as the file stores it, uint8 ``[rows, bytes]``; None where a block is cut."""
        own, cut = self.names[name], self._cut(name)
        blocks = self.file.rows(own) if cut is None else self.file.rows_cut(own, cut)
        return None if blocks is None else self._ordered(name, blocks)

    def read(self, name: str) -> torch.Tensor | None:
        """A tensor's values in float32; None where there is none."""
        if name not in self.names:
            return None
        own, cut = self.names[name], self._cut(name)
        values = self.file.read(own) if cut is None else self.file.read_cut(own, cut)
        return torch.from_numpy(self._ordered(name, values))

    def read_into(self, name: str, values: Array) -> None:
        """Dequantise a tensor into float32 values of its shape, contiguous."""
        own, cut = self.names[name], self._cut(name)
        if cut is None:
            self.file.read_into(own, values.reshape(-1))
        else:
            values[...] = self.file.read_cut(own, cut)
        values[...] = self._ordered(name, values)

    def _cut(self, name: str) -> Cut | None:
        return None if self._share is None else self._share.cut(name)

    def _ordered(self, name: str, values: Array) -> Array:
        is_reordered = self.file.architecture in _PERMUTED and (
            ".q_proj." in name or ".k_proj." in name
        )
        return half_split(values, self._head_dim) if is_reordered else values


def fill_weights(tensors: GGUFTensors, weights: ModelWeights) -> None:
    """Dequantise every tensor straight into its place.

    Args:
        tensors: of the file.
        weights: allocated by its configuration.

    Raises:
        ModelLoadError: tensors are missing, unexpected or of another shape; all are named.
    """
    _check_tensors(tensors, weights)
    for name in tensors.names:
        if name in weights.slots:
            _fill(tensors, name, weights.slots[name])


def _fill(tensors: GGUFTensors, name: str, slot: torch.Tensor) -> None:
    """Dequantise a tensor, in the slot's own memory where that can be.

    On the CPU all is done in numpy: torch would wake its threads for every little copy.
    """
    is_ready = slot.device.type == "cpu" and slot.dtype == torch.float32
    target = slot if is_ready else torch.empty(slot.shape, dtype=torch.float32)
    tensors.read_into(name, target.numpy())
    if not is_ready:
        slot.copy_(target)


def _check_tensors(tensors: GGUFTensors, weights: ModelWeights) -> None:
    names, slots = tensors.names, weights.slots
    problems = [f"{name} is missing" for name in slots if name not in names]
    problems += [
        f"{own} is not part of this architecture"
        for name, own in names.items()
        if name not in slots and name not in weights.packed
    ]
    problems += [
        f"{own} has shape {tensors.shape(name)} instead of {tuple(slots[name].shape)}"
        for name, own in names.items()
        if name in slots and tensors.shape(name) != tuple(slots[name].shape)
    ]
    check_complete(tensors.file.path, problems)


def _hf_name(name: str, architecture: str) -> str:
    """What a tensor is called in a Hugging Face checkpoint."""
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("blk."):
        _, layer, part = stem.split(".", 2)
        names = _LAYER_NAMES | _OTHER_NAMES.get(architecture, {})
        return f"model.layers.{layer}.{names.get(part, part)}.{suffix}"
    return f"{_TOP_NAMES.get(stem, stem)}.{suffix}"


def half_split(values: Array, head_dim: int) -> Array:
    """Undo the converter's reordering: pairs (2i, 2i+1) of each head become (i, i + half).

    Args:
        values: rows of any width and type.
        head_dim: rows of a head.
    """
    heads = values.reshape(-1, head_dim // 2, 2, *values.shape[1:])
    return heads.swapaxes(1, 2).reshape(values.shape)
