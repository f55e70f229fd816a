"""A found model, loaded: weights, tokenizer, chat template and defaults."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from astrai_engine.chat_template import ChatTemplate
from astrai_engine.errors import UnsupportedArchitectureError
from astrai_engine.loading import folder_tokenizer, gguf, gguf_tokenizer, safetensors
from astrai_engine.loading.checkpoint import Checkpoint, Tensors, reader
from astrai_engine.loading.dense_view import dense_view
from astrai_engine.loading.folder_tokenizer import read_json
from astrai_engine.loading.generation_config import (
    gguf_generation_config,
    read_generation_config,
    sampling_defaults,
)
from astrai_engine.loading.gguf_config import read_config
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.loading.hub import download
from astrai_engine.loading.hub_files import HubName
from astrai_engine.loading.quantization import BlockPacker, Precision, RoundingPacker
from astrai_engine.loading.reading_bar import ReadingBar
from astrai_engine.loading.share_view import ShareView
from astrai_engine.loading.source import ModelSource
from astrai_engine.loading.templates import (
    compile_templates,
    folder_templates,
    gguf_templates,
    given_templates,
)
from astrai_engine.models import (
    DecoderModel,
    LlamaModel,
    ModelConfig,
    allocate,
    load_with_transformers,
)
from astrai_engine.models.config import token_ids
from astrai_engine.models.parallel import RankGroup
from astrai_engine.models.share import Share
from astrai_engine.models.weights import Packer
from astrai_engine.tokenizer import Tokenizer

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GenerationDefaults:
    """What a model brings for requests that don't say otherwise.

    Attributes:
        eos_token_ids: tokens that end an answer.
        sampling: sampling parameters, by their names in ``GenerationRequest``.
    """

    eos_token_ids: frozenset[int]
    sampling: Mapping[str, float] = field(default_factory=dict)


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
        group: the processes that each have a share of them; None is one that has all.
    """

    device: torch.device
    dtype: torch.dtype
    precision: Precision = "none"
    activation_bits: int = 16
    group: RankGroup | None = None

    def share(self, config: ModelConfig) -> Share | None:
        """The part of a model that is kept; None is all.

        Raises:
            ConfigurationError: the model cannot be shared out so.
        """
        return None if self.group is None else Share(config, self.group)


def fetch(source: ModelSource) -> ModelSource:
    """The same model on this machine; from the hub, it is downloaded first.

    Raises:
        ModelNotFoundError: the hub doesn't have it, or can't be reached.
    """
    if source.kind != "hub":
        return source
    path = download(HubName.parse(source.location), revision=source.revision)
    return ModelSource("folder" if path.is_dir() else "gguf", str(path), source.name)


def load_model(
    source: ModelSource,
    *,
    device: torch.device,
    dtype: torch.dtype,
    precision: Precision = "none",
    activation_bits: int = 16,
    chat_template: str | None = None,
    group: RankGroup | None = None,
) -> LoadedModel:
    """Load a model.

    Args:
        source: from ``resolve_source``; a hub id is downloaded first.
        device: see `WeightFormat`, and so for the others.
        dtype: alike.
        precision: alike.
        activation_bits: alike.
        chat_template: Jinja file of a template to use instead of the model's own.
        group: see `WeightFormat`.

    Raises:
        ModelNotFoundError: the hub doesn't have it, or can't be reached.
        ModelLoadError: it is not supported, or damaged.
        ConfigurationError: the file of the template can't be read, or the model can't be shared
            out so.
    """
    given = given_templates(Path(chat_template)) if chat_template else None
    form = WeightFormat(
        device=device,
        dtype=dtype,
        precision=precision,
        activation_bits=activation_bits,
        group=group,
    )
    path = Path(fetch(source).location)
    with ReadingBar() as bar:
        opened = (_open_folder if path.is_dir() else _open_gguf)(path, form, bar)
    templates = opened.templates if given is None else given
    return LoadedModel(
        model=opened.model,
        config=opened.model.config,
        tokenizer=opened.tokenizer,
        chat_template=compile_templates(templates, opened.tokenizer),
        defaults=_defaults(opened),
        name=source.name,
        precision=opened.precision,
        path=path,
    )


def load_part(path: Path, form: WeightFormat) -> DecoderModel:
    """Load a share of a model's weights alone: what a rank other than the first needs.

    Args:
        path: the file or folder.
        form: what its weights become, with a group.

    Raises:
        ModelLoadError: the model is not supported, or damaged.
        ConfigurationError: it can't be shared out so.
    """
    with ReadingBar(is_shown=False) as bar:
        if path.is_dir():
            return _folder_model(path, form, bar)[0]
        file = GGUFFile(path)
        return _gguf_model(file, read_config(file), form)[0]


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """What a folder or a file holds, in our terms."""

    model: DecoderModel
    precision: Precision
    tokenizer: Tokenizer
    templates: Mapping[str, str]
    generation_config: Mapping[str, Any]


def _open_gguf(path: Path, form: WeightFormat, bar: ReadingBar) -> _Opened:
    file = GGUFFile(path, bar.add)
    bar.expect(file.num_bytes)
    config = read_config(file)
    tokenizer = gguf_tokenizer.read_tokenizer(file)
    model, precision = _gguf_model(file, config, form)
    return _Opened(
        model=model,
        precision=precision,
        tokenizer=tokenizer,
        templates=gguf_templates(file),
        generation_config=gguf_generation_config(file),
    )


def _gguf_model(
    file: GGUFFile, config: ModelConfig, form: WeightFormat
) -> tuple[LlamaModel, Precision]:
    """The model of a file, and the precision it is kept in."""
    share = form.share(config)
    tensors = gguf.GGUFTensors(file, config, share)
    packer: Packer | None = None
    if form.precision == "file":
        packer = BlockPacker(tensors, form.activation_bits)
    elif form.precision != "none":
        packer = RoundingPacker(tensors.read, form.precision, form.activation_bits)
    config = config if share is None else share.config
    weights = allocate(config, device=form.device, dtype=form.dtype, packer=packer, share=share)
    gguf.fill_weights(tensors, weights)
    return LlamaModel(config, weights), form.precision if weights.packed else "none"


def _open_folder(folder: Path, form: WeightFormat, bar: ReadingBar) -> _Opened:
    model, precision = _folder_model(folder, form, bar)
    return _Opened(
        model=model,
        precision=precision,
        tokenizer=folder_tokenizer.read_tokenizer(folder),
        templates=folder_templates(folder),
        generation_config=read_generation_config(folder),
    )


def _folder_model(
    folder: Path, form: WeightFormat, bar: ReadingBar
) -> tuple[DecoderModel, Precision]:
    """Our own model of a checkpoint or transformers', and the precision it is kept in."""
    is_rounded = form.precision in ("int8", "int4")
    try:
        config = safetensors.read_config(folder)
    except UnsupportedArchitectureError as reason:
        if is_rounded:
            raise UnsupportedArchitectureError(
                f"{reason} Others cannot be kept in {form.precision}: choose quantization none."
            ) from reason
        if form.group is not None:
            raise UnsupportedArchitectureError(
                f"{reason} Others cannot be shared out: choose tensor_parallel_size 1."
            ) from reason
        return (
            load_with_transformers(folder, device=form.device, dtype=form.dtype, reason=reason),
            "none",
        )
    checkpoint = Checkpoint(folder, bar.add)
    bar.expect(checkpoint.num_bytes)
    whole = dense_view(checkpoint, read_json(folder / "config.json"))
    share = form.share(config)
    tensors: Tensors = whole if share is None else ShareView(whole, share)
    packer: Packer | None = None
    if is_rounded:
        packer = RoundingPacker(reader(tensors), form.precision, form.activation_bits)
    config = config if share is None else share.config
    weights = allocate(config, device=form.device, dtype=form.dtype, packer=packer, share=share)
    safetensors.fill_weights(folder, tensors, config, weights)
    return LlamaModel(config, weights), form.precision if weights.packed else "none"


def _defaults(opened: _Opened) -> GenerationDefaults:
    """Sampling parameters, and the end tokens that any file names, if the model can write them."""
    own = opened.tokenizer.eos_token and opened.tokenizer.token_id(opened.tokenizer.eos_token)
    config, generation_config = opened.model.config, opened.generation_config
    named = config.eos_token_ids | token_ids(generation_config.get("eos_token_id"))
    everywhere = named | token_ids(own or None)
    inside = frozenset(i for i in everywhere if 0 <= i < config.vocab_size)
    for token_id in sorted(everywhere - inside):
        _logger.warning(
            "End-of-sequence id %d is outside the vocabulary of %d tokens and is ignored.",
            token_id,
            config.vocab_size,
        )
    return GenerationDefaults(eos_token_ids=inside, sampling=sampling_defaults(generation_config))
