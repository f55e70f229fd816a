"""The largest logits of each row, found without looking closely at the whole vocabulary."""

import torch
from torch import Tensor

_BLOCK = 128


def largest(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest logits of each row, as ``topk`` gives them but several times faster.

    The ``k`` blocks of columns with the largest maxima hold all of the ``k`` largest values, so
    one pass over maxima leaves little to sort.

    Args:
        logits: ``[rows, vocab]``, contiguous. NaN counts as the largest value.
        k: how many.

    Returns:
        Values and column numbers, ``[rows, k]`` each, largest first. Of equal values the first
        column comes first when ``k`` is 1.
    """
    rows, vocab = logits.shape
    num_blocks = vocab // _BLOCK
    if vocab % _BLOCK or 4 * k > num_blocks:
        return _top(logits, k)
    blocks = logits.view(rows, num_blocks, _BLOCK)
    chosen = _top(blocks.amax(-1), k)[1]
    candidates = blocks.gather(1, chosen.unsqueeze(-1).expand(-1, -1, _BLOCK)).flatten(1)
    values, places = _top(candidates, k)
    block = chosen.gather(1, places.div(_BLOCK, rounding_mode="floor"))
    return values, block * _BLOCK + places % _BLOCK


def _top(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    if k == 1:
        best = values.max(-1, keepdim=True)
        return best.values, best.indices
    top = torch.topk(values, k, dim=-1)
    return top.values, top.indices
