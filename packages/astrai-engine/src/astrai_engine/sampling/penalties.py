"""Changes to the logits of particular tokens: bias, penalties and tokens not allowed yet.

The rows of a batch rarely all ask for these, so they are applied row by row, and a row that asks
for none costs nothing.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from astrai_engine.request import GenerationRequest


def changes_logits(request: GenerationRequest) -> bool:
    """Whether a request asks for a bias or a penalty."""
    return bool(
        request.logit_bias
        or request.frequency_penalty
        or request.presence_penalty
        or request.repetition_penalty != 1.0
    )


def apply_penalties(
    logits: Tensor,
    request: GenerationRequest,
    token_ids: Sequence[int],
    num_prompt_tokens: int,
) -> None:
    """Apply bias, then repetition, frequency and presence penalties to one row, in place.

    Args:
        logits: ``[vocab]``, a row the caller owns.
        request: holds the parameters.
        token_ids: prompt and output so far.
        num_prompt_tokens: how many of them are the prompt.
    """
    if request.logit_bias:
        ids = torch.tensor(list(request.logit_bias), device=logits.device)
        bias = torch.tensor(
            list(request.logit_bias.values()), dtype=logits.dtype, device=logits.device
        )
        logits[ids] += bias
    if request.repetition_penalty != 1.0:
        repetition_penalty(logits, token_ids, request.repetition_penalty)
    if request.frequency_penalty or request.presence_penalty:
        generated = token_ids[num_prompt_tokens:]
        count_penalties(
            logits,
            last_tokens(generated, request.rep_window),
            frequency=request.frequency_penalty,
            presence=request.presence_penalty,
        )


def last_tokens(token_ids: Sequence[int], window: int | None) -> Sequence[int]:
    """The last ``window`` tokens; all of them for None."""
    if window is None:
        return token_ids
    return token_ids[max(len(token_ids) - window, 0) :]


def repetition_penalty(logits: Tensor, token_ids: Sequence[int], penalty: float) -> None:
    """Divide positive and multiply negative logits of the tokens seen, once each, in place.

    Source: Keskar et al., CTRL.
    """
    ids = torch.tensor(sorted(set(token_ids)), dtype=torch.long, device=logits.device)
    seen = logits[ids]
    logits[ids] = torch.where(seen > 0, seen / penalty, seen * penalty)


def count_penalties(
    logits: Tensor, token_ids: Sequence[int], *, frequency: float, presence: float
) -> None:
    """Take ``frequency`` x count and ``presence`` from the tokens generated, in place."""
    if not token_ids:
        return
    counts = Counter(token_ids)
    ids = torch.tensor(list(counts), dtype=torch.long, device=logits.device)
    times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
    logits[ids] -= frequency * times + presence
