"""A model from a checkpoint folder: ``config.json`` and safetensors."""

import re
from pathlib import Path

from astrai_engine.loading.checkpoint import Tensors, read_all
from astrai_engine.loading.completeness import check_complete
from astrai_engine.loading.folder_tokenizer import read_json
from astrai_engine.models.config import ModelConfig
from astrai_engine.models.weights import ModelWeights

_DERIVED = re.compile(r".*\.rotary_emb\.inv_freq")
"""Buffers some checkpoints carry that the configuration determines."""


def read_config(folder: Path) -> ModelConfig:
    """The configuration of a checkpoint.

    Raises:
        ModelLoadError: it is not supported, or not complete.
    """
    return ModelConfig.from_hf(read_json(folder / "config.json"))


def fill_weights(
    folder: Path, tensors: Tensors, config: ModelConfig, weights: ModelWeights
) -> None:
    """Read every tensor of a checkpoint into its place, in the dtype of the place.

    Args:
        folder: the checkpoint, for messages.
        tensors: its tensors.
        config: its configuration.
        weights: allocated by that configuration.

    Raises:
        ModelLoadError: tensors are missing, unexpected or of another shape; all are named, with
            their files.
    """
    names, slots = dict.fromkeys(tensors), weights.slots
    problems = list(tensors.problems)
    promised = {problem.split(" ", 1)[0] for problem in problems}
    problems += [
        f"{name} in {tensors.place(name)} has shape {tensors.shape(name)} instead of "
        f"{tuple(slots[name].shape)}"
        for name in names
        if name in slots and tensors.shape(name) != tuple(slots[name].shape)
    ]
    problems += [
        f"{name} in {tensors.place(name)} is not part of this architecture"
        for name in sorted(names)
        if name not in slots and name not in weights.packed and not _is_spare(name, config)
    ]
    problems += [f"{n} is missing" for n in slots if n not in names and n not in promised]
    check_complete(folder, problems)
    read_all(tensors, slots, [name for name in names if name in slots])


def _is_spare(name: str, config: ModelConfig) -> bool:
    prefix = config.weight_prefix
    tied_head = config.tie_word_embeddings and name == f"{prefix}lm_head.weight"
    return tied_head or not name.startswith(prefix) or _DERIVED.fullmatch(name) is not None
