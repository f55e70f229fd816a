"""What a model's makers want where a request names nothing."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astrai_engine.errors import InvalidRequestError
from astrai_engine.loading.folder_tokenizer import read_json
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.request import GenerationRequest

SAMPLING_PARAMETERS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""What is taken over from ``generation_config.json``; these are vLLM's too, but for the length."""

_GGUF_KEYS = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}

_logger = logging.getLogger(__name__)


def read_generation_config(folder: Path) -> dict[str, Any]:
    """A checkpoint's ``generation_config.json``; empty where there is none.

    Raises:
        ModelLoadError: it is not a JSON object.
    """
    return read_json(folder / "generation_config.json")


def gguf_generation_config(file: GGUFFile) -> dict[str, Any]:
    """The same from a GGUF file's metadata, in the names of ``generation_config.json``."""
    named = {name: file.get(f"general.sampling.{key}") for name, key in _GGUF_KEYS.items()}
    return {name: value for name, value in named.items() if value is not None}


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, float]:
    """The sampling parameters a model names, by their names in ``GenerationRequest``.

    Values that no request could have are left out, with a warning.

    Args:
        generation_config: as the model has it.
    """
    defaults: dict[str, float] = {}
    for name in SAMPLING_PARAMETERS:
        value = generation_config.get(name)
        if value is None:
            continue
        try:
            GenerationRequest(prompt="", **{name: value})
        except (InvalidRequestError, TypeError) as error:
            _logger.warning("The model's generation_config is ignored for %s: %s", name, error)
        else:
            defaults[name] = value
    return defaults
