"""One choice of a request while it runs: its tokens and how far they are computed."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from astrai_engine.prompt_lookup import PromptLookup
from astrai_engine.request import GenerationRequest

AGEING_SECONDS = 30.0
"""How much later than it did a request of priority 1 counts as having arrived; of 2, twice that.

So a request of lower priority gives way to newer ones, but only for so long: nothing starves.
"""


@dataclass(frozen=True, slots=True)
class Unshared:
    """A salt that only one sequence of one engine has; a disk tier keeps nothing under it.

    Attributes:
        task_id: of the sequence.
    """

    task_id: str


@dataclass(eq=False, slots=True)
class Sequence:
    """The unit of scheduling: the prompt and the output of one choice.

    Attributes:
        task_id: the name of this sequence in the cache; unique in the engine.
        request_id: the engine's id of the request it belongs to.
        request: what the caller asked for.
        index: which of the request's ``n`` choices.
        token_ids: the prompt, then the generated tokens.
        num_prompt_tokens: how many of them are the prompt.
        max_tokens: most tokens to generate, already clamped to the context.
        arrival: position in the order of arrival.
        submitted_at: ``time.monotonic()`` of the arrival.
        started_at: the same of the first admission; None before it.
        first_token_at: the same of the first generated token; None before it.
        seed: of the draw.
        position_offset: what the model wants added to its positions.
        backend: the attention backend the caller chose, opaque to scheduling; None is automatic.
        constraint: how far its text has come in the request's grammar, opaque to scheduling; None
            without one.
        lookup: guesses how it goes on; None until that is wanted.
        leader: the first choice of the same request, whose prompt pages this one shares as soon
            as they are computed; None for the first choice itself.
        num_computed: tokens whose K/V are in the cache (reused ones included).
        num_cached: prompt tokens reused from the prefix cache at the first admission; None
            before it.
        num_recorded_pages: pages already offered to the prefix cache.
        prompt_logprobs: what the model thought of each prompt token after the first, as far as
            computed; empty unless asked for.
    """

    task_id: str
    request_id: str
    request: GenerationRequest
    index: int
    token_ids: list[int]
    num_prompt_tokens: int
    max_tokens: int
    arrival: int
    seed: int
    submitted_at: float = 0.0
    started_at: float | None = None
    first_token_at: float | None = None
    position_offset: int = 0
    backend: Any = None
    constraint: Any = None
    lookup: PromptLookup | None = None
    leader: "Sequence | None" = None
    num_computed: int = 0
    num_cached: int | None = None
    num_recorded_pages: int = 0
    prompt_logprobs: list[Any] = field(default_factory=list)
    order: tuple[float, int] = field(init=False)

    def __post_init__(self) -> None:
        self.order = (self.submitted_at + self.request.priority * AGEING_SECONDS, self.arrival)

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's own log-probabilities are wanted, so every token is computed."""
        return self.request.prompt_logprobs is not None and self.index == 0

    @property
    def cache_salt(self) -> Hashable:
        """Only sequences with equal salts share pages; one that scores its prompt shares none."""
        if self.scores_prompt:
            return Unshared(self.task_id)
        salt = self.request.cache_salt
        return (salt, self.position_offset) if self.position_offset else salt

    @property
    def is_admitted(self) -> bool:
        """Whether it has ever run."""
        return self.num_cached is not None

    @property
    def is_prompt_computed(self) -> bool:
        """Whether the K/V of the whole prompt have existed."""
        return self.num_generated > 0 or self.num_computed >= self.num_prompt_tokens

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed(self) -> int:
        """Tokens that still need a forward pass; 1 while decoding."""
        return len(self.token_ids) - self.num_computed

    def after(self, token_ids: Iterable[int]) -> "Sequence":
        """The sequence as it would be if these tokens came next; a copy."""
        return replace(self, token_ids=[*self.token_ids, *token_ids])
