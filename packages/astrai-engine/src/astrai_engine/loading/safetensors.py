"""A model from a checkpoint folder: ``config.json`` and memory-mapped safetensors."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from astrai_engine.errors import ModelLoadError
from astrai_engine.loading.completeness import check_complete
from astrai_engine.loading.folder_tokenizer import read_json
from astrai_engine.models.config import ModelConfig
from astrai_engine.models.weights import ModelWeights

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_DERIVED = re.compile(r".*\.rotary_emb\.inv_freq")
"""Buffers some checkpoints carry that the configuration determines."""


def read_config(folder: Path) -> ModelConfig:
    """The configuration of a checkpoint.

    Raises:
        ModelLoadError: it is not supported, or not complete.
    """
    return ModelConfig.from_hf(read_json(folder / "config.json"))


def fill_weights(folder: Path, config: ModelConfig, weights: ModelWeights) -> None:
    """Copy every tensor of a checkpoint into its place, in the dtype of the place.

    Args:
        folder: the checkpoint.
        config: its configuration.
        weights: allocated by that configuration.

    Raises:
        ModelLoadError: tensors are missing, unexpected or of another shape; all are named, with
            their files.
    """
    filled: set[str] = set()
    problems: list[str] = []
    for path, promised in _shards(folder).items():
        with _open(path) as shard:
            present = set(shard.keys())
            problems += [f"{name} is not in {path.name}" for name in sorted(promised - present)]
            for name in sorted(present & weights.slots.keys()):
                problems += _copy(shard.get_tensor(name), weights.slots[name], name, path)
            problems += [
                f"{name} in {path.name} is not part of this architecture"
                for name in sorted(present - weights.slots.keys())
                if name not in weights.packed and not _is_spare(name, config)
            ]
        filled |= present | promised
    problems += [f"{name} is missing" for name in weights.slots if name not in filled]
    check_complete(folder, problems)


def tensors(folder: Path) -> Callable[[str], torch.Tensor | None]:
    """Reads a checkpoint's tensors by name, None where there is none.

    Raises:
        ModelLoadError: the folder has no readable safetensors.
    """
    shards = [_open(path) for path in _shards(folder)]
    owner = {name: shard for shard in shards for name in shard.keys()}  # noqa: SIM118

    def read(name: str) -> torch.Tensor | None:
        return owner[name].get_tensor(name) if name in owner else None

    return read


def _copy(tensor: torch.Tensor, slot: torch.Tensor, name: str, path: Path) -> list[str]:
    """Fill a slot; gives what is wrong with the tensor, if anything is."""
    if tensor.shape == slot.shape:
        slot.copy_(tensor)
        return []
    found, wanted = tuple(tensor.shape), tuple(slot.shape)
    return [f"{name} in {path.name} has shape {found} instead of {wanted}"]


def _shards(folder: Path) -> dict[Path, set[str]]:
    """Each file of the checkpoint with the tensors the index says it has."""
    index = read_json(folder / _INDEX).get("weight_map")
    if index is None:
        if not (folder / _SINGLE).is_file():
            raise ModelLoadError(
                f"{folder} has neither {_SINGLE} nor {_INDEX}; only safetensors are read."
            )
        return {folder / _SINGLE: set()}
    shards: dict[Path, set[str]] = {}
    for name, file in index.items():
        shards.setdefault(folder / file, set()).add(name)
    return shards


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{path} can't be read ({error}); download it again.") from error


def _is_spare(name: str, config: ModelConfig) -> bool:
    prefix = config.weight_prefix
    tied_head = config.tie_word_embeddings and name == f"{prefix}lm_head.weight"
    return tied_head or not name.startswith(prefix) or _DERIVED.fullmatch(name) is not None
