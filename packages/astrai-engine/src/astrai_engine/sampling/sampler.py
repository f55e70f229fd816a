"""Chooses the next token of every row of a batch, whatever mix of parameters the rows have.

What a row gets depends on its own logits and parameters alone, never on its neighbours. On a GPU
one kernel serves all rows. The paths in torch, fastest first: rows that want the likeliest token
share one argmax; rows with a top-k draw from a few candidates; the rest look at the whole
vocabulary without sorting it, except where a nucleus turns out wider than ``MAX_CANDIDATES``.
"""

from collections.abc import Callable
from collections.abc import Sequence as Rows
from math import isfinite
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from astrai_engine.request import GenerationRequest
from astrai_engine.sampling.device import choose_on_device, draws_on_device
from astrai_engine.sampling.draw import draw, uniforms
from astrai_engine.sampling.logprobs import RawDistribution, RowLogprobs
from astrai_engine.sampling.penalties import apply_penalties, changes_logits
from astrai_engine.sampling.strategies import MIN_TEMPERATURE, TopPStrategy
from astrai_engine.sequence import Sequence
from astrai_kernels.ops import largest, likeliest

MAX_CANDIDATES = 1024
"""Largest top-k that is served from candidates."""


class SampledToken(NamedTuple):
    """The outcome for one row: a token, or why there is none."""

    token_id: int
    logprobs: RowLogprobs | None = None
    error: str | None = None


class Sampler:
    """Samples rows of a batch.

    Args:
        eos_token_ids: tokens that may not be chosen before a request's ``min_tokens``.
    """

    def __init__(self, eos_token_ids: frozenset[int]) -> None:
        self._eos_token_ids = eos_token_ids
        self._plan = _Plan.of([], 0)

    def sample(
        self, logits: Tensor, sequences: Rows[Sequence], forbidden: Tensor | None = None
    ) -> list[SampledToken]:
        """Choose a token per row.

        Args:
            logits: ``[rows, vocab]`` float32, owned by the caller and changed in place.
            sequences: whose rows these are.
            forbidden: booleans ``[rows, vocab]``: the tokens that grammars do not let through;
                None if there are no grammars.

        Returns:
            One outcome per row. A row whose logits hold NaN, or nothing but minus infinity, has
            an error and does not affect the others.
        """
        if not sequences:
            return []
        plan = self._plan_for(sequences, logits.shape[-1])
        raw = RawDistribution(logits, plan.asked) if plan.asked else None
        for row in plan.changed:
            self._change_logits(logits, row, sequences[row])
        if forbidden is not None:
            logits.masked_fill_(forbidden.to(logits.device), -torch.inf)
        if draws_on_device(logits):
            best_values, token_ids = choose_on_device(logits, plan.sequences)
        else:
            best_values, token_ids = _choose(logits, plan)
        return [
            _outcome(row, token_ids[row], best_values[row], raw) for row in range(len(sequences))
        ]

    def wants_only_likeliest(self, sequences: Rows[Sequence]) -> bool:
        """Whether `sample` would take each row's likeliest token as it is, grammars apart."""
        if not sequences:
            return False
        plan = self._plan_for(sequences, self._plan.vocab)  # its size makes no greedy row another
        return plan.groups.keys() == {_greedy} and not plan.asked and not plan.changed

    @staticmethod
    def take(best_values: list[float], token_ids: list[int]) -> list[SampledToken]:
        """What `sample` gives for rows of which only the likeliest token is wanted.

        Args:
            best_values: each row's largest logit.
            token_ids: its token.
        """
        return [
            _outcome(row, token_id, best, None)
            for row, (token_id, best) in enumerate(zip(token_ids, best_values, strict=True))
        ]

    def _plan_for(self, sequences: Rows[Sequence], vocab: int) -> "_Plan":
        plan = self._plan
        if plan.sequences != sequences or plan.vocab != vocab:
            plan = self._plan = _Plan.of(sequences, vocab)
        return plan

    def _change_logits(self, logits: Tensor, row: int, sequence: Sequence) -> None:
        request = sequence.request
        if changes_logits(request):
            apply_penalties(logits[row], request, sequence.token_ids, sequence.num_prompt_tokens)
        if sequence.num_generated < request.min_tokens and request.grammar is None:
            banned = [*self._eos_token_ids, *request.stop_token_ids]
            ids = torch.tensor(banned, dtype=torch.long, device=logits.device)
            logits[row, ids] = -torch.inf


def is_greedy(request: GenerationRequest) -> bool:
    """Whether a request's parameters leave only the likeliest token."""
    return request.temperature < MIN_TEMPERATURE or request.top_k == 1 or request.top_p == 0.0


def _outcome(
    row: int, token_id: int, best_value: float, raw: RawDistribution | None
) -> SampledToken:
    if best_value != best_value:
        return SampledToken(-1, error="The model produced NaN for this request.")
    if best_value == -torch.inf:
        return SampledToken(-1, error="No token is possible: every logit is minus infinity.")
    return SampledToken(token_id, raw.of(row, token_id) if raw else None)


def _select(tensor: Tensor, rows: list[int]) -> Tensor:
    """The given rows, without a copy when they are all of them."""
    if len(rows) == tensor.shape[0]:
        return tensor
    return tensor.index_select(0, torch.tensor(rows, device=tensor.device))


class _Plan(NamedTuple):
    """What follows from the requests of a batch, and serves until the batch is another.

    Attributes:
        sequences: of the batch.
        vocab: elements of a row.
        asked: how many alternatives of which rows are to be told.
        changed: rows whose logits a request may change.
        groups: the rows of each path.
    """

    sequences: list[Sequence]
    vocab: int
    asked: dict[int, int]
    changed: list[int]
    groups: "dict[_Path, list[int]]"

    @classmethod
    def of(cls, sequences: Rows[Sequence], vocab: int) -> "_Plan":
        """Plan for a batch."""
        asked: dict[int, int] = {}
        changed: list[int] = []
        groups: dict[_Path, list[int]] = {}
        for row, sequence in enumerate(sequences):
            request = sequence.request
            if request.logprobs:
                asked[row] = request.top_logprobs
            if changes_logits(request) or request.min_tokens:
                changed.append(row)
            groups.setdefault(_path(request, vocab), []).append(row)
        return cls(list(sequences), vocab, asked, changed, groups)


def _choose(logits: Tensor, plan: _Plan) -> tuple[list[float], list[int]]:
    """Each row's largest logit and its token."""
    best_values = [0.0] * len(plan.sequences)
    token_ids = [0] * len(plan.sequences)
    for path, rows in plan.groups.items():
        chosen = [plan.sequences[row] for row in rows]
        values, ids = path(_select(logits, rows), chosen)
        for row, value, token_id in zip(rows, values, ids, strict=True):
            best_values[row], token_ids[row] = value, token_id
    return best_values, token_ids


_Path: TypeAlias = Callable[[Tensor, list[Sequence]], tuple[list[float], list[int]]]
"""Gives the largest logit and the chosen token of each row, for rows of one kind."""


def _path(request: GenerationRequest, vocab: int) -> _Path:
    if is_greedy(request):
        return _greedy
    if 0 < request.top_k <= min(MAX_CANDIDATES, vocab):
        return _from_candidates
    return _from_whole


def _greedy(logits: Tensor, sequences: list[Sequence]) -> tuple[list[float], list[int]]:  # noqa: ARG001
    return likeliest(logits)


def _from_candidates(logits: Tensor, sequences: list[Sequence]) -> tuple[list[float], list[int]]:
    """Rows with a small top-k: everything happens on ``[rows, max top_k]``, in float64."""
    top_k = [s.request.top_k for s in sequences]
    width = max(top_k)
    values, ids = largest(logits, width)
    scaled = values.double() / _temperatures(sequences, logits.device)
    if min(top_k) < width:
        columns = torch.arange(width, device=logits.device)
        scaled.masked_fill_(columns >= _column(top_k, logits.device), -torch.inf)
    best = values[:, 0]
    picked = _pick(scaled.softmax(-1), ids, sequences)
    return best.tolist(), torch.where(best.isfinite(), picked, ids[:, 0]).tolist()


def _from_whole(logits: Tensor, sequences: list[Sequence]) -> tuple[list[float], list[int]]:
    """Rows without a small top-k: with a top-p they need an order, without one they don't."""
    best, likeliest_ids = likeliest(logits)
    token_ids = torch.tensor(likeliest_ids, device=logits.device)
    ordered: list[int] = []
    free: list[int] = []
    for row, sequence in enumerate(sequences):
        request = sequence.request
        has_order = request.top_p < 1.0 or 0 < request.top_k < logits.shape[-1]
        if isfinite(best[row]):
            (ordered if has_order else free).append(row)
    for rows, draw_rows in ((ordered, _from_nucleus), (free, _from_all)):
        if rows:
            index = torch.tensor(rows, device=logits.device)
            token_ids[index] = draw_rows(_select(logits, rows), [sequences[row] for row in rows])
    return best, token_ids.tolist()


def _from_nucleus(logits: Tensor, sequences: list[Sequence]) -> Tensor:
    """Rows with a top-p, or a top-k too large for candidates, over the whole vocabulary."""
    vocab = logits.shape[-1]
    scaled = logits.double() / _temperatures(sequences, logits.device)
    width = min(MAX_CANDIDATES, vocab)
    top_p = _column([s.request.top_p for s in sequences], logits.device)
    top_k = [s.request.top_k for s in sequences]
    values, ids = largest(scaled, width)
    probs = (values - scaled.logsumexp(-1, keepdim=True)).exp()
    reached = probs.sum(-1, keepdim=True) >= top_p
    narrow = [ok and k <= 0 for ok, k in zip(reached.squeeze(-1).tolist(), top_k, strict=True)]
    token_ids = torch.empty(len(sequences), dtype=torch.long, device=logits.device)
    for wanted in (True, False):
        rows = [row for row, is_narrow in enumerate(narrow) if is_narrow is wanted]
        if rows:
            chosen = [sequences[row] for row in rows]
            token_ids[torch.tensor(rows, device=logits.device)] = (
                _pick(_select(probs, rows), _select(ids, rows), chosen)
                if wanted
                else _from_sorted(_select(scaled, rows), chosen)
            )
    return token_ids


def _from_sorted(scaled: Tensor, sequences: list[Sequence]) -> Tensor:
    """The rare rows that need the whole vocabulary in order."""
    values, ids = scaled.sort(dim=-1, descending=True, stable=True)
    vocab = scaled.shape[-1]
    top_k = _column(
        [s.request.top_k if s.request.top_k > 0 else vocab for s in sequences], scaled.device
    )
    beyond = torch.arange(vocab, device=scaled.device) >= top_k
    return _pick(values.masked_fill(beyond, -torch.inf).softmax(-1), ids, sequences)


def _from_all(logits: Tensor, sequences: list[Sequence]) -> Tensor:
    """Rows without top-k and top-p: no order is needed, only a min-p threshold at most."""
    scaled = logits.double() / _temperatures(sequences, logits.device)
    probs = scaled.softmax(-1)
    min_p = _column([s.request.min_p for s in sequences], logits.device)
    kept = probs >= min_p * probs.amax(-1, keepdim=True)
    return draw(probs * kept, _uniforms(sequences, logits.device))


def _pick(probs: Tensor, ids: Tensor, sequences: list[Sequence]) -> Tensor:
    """Top-p, min-p and the draw on candidates in descending order."""
    if any(s.request.top_p < 1.0 or s.request.min_p > 0.0 for s in sequences):
        top_p = _column([s.request.top_p for s in sequences], probs.device)
        min_p = _column([s.request.min_p for s in sequences], probs.device)
        probs = probs * (TopPStrategy.kept(probs, top_p) & (probs >= min_p * probs[:, :1]))
    column = draw(probs, _uniforms(sequences, probs.device))
    return ids.gather(-1, column.unsqueeze(-1)).squeeze(-1)


def _column(values: list[float] | list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device).unsqueeze(-1)


def _temperatures(sequences: list[Sequence], device: torch.device) -> Tensor:
    return _column([s.request.temperature for s in sequences], device)


def _uniforms(sequences: list[Sequence], device: torch.device) -> Tensor:
    numbers = uniforms([(s.seed, s.index, s.num_generated) for s in sequences])
    return torch.from_numpy(numbers).to(device)
