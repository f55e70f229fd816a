"""One choice while the engine works on it: its sequence, its text and where its events go."""

from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic

from astrai_engine.delivery import EventSink
from astrai_engine.errors import GenerationError
from astrai_engine.events import (
    FinishReason,
    PromptLogprobs,
    Timing,
    TokenDelta,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from astrai_engine.sampling.logprobs import RowLogprobs
from astrai_engine.sampling.sampler import SampledToken
from astrai_engine.sequence import Sequence
from astrai_engine.text_stream import TextStream
from astrai_engine.visible_tokens import TokenTexts


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a choice is complete, and the stop string that matched, if one did."""

    reason: FinishReason
    stop: str | None = None


class Generation:
    """Turns the tokens of a sequence into events and decides when it is complete.

    Args:
        sequence: the tokens.
        sink: where its events go.
        tokenizer: gives the text of tokens.
        eos_token_ids: tokens at which the model ends.
    """

    def __init__(
        self,
        sequence: Sequence,
        sink: EventSink,
        *,
        tokenizer: TokenTexts,
        eos_token_ids: frozenset[int],
    ) -> None:
        request = sequence.request
        self.sequence = sequence
        self.sink = sink
        self._tokenizer = tokenizer
        self._text = TextStream(tokenizer, tuple(request.stop))
        ends = frozenset(request.stop_token_ids)
        ignores_eos = request.ignore_eos and request.grammar is None
        self._end_ids = ends if ignores_eos else ends | eos_token_ids
        self._unsent_text = ""
        self._unsent_ids: list[int] = []
        self._prompt_reported = not sequence.scores_prompt
        self._end_entry: tuple[TokenLogprob, ...] = ()

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        sequence = self.sequence
        return Usage(sequence.num_prompt_tokens, sequence.num_cached or 0, sequence.num_generated)

    @property
    def timing(self) -> Timing:
        """When it went through its phases, if it ends now."""
        sequence = self.sequence
        return Timing(
            sequence.submitted_at, sequence.started_at, sequence.first_token_at, monotonic()
        )

    def extend(self, tokens: Iterable[SampledToken]) -> Ending | GenerationError | None:
        """Add the tokens of a step; gives what ends the choice, and drops those behind it."""
        for token in tokens:
            if token.error is not None:
                return GenerationError(token.error)
            if self.sequence.max_tokens == 0:
                return Ending(FinishReason.LENGTH)
            ending = self.push(token.token_id, token.logprobs)
            if ending is not None:
                return ending
        return None

    def push(self, token_id: int, logprobs: RowLogprobs | None) -> Ending | None:
        """Add a generated token; gives the ending if it completes the choice."""
        sequence = self.sequence
        sequence.token_ids.append(token_id)
        self._unsent_ids.append(token_id)
        num_generated = sequence.num_generated
        has_grammar = sequence.constraint is not None
        may_stop = has_grammar or num_generated >= sequence.request.min_tokens
        entry = self._entry(token_id, logprobs) if logprobs else None
        if may_stop and token_id in self._end_ids:
            return self._end(self._reason, entry)
        self._unsent_text += self._text.push(token_id, entry, may_stop=may_stop)
        if self._text.matched is not None:
            return Ending(FinishReason.STOP, self._text.matched)
        if has_grammar:
            sequence.constraint.consume(token_id)
            if sequence.constraint.is_complete:
                return self._end(self._reason)
        if num_generated >= sequence.max_tokens:
            return self._end(FinishReason.LENGTH)
        return None

    def take_prompt_logprobs(self) -> PromptLogprobs | None:
        """The prompt's log-probabilities once they are complete; None otherwise, and after."""
        if self._prompt_reported:
            return None
        scores = self.sequence.prompt_logprobs
        if len(scores) < self.sequence.num_prompt_tokens - 1:
            return None
        self._prompt_reported = True
        tokens = self.sequence.token_ids[1 : self.sequence.num_prompt_tokens]
        entries = [self._entry(token, score) for token, score in zip(tokens, scores, strict=True)]
        return PromptLogprobs((None, *entries), self.usage)

    def take_delta(self) -> TokenDelta | None:
        """The text and tokens not sent yet; None while there is nothing to show."""
        if not self._unsent_text:
            return None
        delta = TokenDelta(
            self._unsent_text,
            tuple(self._unsent_ids),
            self.usage,
            self.sequence.index,
            self._text.take_logprobs(),
        )
        self._unsent_text = ""
        self._unsent_ids.clear()
        return delta

    def take_end_logprobs(self) -> tuple[TokenLogprob, ...]:
        """Entries that no delta has taken along, in order, once the choice is complete."""
        return self._text.take_logprobs() + self._end_entry

    @property
    def _reason(self) -> FinishReason:
        """Why a text ends that is whole: it may have been brought to that by its limit."""
        constraint = self.sequence.constraint
        is_cut = constraint is not None and constraint.is_cut
        return FinishReason.LENGTH if is_cut else FinishReason.STOP

    def _end(self, reason: FinishReason, entry: TokenLogprob | None = None) -> Ending:
        self._unsent_text += self._text.finish()
        if self._text.matched is not None:
            return Ending(FinishReason.STOP, self._text.matched)
        if entry is not None:
            self._end_entry = (entry,)
        return Ending(reason)

    def _entry(self, token_id: int, logprobs: RowLogprobs) -> TokenLogprob:
        return TokenLogprob(
            token_id=token_id,
            token=self._tokenizer.token_text(token_id),
            token_bytes=self._tokenizer.token_bytes(token_id),
            logprob=logprobs.chosen,
            top=tuple(
                TopLogprob(
                    token_id=other,
                    token=self._tokenizer.token_text(other),
                    token_bytes=self._tokenizer.token_bytes(other),
                    logprob=value,
                )
                for other, value in logprobs.top
            ),
        )
