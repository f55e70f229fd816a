"""How a step checks guessed tokens.

The guesses of a sequence run behind its last token, and every one of these positions gets a token
drawn for it as if all guesses before it were right. Where they are, that is the very token a step
of its own would have drawn, as a draw depends on seed, choice and position alone: with guesses or
without, a text is the same to the last token, not only as likely.
"""

from collections.abc import Sequence as Batch
from dataclasses import replace
from itertools import accumulate

import torch

from astrai_engine.sampling.sampler import SampledToken
from astrai_engine.scheduler import ScheduledSequence
from astrai_kvcache import KVCache


def confirmed(draft: Batch[int], sampled: Batch[SampledToken]) -> list[SampledToken]:
    """The tokens that come: up to and including the first that was guessed wrong.

    Args:
        draft: guesses of all but the last of the tokens.
        sampled: tokens of consecutive positions, each drawn as if the guesses before it were right.
    """
    num_right = 0
    for guess, token in zip(draft, sampled, strict=False):
        if token.token_id != guess:
            break
        num_right += 1
    return list(sampled[: num_right + 1])


def decode_rows(cache: KVCache, batch: Batch[ScheduledSequence]) -> KVCache:
    """Make each guess a decode row of its own, over the pages of the sequence it belongs to.

    It is then attended by the operations that a step of its own would run, bit for bit, where a
    row of several tokens would be computed as a prompt is.

    Args:
        cache: the step as it was bound, one row a sequence.
        batch: whose rows these are.
    """
    owners: list[int] = []
    q_lens: list[int] = []
    seq_lens: list[int] = []
    for row, item in enumerate(batch):
        end = item.sequence.num_computed + item.num_tokens
        num_rows = 1 + len(item.draft)
        owners += [row] * num_rows
        q_lens += [1] * num_rows if item.draft else [item.num_tokens]
        seq_lens += range(end, end + num_rows)
    device = cache.seq_lens.device
    return replace(
        cache,
        req_pool_indices=cache.req_pool_indices[torch.tensor(owners, device=device)],
        seq_lens=torch.tensor(seq_lens, device=device),
        kv_indptr=_running_sums(seq_lens, device),
        qo_indptr=_running_sums(q_lens, device),
    )


def _running_sums(counts: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device)
