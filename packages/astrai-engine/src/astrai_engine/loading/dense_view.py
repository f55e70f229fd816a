"""Checkpoints that others have quantised, read as if they were dense.

What such a checkpoint says of activations and of the K/V cache is lost: everything is computed in
the model's dtype. Weights have exactly the values that the quantised ones stand for.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from astrai_engine.errors import ModelLoadError
from astrai_engine.loading.checkpoint import StoredTensors
from astrai_engine.loading.packed_weights import FORMATS, StoredWeight, WeightFormats
from astrai_engine.loading.shard import Filling
from astrai_engine.models.share import Cut

_logger = logging.getLogger(__name__)


def dense_view(tensors: StoredTensors, config: Mapping[str, Any]) -> StoredTensors:
    """The tensors of a checkpoint, all dense.

    Args:
        tensors: as they are stored.
        config: the checkpoint's ``config.json``.

    Returns:
        The same tensors, where none is quantised.

    Raises:
        ModelLoadError: they are quantised in a way that is not known.
    """
    text = config.get("text_config") or {}
    settings = config.get("quantization_config") or text.get("quantization_config")
    if not settings:
        return tensors
    method = settings.get("quant_method", "compressed-tensors")
    if method not in FORMATS:
        raise ModelLoadError(
            f"The checkpoint is quantised with {method}, which is not supported; supported are "
            f"{', '.join(FORMATS)}. Use the original checkpoint, and quantization int8 or int4."
        )
    _logger.warning(
        "The checkpoint is quantised (%s); its weights are read to dense ones of the same values, "
        "and what it says of activations and of the K/V cache is not used.",
        method,
    )
    return DenseView(tensors, FORMATS[method](settings))


class DenseView:
    """Quantised projections under the names of the dense ones that they stand for.

    Args:
        tensors: as they are stored.
        formats: how each kind of them is read; the first that fits a projection is used.
    """

    def __init__(self, tensors: StoredTensors, formats: WeightFormats) -> None:
        self._tensors = tensors
        names = frozenset(tensors)
        self._formats: dict[str, StoredWeight] = {}
        hidden: set[str] = set()
        for name in names:
            stem, _, suffix = name.rpartition(".")
            for weight_format in formats:
                if suffix == weight_format.marker:
                    self._formats[f"{stem}.weight"] = weight_format
                    hidden |= {f"{stem}.{part}" for part in weight_format.parts}
        self._plain = [name for name in tensors if name not in hidden]

    @property
    def problems(self) -> list[str]:
        """What is wrong with the files themselves."""
        return list(self._tensors.problems)

    def __iter__(self) -> Iterator[str]:
        """The names of dense tensors."""
        yield from self._plain
        yield from self._formats

    def place(self, name: str) -> str:
        """The name of the file a tensor is in."""
        if name in self._formats:
            return self._tensors.place(f"{name.removesuffix('weight')}{self._formats[name].marker}")
        return self._tensors.place(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a dense tensor, rows first."""
        if name in self._formats:
            return self._formats[name].shape(self._part(name))
        return self._tensors.shape(name)

    def read(self, name: str, cut: Cut | None = None) -> torch.Tensor:
        """A dense tensor, or a part of it, on the CPU."""
        if name not in self._formats:
            return self._tensors.read(name, cut)
        dense = self._formats[name].decode(self._part(name))
        return dense if cut is None else cut.of(dense)

    def fillings(self, name: str, slot: torch.Tensor, cut: Cut | None = None) -> Iterator[Filling]:
        """What fills a contiguous tensor of its shape, or the part's, for several threads."""
        if name not in self._formats:
            return self._tensors.fillings(name, slot, cut)
        return iter([functools.partial(self._decode_into, name, slot, cut)])

    def _decode_into(self, name: str, slot: torch.Tensor, cut: Cut | None) -> None:
        slot.copy_(self.read(name, cut))

    def _part(self, name: str) -> Callable[[str], torch.Tensor | None]:
        """Reads the parts of a quantised projection by their suffix, None where one is absent."""
        stem = name.removesuffix("weight")
        names = frozenset(self._tensors)
        return lambda part: self._tensors.read(stem + part) if stem + part in names else None
