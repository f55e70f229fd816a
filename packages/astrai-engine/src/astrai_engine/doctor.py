"""What an engine would be on this machine, found out without loading a model."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from astrai_engine.config import EngineConfig
from astrai_engine.errors import ConfigurationError
from astrai_engine.loading import ModelSource, gguf_config, resolve_source, safetensors
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.loading.model_store import list_models
from astrai_engine.loading.quantization import Precision
from astrai_engine.models import ModelConfig, allocate
from astrai_engine.models.share import Share
from astrai_engine.parallel.ranks import ProcessRanks
from astrai_engine.placement import (
    choose_device,
    choose_dtype,
    choose_kv_dtype,
    choose_precision,
    rank_devices,
)
from astrai_engine.sizing import choose_sizes, free_memory, kv_bytes_per_token
from astrai_kernels.doctor import report as kernels_report

_ROUNDED_BYTES = {"int8": 1.07, "int4": 0.57}
"""About what a rounded weight takes, its scales included."""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """What a model and its K/V pool would take; bytes, or tokens where named so.

    Of several ranks that run the model together, it is the first one's.

    Attributes:
        weights: about what the weights take.
        kv_per_token: K and V of one token over all layers.
        pool: of the whole pool.
        n_tokens: token slots in the pool.
        max_seq_len: tokens of a context.
        max_step_tokens: token budget of a step.
        dtype: of the K/V cache.
    """

    weights: int
    kv_per_token: int
    pool: int
    n_tokens: int
    max_seq_len: int
    max_step_tokens: int
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What an engine with some configuration would be.

    Attributes:
        device: where it would compute, with the hardware's own name for a GPU.
        free_bytes: memory free there.
        dtype: of weights and activations.
        precision: of weights: ``none``, ``int8``, ``int4``, or ``file`` for a GGUF file's own.
        kernels: lines of label and text: the backend, why not the others, the native kernels.
        source: where the model would come from; None where there is none.
        plan: of memory; None where it can't be told.
        problems: what would keep the engine from starting, or the plan from being made.
    """

    device: str
    free_bytes: int
    dtype: str
    precision: str
    kernels: tuple[tuple[str, str], ...]
    source: ModelSource | None
    plan: MemoryPlan | None
    problems: tuple[str, ...]


def examine(config: EngineConfig) -> Examination:
    """Find out what an engine would be.

    A model from the hub is not fetched: without it in the cache, there is no plan.

    Args:
        config: as for the engine.

    Raises:
        ConfigurationError: a setting is wrong on this machine.
    """
    device = choose_device(config.device)
    rank_devices(device, config.tensor_parallel_size)
    dtype = choose_dtype(config.dtype, device)
    precision = choose_precision(config.quantization, device, dtype)
    free_bytes = free_memory(device)
    source: ModelSource | None = None
    plan: MemoryPlan | None = None
    problems: list[str] = []
    try:
        source = resolve_source(config.model, revision=config.revision)
        path = _files(source)
        if path is not None:
            plan = _plan(config, path, _Form(device, dtype, precision, free_bytes))
    except ConfigurationError as error:
        problems.append(str(error))
    return Examination(
        device=_described(device),
        free_bytes=free_bytes,
        dtype=_name(dtype),
        precision=precision,
        kernels=_kernels(device),
        source=source,
        plan=plan,
        problems=tuple(problems),
    )


@dataclass(frozen=True, slots=True)
class _Form:
    device: torch.device
    dtype: torch.dtype
    precision: Precision
    free_bytes: int


def _files(source: ModelSource) -> Path | None:
    """The file or folder of a model, if it is on this machine."""
    if source.kind != "hub":
        return Path(source.location)
    for stored in list_models():
        if stored.name == source.location and source.revision in (None, stored.revision):
            return stored.path
    return None


def _plan(config: EngineConfig, path: Path, form: _Form) -> MemoryPlan:
    if path.is_file():
        model = gguf_config.read_config(GGUFFile(path))
    else:
        model = safetensors.read_config(path)
        form = replace(form, precision="none" if form.precision == "file" else form.precision)
    size = config.tensor_parallel_size
    share = Share(model, ProcessRanks(0, size)) if size > 1 else None
    weights = _weight_bytes(model, path, form, share)
    if share is not None:
        model = share.config
    kv_dtype = choose_kv_dtype(config.kv_dtype, form.device, form.dtype, form.precision)
    sizes = choose_sizes(
        config,
        model,
        device=form.device,
        kv_dtype=kv_dtype,
        free_bytes=max(form.free_bytes - weights, 0) // (size if form.device.type == "cpu" else 1),
    )
    per_token = kv_bytes_per_token(model, kv_dtype)
    return MemoryPlan(
        weights=weights,
        kv_per_token=per_token,
        pool=per_token * sizes.n_tokens,
        n_tokens=sizes.n_tokens,
        max_seq_len=sizes.max_seq_len,
        max_step_tokens=sizes.max_step_tokens,
        dtype=_name(kv_dtype),
    )


def _weight_bytes(model: ModelConfig, path: Path, form: _Form, share: Share | None) -> int:
    if form.precision == "file":
        return path.stat().st_size // (1 if share is None else share.group.size)
    config = model if share is None else share.config
    weights = allocate(config, device=torch.device("meta"), dtype=form.dtype, share=share)
    count = sum(tensor.numel() for tensor in weights.slots.values())
    return int(count * _ROUNDED_BYTES.get(form.precision, form.dtype.itemsize))


def _kernels(device: torch.device) -> tuple[tuple[str, str], ...]:
    lines = (line.split(maxsplit=1) for line in kernels_report(device).splitlines())
    return tuple((label, text) for label, text in lines)


def _described(device: torch.device) -> str:
    if device.type == "cpu":
        return "cpu"
    return f"{device} ({torch.cuda.get_device_name(device)})"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
