"""How large the K/V pool, the context and a step become on a given machine."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from astrai_engine.config import EngineConfig
from astrai_engine.errors import ConfigurationError
from astrai_engine.models import ModelConfig

_TOKENS_PER_SEQUENCE = 1024
_MEMORY_SHARE = 4
_STEP_TOKENS = {"cpu": 256, "cuda": 8192}
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Resolved sizes, all in tokens.

    Attributes:
        max_seq_len: context per request.
        n_tokens: slots in the pool, a whole number of pages.
        max_step_tokens: budget of a step.
    """

    max_seq_len: int
    n_tokens: int
    max_step_tokens: int


def choose_sizes(
    config: EngineConfig,
    model: ModelConfig,
    *,
    device: torch.device,
    kv_dtype: torch.dtype,
    free_bytes: int,
) -> Sizes:
    """Fit the pool to memory and the context to the pool.

    Args:
        config: what was asked for.
        model: whose K/V are stored.
        device: where they live.
        kv_dtype: their type.
        free_bytes: memory free on the device.

    Raises:
        ConfigurationError: the wishes contradict each other or the model.
    """
    max_seq_len = config.max_seq_len or model.default_seq_len
    if max_seq_len > model.max_seq_len:
        raise ConfigurationError(
            f"max_seq_len is {max_seq_len}, but the model's context ends at {model.max_seq_len}; "
            "choose a smaller one."
        )
    n_tokens = config.n_tokens
    if n_tokens is None:
        wanted = max(max_seq_len, config.max_batch_size * _TOKENS_PER_SEQUENCE)
        affordable = free_bytes // _MEMORY_SHARE // kv_bytes_per_token(model, kv_dtype)
        n_tokens = min(wanted, affordable)
    n_tokens -= n_tokens % config.page_size
    if n_tokens < config.page_size:
        raise ConfigurationError(
            f"The K/V pool has room for {n_tokens} tokens, less than one page of "
            f"{config.page_size}; free some memory, or set n_tokens or a smaller page_size."
        )
    if config.max_seq_len and config.max_seq_len > n_tokens:
        raise ConfigurationError(
            f"max_seq_len is {config.max_seq_len}, but the K/V pool holds {n_tokens} tokens; "
            "raise n_tokens or lower max_seq_len."
        )
    step_tokens = config.max_step_tokens or _STEP_TOKENS[device.type]
    return Sizes(
        max_seq_len=min(max_seq_len, n_tokens),
        n_tokens=n_tokens,
        max_step_tokens=max(step_tokens, config.max_batch_size),
    )


def kv_bytes_per_token(model: ModelConfig, kv_dtype: torch.dtype) -> int:
    """Bytes that one token's K and V take over all layers."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * kv_dtype.itemsize


def free_memory(device: torch.device) -> int:
    """Bytes that may be had on a device; what only caches files counts as free."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = _MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) << 10
    except (OSError, StopIteration):  # not Linux: take half of all memory for free
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
