"""The server's settings: the one place of this package that reads the environment."""

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from astrai_api.tools.formats import FORMATS
from astrai_engine.config import (
    Activations,
    Dtype,
    EngineConfig,
    GenerationConfig,
    KVDtype,
    Quantization,
    SpeculationMode,
)
from astrai_engine.errors import ConfigurationError

logger = logging.getLogger(__name__)

PREFIX = "ASTRAI_"

_SECRET = {"api_key"}
_READ_BY_KERNELS = {"backend", "cache_dir"}
"""Settings that astrai-kernels reads from the environment itself."""

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    return value


def _device(value: str) -> str:
    if not _DEVICE.fullmatch(value):
        raise PydanticCustomError("device", "Input should be auto, cpu, cuda or one like cuda:1")
    return value


def _file(value: str | None) -> str | None:
    if value is not None and not Path(value).expanduser().is_file():
        raise PydanticCustomError("file", "Input should be an existing file")
    return value


def _tool_parser(value: str | None) -> str | None:
    if value is not None and value not in FORMATS:
        raise PydanticCustomError("tool_parser", f"Input should be one of {', '.join(FORMATS)}")
    return value


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


CommaSeparated = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Count = Annotated[int, Field(ge=1)]
Bytes = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(BaseSettings):
    """Values come from keyword arguments, then ``ASTRAI_*`` variables, then these defaults.

    `docs/.site/environment.py` makes the reference from these descriptions.

    Attributes:
        model: checkpoint folder, ``.gguf`` file, or a model on the hub as ``org/name`` or
            ``org/name:file.gguf``; the embedded one if none is named.
        revision: branch, tag or commit of a model from the hub.
        chat_template: Jinja file of a chat template to use instead of the model's own.
        generation_config: how to sample where a request does not say: auto as the model's makers
            want it (``generation_config.json``), ``none`` as the protocols do.
        served_model_name: names that clients may use, separated by commas; ``astrai`` always
            works, ``*`` accepts any.
        device: where to compute: ``cpu``, ``cuda``, or one like ``cuda:1``; auto is the first GPU
            if there is one.
        tensor_parallel_size: processes that run the model together, each with a share of it: on
            as many GPUs, from ``device`` on, or on CPUs.
        dtype: number format of weights and activations: ``float32``, ``bfloat16``, ``float16``;
            auto is float32 on CPUs, bfloat16 on GPUs.
        quantization: of weights, on CPUs: ``int8`` and ``int4`` round any checkpoint, ``none``
            computes in ``dtype``; auto keeps a GGUF file's own precision where a native kernel
            reads it.
        activations: what quantised weights are multiplied with; ``int8`` is faster, less exact.
        num_threads: threads of the native CPU kernels; refused where those cannot serve.
        backend: attention backend: ``torch_native``, ``cuda``, ``cpu``. Checked here, read from
            the environment by astrai-kernels.
        cache_dir: where compiled kernels are kept, in ``kernels``, and pages of the prefix cache,
            in ``pages``; read from the environment by astrai-kernels.
        max_batch_size: requests running at once.
        max_seq_len: tokens in a context, prompt and output together.
        page_size: token slots in a page; 1 is allowed.
        n_tokens: token slots in the pool; the larger of one full context and 1,024 for each
            running request, at most a quarter of free memory, if nothing is said.
        max_step_tokens: token budget of a step, at least ``max_batch_size``.
        prefix_cache: reuse the pages of equal prefixes.
        host_cache_bytes: memory for cached pages that the pool has no more room for, from where
            they come back on a hit; 0 keeps none.
        disk_cache_bytes: disk space for them, in ``pages`` of ``cache_dir``; what the pool holds
            is added when the server stops, and found again by the next one.
        max_queue: requests that may wait; the next one gets 429.
        speculation: check guesses of the next tokens, taken from the text so far, in the same
            step: auto those that are likely enough to be worth their time, ``prompt-lookup`` all
            there are, ``off`` none; texts are the same.
        cuda_graphs: on a GPU, record decode steps once and replay them, where the CUDA kernels
            serve them.
        kv_dtype: number format of the K/V cache, the same names; auto is float16 beside quantised
            weights, else the model's.
        tool_parser: how the model writes tool calls: ``hermes``, ``llama3_json``, ``pythonic``,
            ``mistral``; the chat template tells if nothing is said.
        api_key: accepted keys, separated by commas, as ``Authorization: Bearer`` or
            ``x-api-key``; empty lets everybody in.
        cors_origins: origins whose pages may call the server, separated by commas; ``*`` is
            every one.
        max_body_bytes: largest request body; beyond it 413.
        shutdown_timeout: seconds that running requests get to finish when the server stops.
        request_timeout: seconds a request may take; no limit if nothing is said.
        traces: export OpenTelemetry traces, to where the standard ``OTEL_*`` variables say; needs
            the extra ``otel``.
        log_format: look of the log: ``text``, or ``json`` with each message as one object,
            uvicorn's too, with request and trace ids.
        page: serve the page at ``/``.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    model: str | None = None
    revision: str | None = None
    chat_template: Annotated[str | None, AfterValidator(_file)] = None
    generation_config: GenerationConfig = "auto"
    served_model_name: CommaSeparated = ()
    device: Annotated[str, AfterValidator(_device)] = "auto"
    tensor_parallel_size: Count = 1
    dtype: Dtype = "auto"
    quantization: Quantization = "auto"
    activations: Activations = "int16"
    num_threads: Count | None = None
    backend: Annotated[Literal["auto", "torch_native", "cuda", "cpu"], BeforeValidator(_lower)] = (
        "auto"
    )
    cache_dir: str | None = None
    max_batch_size: Count = 32
    max_seq_len: Count | None = None
    page_size: Count = 16
    n_tokens: Count | None = None
    max_step_tokens: Count | None = None
    prefix_cache: bool = True
    host_cache_bytes: Bytes = 0
    disk_cache_bytes: Bytes = 0
    max_queue: Count = 256
    speculation: SpeculationMode = "auto"
    cuda_graphs: bool = True
    kv_dtype: KVDtype = "auto"
    tool_parser: Annotated[str | None, AfterValidator(_tool_parser)] = None
    api_key: CommaSeparated = Field(default=(), repr=False)
    cors_origins: CommaSeparated = ()
    max_body_bytes: Count = 32 * 2**20
    shutdown_timeout: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    request_timeout: Seconds | None = None
    traces: bool = False
    log_format: Literal["text", "json"] = "text"
    page: bool = True

    def engine_config(self) -> EngineConfig:
        """The engine's part of the settings."""
        return EngineConfig(
            model=self.model,
            revision=self.revision,
            chat_template=self.chat_template,
            generation_config=self.generation_config,
            device=self.device,
            tensor_parallel_size=self.tensor_parallel_size,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            quantization=self.quantization,
            activations=self.activations,
            num_threads=self.num_threads,
            max_batch_size=self.max_batch_size,
            max_seq_len=self.max_seq_len,
            page_size=self.page_size,
            n_tokens=self.n_tokens,
            max_step_tokens=self.max_step_tokens,
            prefix_cache=self.prefix_cache,
            host_cache_bytes=self.host_cache_bytes,
            disk_cache_bytes=self.disk_cache_bytes,
            cache_dir=self.cache_dir,
            max_queue=self.max_queue,
            speculation=self.speculation,
            cuda_graphs=self.cuda_graphs,
        )


def load_settings(
    environ: Mapping[str, str] = os.environ, *, options: Mapping[str, Any] | None = None
) -> Settings:
    """Settings from the environment; warns of ``ASTRAI_*`` variables nobody reads.

    Args:
        environ: where unknown variables are looked for.
        options: given on the command line, by the name of the setting; they beat the environment.

    Raises:
        ConfigurationError: a value is wrong; the message names its variable or option.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            logger.warning("%s is not a setting of this version and is ignored.", name)
    options = options or {}
    try:
        settings = Settings(**options)
    except ValidationError as error:
        sentences = [_sentence(each, options) for each in error.errors()]
        raise ConfigurationError(" ".join(sentences)) from None
    for name in sorted(_READ_BY_KERNELS & options.keys()):
        os.environ[PREFIX + name.upper()] = str(getattr(settings, name))
    return settings


def quiet_threads() -> None:
    """Keep the idle threads of OpenMP from spinning; it reads this when torch loads."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def option_name(field: str) -> str:
    """The option of the command line for a setting: ``--max-queue`` for ``max_queue``."""
    return "--" + field.replace("_", "-")


def _sentence(error: Any, options: Mapping[str, Any]) -> str:
    field = str(error["loc"][0])
    name = option_name(field) if field in options else PREFIX + field.upper()
    given = "" if field in _SECRET else f", not {error['input']!r}"
    reason = error["msg"].removeprefix("Input ").removesuffix(".")
    return f"{name} {reason}{given}."
