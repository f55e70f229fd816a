"""What rank 0 and a worker say to each other while they start; plain values, pickled once."""

from dataclasses import dataclass
from pathlib import Path

import torch

from astrai_engine.loading.loader import WeightFormat


@dataclass(frozen=True, kw_only=True)
class LoadOrder:
    """What a worker is to load.

    Attributes:
        rank: which it is.
        size: how many ranks there are.
        path: file or folder of the model.
        form: what its weights become, but for the group.
        num_threads: of the native CPU kernels; None is as in rank 0's environment.
        num_torch_threads: of torch's operations.
    """

    rank: int
    size: int
    path: Path
    form: WeightFormat
    num_threads: int | None
    num_torch_threads: int


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A worker's answer: its share is in memory.

    Attributes:
        free_bytes: memory that is left on its device.
    """

    free_bytes: int


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A worker's answer: it cannot load its share.

    Attributes:
        reason: a sentence.
    """

    reason: str


@dataclass(frozen=True, kw_only=True)
class ServeOrder:
    """What a worker needs to know of the engine around it.

    Attributes:
        max_seq_len: context per request in tokens.
        max_batch_size: requests running at once.
        n_tokens: token slots.
        page_size: slots in a page.
        kv_dtype: of the K/V cache.
    """

    max_seq_len: int
    max_batch_size: int
    n_tokens: int
    page_size: int
    kv_dtype: torch.dtype
