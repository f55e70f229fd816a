"""A found model, loaded: weights, tokenizer, chat template and defaults."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from astrai_engine.chat_template import ChatTemplate
from astrai_engine.errors import UnsupportedArchitectureError
from astrai_engine.loading import folder_tokenizer, gguf, gguf_tokenizer, safetensors
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.loading.hub import download
from astrai_engine.loading.quantization import (
    BlockPacker,
    Precision,
    RoundingPacker,
    gguf_tensors,
)
from astrai_engine.loading.source import ModelSource
from astrai_engine.models import (
    DecoderModel,
    LlamaModel,
    ModelConfig,
    allocate,
    load_with_transformers,
)
from astrai_engine.models.config import token_ids
from astrai_engine.models.weights import Packer
from astrai_engine.tokenizer import Tokenizer

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GenerationDefaults:
    """What a model brings for requests that don't say otherwise.

    Attributes:
        eos_token_ids: tokens that end an answer.
    """

    eos_token_ids: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """Everything the engine needs of a model.

    Attributes:
        model: ready to run.
        config: its shapes.
        tokenizer: its vocabulary.
        chat_template: None if it has none.
        defaults: for requests.
        name: what clients call it.
        precision: of its weights; ``none`` where no projection could be quantised.
        path: the file or folder it was read from.
    """

    model: DecoderModel
    config: ModelConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    defaults: GenerationDefaults
    name: str
    precision: Precision
    path: Path


@dataclass(frozen=True, kw_only=True)
class WeightFormat:
    """In which form weights are kept.

    Attributes:
        device: where they go.
        dtype: of all that is not quantised, whatever the checkpoint holds.
        precision: ``none`` is dense; anything else needs native kernels, on the CPU.
        activation_bits: of what quantised weights are multiplied with, 8 or 16.
    """

    device: torch.device
    dtype: torch.dtype
    precision: Precision = "none"
    activation_bits: int = 16


def load_model(
    source: ModelSource,
    *,
    device: torch.device,
    dtype: torch.dtype,
    precision: Precision = "none",
    activation_bits: int = 16,
) -> LoadedModel:
    """Load a model.

    Args:
        source: from ``resolve_source``; a hub id is downloaded first.
        device: see `WeightFormat`, and so for the others.
        dtype: alike.
        precision: alike.
        activation_bits: alike.

    Raises:
        ModelNotFoundError: the hub doesn't have it, or can't be reached.
        ModelLoadError: it is not supported, or damaged.
    """
    form = WeightFormat(
        device=device, dtype=dtype, precision=precision, activation_bits=activation_bits
    )
    if source.kind == "gguf":
        return _from_gguf(source, form)
    folder = download(source.location) if source.kind == "hub" else Path(source.location)
    return _from_folder(source, folder, form)


def _from_gguf(source: ModelSource, form: WeightFormat) -> LoadedModel:
    file = GGUFFile(Path(source.location))
    config = gguf.read_config(file)
    tokenizer = gguf_tokenizer.read_tokenizer(file)
    template = file.get("tokenizer.chat_template")
    packer: Packer | None = None
    if form.precision == "file":
        packer = BlockPacker(file, config, form.activation_bits)
    elif form.precision != "none":
        packer = RoundingPacker(gguf_tensors(file, config), form.precision, form.activation_bits)
    weights = allocate(config, device=form.device, dtype=form.dtype, packer=packer)
    gguf.fill_weights(file, config, weights)
    return LoadedModel(
        model=LlamaModel(config, weights),
        config=config,
        tokenizer=tokenizer,
        chat_template=None
        if template is None
        else ChatTemplate(template, tokenizer.bos_token, tokenizer.eos_token),
        defaults=_defaults(config.eos_token_ids, tokenizer, config),
        name=source.name,
        precision=form.precision if weights.packed else "none",
        path=Path(source.location),
    )


def _from_folder(source: ModelSource, folder: Path, form: WeightFormat) -> LoadedModel:
    model, precision = _folder_model(folder, form)
    tokenizer = folder_tokenizer.read_tokenizer(folder)
    template = folder_tokenizer.read_chat_template(folder, tokenizer)
    generation = folder_tokenizer.read_json(folder / "generation_config.json")
    named = model.config.eos_token_ids | token_ids(generation.get("eos_token_id"))
    return LoadedModel(
        model=model,
        config=model.config,
        tokenizer=tokenizer,
        chat_template=template,
        defaults=_defaults(named, tokenizer, model.config),
        name=source.name,
        precision=precision,
        path=folder,
    )


def _folder_model(folder: Path, form: WeightFormat) -> tuple[DecoderModel, Precision]:
    """Our own model of a checkpoint or transformers', and the precision it is kept in."""
    is_rounded = form.precision in ("int8", "int4")
    try:
        config = safetensors.read_config(folder)
    except UnsupportedArchitectureError as reason:
        if is_rounded:
            raise UnsupportedArchitectureError(
                f"{reason} Others cannot be kept in {form.precision}: choose quantization none."
            ) from reason
        return (
            load_with_transformers(folder, device=form.device, dtype=form.dtype, reason=reason),
            "none",
        )
    packer: Packer | None = None
    if is_rounded:
        packer = RoundingPacker(safetensors.tensors(folder), form.precision, form.activation_bits)
    weights = allocate(config, device=form.device, dtype=form.dtype, packer=packer)
    safetensors.fill_weights(folder, config, weights)
    return LlamaModel(config, weights), form.precision if weights.packed else "none"


def _defaults(
    named: frozenset[int], tokenizer: Tokenizer, config: ModelConfig
) -> GenerationDefaults:
    """End tokens that the configuration and the tokenizer name, if the model can produce them."""
    own = tokenizer.eos_token and tokenizer.token_id(tokenizer.eos_token)
    everywhere = named | token_ids(own or None)
    inside = frozenset(i for i in everywhere if 0 <= i < config.vocab_size)
    for token_id in sorted(everywhere - inside):
        _logger.warning(
            "End-of-sequence id %d is outside the vocabulary of %d tokens and is ignored.",
            token_id,
            config.vocab_size,
        )
    return GenerationDefaults(eos_token_ids=inside)
