"""How an engine is set up. It reads no environment: whoever embeds the engine passes values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from astrai_engine.errors import ConfigurationError

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KVDtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["auto", "none", "int8", "int4"]
Activations = Literal["int16", "int8"]
GenerationConfig = Literal["auto", "none"]
SpeculationMode = Literal["auto", "off", "prompt-lookup"]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of one engine; ``None`` and ``"auto"`` are resolved while it starts.

    Attributes:
        model: hub id, checkpoint folder or ``.gguf`` file; None is the embedded default.
        revision: branch, tag or commit of a model from the hub; None is its main branch.
        chat_template: Jinja file of a chat template to use instead of the model's own.
        generation_config: whether what a request leaves open is as the model's makers want it;
            see `EngineInfo.sampling_defaults`.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        tensor_parallel_size: processes that run the model together, each with a share of its
            heads and dimensions: on as many GPUs, from ``device`` on, or on one machine's CPUs.
        dtype: of weights and activations; auto is what the device runs fast.
        kv_dtype: of the K/V cache; auto is float16 beside quantised weights, else the model's.
        quantization: of weights, on the CPU: ``int8`` and ``int4`` round any checkpoint, ``none``
            computes in ``dtype``, and auto keeps a GGUF file's own precision where a native
            kernel reads it.
        activations: what quantised weights are multiplied with; ``int8`` is faster, less exact.
        num_threads: of the native CPU kernels; None is ``ASTRAI_NUM_THREADS`` or, without it, the
            number of physical cores. A number is refused where those kernels cannot serve.
        max_batch_size: requests running at once.
        max_seq_len: context per request in tokens; None is the model's own, fitted to memory.
        page_size: tokens in a page of the K/V pool.
        n_tokens: token slots in the pool; None is the larger of one full context and
            ``max_batch_size`` x 1,024, at most a quarter of free memory.
        max_step_tokens: token budget of one step; None chooses it.
        prefix_cache: reuse the pages of equal prefixes.
        host_cache_bytes: memory for pages that the pool has no more room for; 0 keeps none.
        disk_cache_bytes: disk space for them, also from one process to the next; 0 keeps none.
        cache_dir: the folder whose ``pages`` hold them on disk; None is ``ASTRAI_CACHE_DIR`` or,
            without it, the user's cache folder.
        max_queue: waiting requests before new ones are refused.
        speculation: whether to check guesses of the next tokens, taken from the text so far, in
            the same step as the token before them. Texts stay what they are. auto checks those
            that are likely enough to be worth their time, ``prompt-lookup`` all there are.
        cuda_graphs: on a GPU, record decode steps once and replay them, where the CUDA kernels
            serve them.

    Raises:
        ConfigurationError: a value is out of range; the message names it.
    """

    model: str | None = None
    revision: str | None = None
    chat_template: str | None = None
    generation_config: GenerationConfig = "auto"
    device: str = "auto"
    tensor_parallel_size: int = 1
    dtype: Dtype = "auto"
    kv_dtype: KVDtype = "auto"
    quantization: Quantization = "auto"
    activations: Activations = "int16"
    num_threads: int | None = None
    max_batch_size: int = 32
    max_seq_len: int | None = None
    page_size: int = 16
    n_tokens: int | None = None
    max_step_tokens: int | None = None
    prefix_cache: bool = True
    host_cache_bytes: int = 0
    disk_cache_bytes: int = 0
    cache_dir: str | None = None
    max_queue: int = 256
    speculation: SpeculationMode = "auto"
    cuda_graphs: bool = True

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "page_size", "max_queue", "tensor_parallel_size"):
            _at_least_one(name, getattr(self, name))
        for name in ("max_seq_len", "n_tokens", "max_step_tokens", "num_threads"):
            if getattr(self, name) is not None:
                _at_least_one(name, getattr(self, name))
        for name in ("host_cache_bytes", "disk_cache_bytes"):
            _tier(name, getattr(self, name), self)


@dataclass(frozen=True, kw_only=True)
class EngineInfo:
    """What a running engine is: the outcome of its configuration.

    Attributes:
        model: its name.
        device: where it runs; the first of several.
        tensor_parallel_size: processes that run it together.
        dtype: of weights and activations.
        kv_dtype: of the K/V cache.
        quantization: of the weights: ``none``, ``int8``, ``int4``, or ``file`` where it is the
            GGUF file's own.
        backend: the attention backend.
        max_seq_len: context per request in tokens.
        vocab_size: token ids are below it.
        n_tokens: token slots in the pool.
        page_size: tokens in a page.
        max_batch_size: requests running at once.
        max_step_tokens: token budget of a step.
        speculation: whether guesses of the next tokens are checked: ``auto``, ``off`` or
            ``prompt-lookup``.
        chat_template: source of the template that chats with tools use; None without one.
        sampling_defaults: what the model's ``generation_config.json`` names, by the names of
            ``GenerationRequest``: for callers whose own callers leave them open. Empty with
            ``generation_config`` set to ``none``.
    """

    model: str
    device: str
    tensor_parallel_size: int
    dtype: str
    kv_dtype: str
    quantization: str
    backend: str
    max_seq_len: int
    vocab_size: int
    n_tokens: int
    page_size: int
    max_batch_size: int
    max_step_tokens: int
    speculation: SpeculationMode
    chat_template: str | None = None
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ConfigurationError(f"{name} must be at least 1, not {value}.")


def _tier(name: str, value: int, config: EngineConfig) -> None:
    if value < 0:
        raise ConfigurationError(f"{name} must be at least 0, not {value}.")
    if value and not config.prefix_cache:
        raise ConfigurationError(f"{name} needs the prefix cache: turn it on, or set {name} to 0.")
    if value and config.tensor_parallel_size > 1:
        raise ConfigurationError(
            f"{name} needs tensor_parallel_size 1: pages that are shared out among processes are "
            f"not kept elsewhere. Set either to its default."
        )
