"""Drawing on the device: one launch for all rows, and only token ids come to the host.

Every row is drawn as `astrai_engine.sampling.sampler` would in torch, which stays the reference,
with the same number from the same seed.
"""

import logging
from functools import cache
from math import inf, nan

from torch import Tensor

from astrai_engine.sequence import Sequence
from astrai_kernels.ops import SampleRow, pack_rows, sample_rows, sampling_unavailable_reason
from astrai_kernels.ops.sample import IS_EMPTY, IS_NAN

logger = logging.getLogger(__name__)

_BEST_OF_FAILED = {IS_NAN: nan, IS_EMPTY: -inf}


def draws_on_device(logits: Tensor) -> bool:
    """Whether a kernel can draw from these logits; if it ought to and cannot, the log says why."""
    if not logits.is_cuda:
        return False
    reason = sampling_unavailable_reason(logits)
    if reason is not None:
        _tell_once(reason)
    return reason is None


def choose_on_device(logits: Tensor, sequences: list[Sequence]) -> tuple[list[float], list[int]]:
    """Choose a token per row.

    Args:
        logits: ``[rows, vocab]`` float32.
        sequences: whose rows these are.

    Returns:
        For each row NaN or minus infinity where that is its largest logit, and its token.
    """
    rows = pack_rows([_row(sequence) for sequence in sequences])
    token_ids = sample_rows(logits, rows.to(logits.device, non_blocking=True)).tolist()
    return [_BEST_OF_FAILED.get(token_id, 0.0) for token_id in token_ids], token_ids


def _row(sequence: Sequence) -> SampleRow:
    request = sequence.request
    return SampleRow(
        temperature=request.temperature,
        top_p=request.top_p,
        min_p=request.min_p,
        seed=sequence.seed,
        choice=sequence.index,
        position=sequence.num_generated,
        top_k=request.top_k,
    )


@cache
def _tell_once(reason: str) -> None:
    logger.warning("Tokens are drawn by torch: %s", reason)
