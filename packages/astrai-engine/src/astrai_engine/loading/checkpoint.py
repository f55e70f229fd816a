"""The tensors of a checkpoint folder, in one safetensors file or several."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import torch

from astrai_engine.errors import ModelLoadError
from astrai_engine.loading.folder_tokenizer import read_json
from astrai_engine.loading.hub_files import INDEX
from astrai_engine.loading.shard import Filling, OnRead, Shard
from astrai_engine.models.share import Cut

_SINGLE = "model.safetensors"
_READERS = min(4, os.cpu_count() or 1)
"""Threads that read: enough to keep a disk busy; more than there are processors slow it down."""


class Tensors(Protocol):
    """Tensors by their Hugging Face names, each with its place."""

    @property
    def problems(self) -> list[str]:
        """What is wrong with the files themselves."""

    def __iter__(self) -> Iterator[str]:
        """The names."""

    def place(self, name: str) -> str:
        """The name of the file a tensor is in."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor, rows first."""

    def read(self, name: str) -> torch.Tensor:
        """A tensor on the CPU."""

    def fillings(self, name: str, slot: torch.Tensor) -> Iterator[Filling]:
        """What fills a contiguous tensor of the same shape, in parts for several threads."""


class StoredTensors(Tensors, Protocol):
    """Tensors of which a part can be read, without keeping the rest."""

    def read(self, name: str, cut: Cut | None = None) -> torch.Tensor:
        """A tensor, or a part of it, on the CPU."""

    def fillings(self, name: str, slot: torch.Tensor, cut: Cut | None = None) -> Iterator[Filling]:
        """What fills a contiguous tensor of the same shape, or of the part's."""


class Checkpoint:
    """The tensors of a folder.

    Args:
        folder: holds ``model.safetensors``, or an index and the shards that it names.
        on_read: told the bytes of each piece that has been read.

    Attributes:
        problems: what the index promises and the shards lack.

    Raises:
        ModelLoadError: there are no safetensors, or a file is damaged.
    """

    def __init__(self, folder: Path, on_read: OnRead | None = None) -> None:
        promised = _shards(folder)
        shards = {path: Shard(path, on_read) for path in promised}
        self.problems = [
            f"{name} is not in {path.name}"
            for path, names in promised.items()
            for name in sorted(names - shards[path].tensors.keys())
        ]
        self._owner = {
            name: shard
            for shard in shards.values()
            for name, _ in sorted(shard.tensors.items(), key=lambda item: item[1].start)
        }

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(shard.tensors[name].num_bytes for name, shard in self._owner.items())

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of the files."""
        return iter(self._owner)

    def place(self, name: str) -> str:
        """The name of the file a tensor is in."""
        return self._owner[name].path.name

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor, rows first."""
        return self._owner[name].tensors[name].shape

    def read(self, name: str, cut: Cut | None = None) -> torch.Tensor:
        """A tensor as it is stored, or a part of it, on the CPU."""
        return self._owner[name].read(name, cut)

    def fillings(self, name: str, slot: torch.Tensor, cut: Cut | None = None) -> Iterator[Filling]:
        """What fills a contiguous tensor of its shape, in its own dtype, on its own device."""
        return self._owner[name].fillings(name, slot, cut)


def read_all(tensors: Tensors, slots: Mapping[str, torch.Tensor], names: Iterable[str]) -> None:
    """Fill slots from several threads, in the order of the names.

    Raises:
        ModelLoadError: a file could not be read.
    """
    with ThreadPoolExecutor(_READERS, thread_name_prefix="astrai-read") as readers:
        fillings = (fill for name in names for fill in tensors.fillings(name, slots[name]))
        for done in readers.map(lambda fill: fill(), fillings):
            del done


def reader(tensors: Tensors) -> Callable[[str], torch.Tensor | None]:
    """Reads tensors by name, None where there is none."""
    names = frozenset(tensors)

    def read(name: str) -> torch.Tensor | None:
        return tensors.read(name) if name in names else None

    return read


def _shards(folder: Path) -> dict[Path, set[str]]:
    """Each file of the checkpoint with the tensors the index says it has."""
    if (folder / _SINGLE).is_file():
        return {folder / _SINGLE: set()}
    index = read_json(folder / INDEX).get("weight_map")
    if not isinstance(index, dict):
        raise ModelLoadError(
            f"{folder} has neither {_SINGLE} nor {INDEX}; only safetensors are read."
        )
    shards: dict[Path, set[str]] = {}
    for name, file in index.items():
        shards.setdefault(folder / file, set()).add(name)
    return shards
