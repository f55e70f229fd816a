"""Grammars compiled against a vocabulary: which tokens may come next, enforced while sampling."""

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par
from torch import Tensor

from astrai_engine.closing import Closers, Tokens
from astrai_engine.errors import InvalidRequestError
from astrai_engine.grammar import Grammar
from astrai_engine.grammar_text import definition, schemas_in
from astrai_engine.tokenizer import Tokenizer

_LIMITS = LLParserLimits(
    initial_lexer_fuel=2_000_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""Bounds on what one grammar may cost, about 50 ms to compile and 15 ms a token at most."""

_MAX_KEPT = 64
_NONE_VISIBLE: Mapping[str, int] = MappingProxyType({})


class Constraint:
    """How far the text of one choice has come in its grammar.

    Args:
        matcher: at the beginning of the grammar; owned by the constraint.
        closers: bring the text to its end in time; None lets it be cut.
        reserve: tokens they need for that.
        budget: most tokens of the text; None is no limit.

    Attributes:
        is_cut: the text was brought to its end before the model had come to it.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        closers: Closers | None = None,
        reserve: int = 0,
        *,
        budget: int | None = None,
    ) -> None:
        self.matcher = matcher
        self.is_cut = False
        self._closers = closers
        self._reserve = reserve
        self._left = budget

    @property
    def is_complete(self) -> bool:
        """Whether the text is whole and nothing can follow."""
        return self.matcher.is_stopped()

    def copy(self, budget: int | None = None) -> "Constraint":
        """Another one, at the beginning if this one is, with a number of tokens to keep to.

        Where the budget has no room for what the end takes, nothing is done about it.
        """
        has_room = budget is None or budget >= 2 * self._reserve
        closers = self._closers if has_room else None
        return Constraint(self.matcher.deep_copy(), closers, self._reserve, budget=budget)

    def consume(self, token_id: int) -> None:
        """Note that a token was chosen."""
        self.matcher.consume_token(token_id)
        if self._left is not None:
            self._left -= 1

    def keep_to_budget(self, allowed: Tokens) -> None:
        """Near the end of the budget, keep the tokens that bring the text to its end.

        A little before, a text that is whole gets no more added to it.

        Args:
            allowed: what the grammar allows; changed in place.
        """
        if self._closers is None or self._left is None or self._left > 2 * self._reserve:
            return
        if self._left > self._reserve:
            self._closers.end(allowed)
        else:
            self.is_cut |= self._closers.close(allowed)


class GrammarCompiler:
    """Compiles grammars for one vocabulary, and keeps the last ones.

    Safe to call from several threads.

    Args:
        tokenizer: the vocabulary.
        eos_token_ids: tokens that may come only when the text is whole.
        vocab_size: columns of the model's logits.
    """

    def __init__(
        self, tokenizer: Tokenizer, eos_token_ids: frozenset[int], vocab_size: int
    ) -> None:
        self._source = tokenizer
        self._eos_token_ids = sorted(eos_token_ids)
        self._vocab_size = vocab_size
        self._vocabulary: LLTokenizer | None = None
        self._closers: Closers | None = None
        self._kept: OrderedDict[tuple[str, bool], Constraint] = OrderedDict()
        self._lock = Lock()

    def compile(
        self, grammar: Grammar, *, prompt_end: str = "", visible: Mapping[str, int] = _NONE_VISIBLE
    ) -> Constraint:
        """A constraint at the beginning of a grammar; every choice needs one of its own.

        Args:
            grammar: what the text has to look like.
            prompt_end: the last characters of the prompt, which tell whether reasoning is open.
            visible: ids of the special tokens that the text shows, by their text.

        Raises:
            InvalidRequestError: the grammar is not valid, can't be enforced, or costs too much.
        """

        def token_id(text: str) -> int | None:
            found = self._source.added_token_id(text)
            return visible.get(text) if found in self._source.special_token_ids else found

        text = definition(grammar, prompt_end, token_id)
        key = (text, grammar.closes)
        with self._lock:
            constraint = self._kept.pop(key, None) or self._build(grammar, text)
            self._kept[key] = constraint
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
            return constraint.copy()

    def _build(self, grammar: Grammar, text: str) -> Constraint:
        if self._vocabulary is None:  # half a second, so only once somebody needs it
            self._vocabulary = LLTokenizer(
                self._source.to_json(), n_vocab=self._vocab_size, eos_token=self._eos_token_ids
            )
        matcher = LLMatcher(self._vocabulary, text, limits=_LIMITS)
        if matcher.is_error():
            raise InvalidRequestError(_explain(grammar, matcher.get_error()), param=grammar.source)
        if not grammar.closes or grammar.after is not None:
            return Constraint(matcher)
        if self._closers is None:
            self._closers = Closers(self._source.token_bytes, self._eos_token_ids, self._vocab_size)
        reserve = self._closers.tokens_needed(matcher)
        return Constraint(matcher, self._closers, reserve) if reserve else Constraint(matcher)


class TokenMasks:
    """Computes the masks of a step's constrained rows on another thread, beside the forward pass.

    Args:
        vocab_size: columns of the logits.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._masking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="astrai-mask")
        self._executor: LLExecutor | None = None

    def start(self, constraints: Sequence[Constraint | None]) -> "Future[Tensor] | None":
        """Begin to compute which tokens may not come next; None when no row is constrained.

        Args:
            constraints: one for each row.

        Returns:
            Booleans ``[rows, vocab]``, True where a token may not come.
        """
        if not any(constraints):
            return None
        return self._masking.submit(self._compute, list(constraints))

    def close(self) -> None:
        """End the thread."""
        self._masking.shutdown()

    def _compute(self, constraints: list[Constraint | None]) -> Tensor:
        if self._executor is None:
            self._executor = LLExecutor(num_threads=1)
        bits = allocate_token_bitmask(len(constraints), self._vocab_size)
        rows = [(c.matcher, row) for row, c in enumerate(constraints) if c is not None]
        fill_next_token_bitmask_par(self._executor, rows, bits)
        flags = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")
        allowed = flags[:, : self._vocab_size].view(np.bool_)
        for row, constraint in enumerate(constraints):
            if constraint is not None:
                constraint.keep_to_budget(allowed[row])
        return torch.from_numpy(np.logical_not(allowed, out=allowed))


def _explain(grammar: Grammar, error: str) -> str:
    """The library's message, with the path of a schema's keyword that it can't enforce."""
    unimplemented = re.search(r"Unimplemented keys: \[(.*?)\]", error)
    if unimplemented:
        keys = re.findall(r'"(.*?)"', unimplemented[1])
        schemas = schemas_in(grammar)
        paths = [path for schema in schemas for path in _paths(schema) if path[-1] in keys]
        if paths:
            where = ", ".join(dict.fromkeys("#/" + "/".join(path) for path in paths))
            return f"The {grammar.source} can't be enforced: {where} is not supported; remove it."
    return f"The {grammar.source} can't be enforced: {error.strip()}"


def _paths(schema: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every key in a schema."""
    children: list[tuple[str, Any]] = []
    if isinstance(schema, Mapping):
        children = list(schema.items())
    elif isinstance(schema, list):
        children = [(str(place), item) for place, item in enumerate(schema)]
    for key, child in children:
        yield (*above, key)
        yield from _paths(child, (*above, key))
