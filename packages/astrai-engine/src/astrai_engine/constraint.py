"""Grammars compiled against a vocabulary: which tokens may come next, enforced while sampling."""

import json
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par
from torch import Tensor

from astrai_engine.errors import InvalidRequestError
from astrai_engine.grammar import Grammar
from astrai_engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_LIMITS = LLParserLimits(
    initial_lexer_fuel=2_000_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""Bounds on what one grammar may cost, about 50 ms to compile and 15 ms a token at most."""

_JSON_LAYOUT: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""JSON on one line: where white space is free, a small model may write it without end."""

_MAX_KEPT = 64


class Constraint:
    """How far the text of one choice has come in its grammar.

    Args:
        matcher: at the beginning of the grammar; owned by the constraint.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher

    @property
    def is_complete(self) -> bool:
        """Whether the text is whole and nothing can follow."""
        return self.matcher.is_stopped()

    def copy(self) -> "Constraint":
        """Another one at the same place."""
        return Constraint(self.matcher.deep_copy())

    def consume(self, token_id: int) -> None:
        """Note that a token was chosen."""
        self.matcher.consume_token(token_id)


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
        self._kept: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = Lock()

    def compile(self, grammar: Grammar) -> Constraint:
        """A constraint at the beginning of a grammar.

        Raises:
            InvalidRequestError: the grammar is not valid, can't be enforced, or costs too much.
        """
        with self._lock:
            matcher = self._kept.pop(grammar, None) or self._build(grammar)
            self._kept[grammar] = matcher
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
            return Constraint(matcher.deep_copy())

    def _build(self, grammar: Grammar) -> LLMatcher:
        if self._vocabulary is None:  # half a second, so only once somebody needs it
            self._vocabulary = LLTokenizer(
                self._source.to_json(), n_vocab=self._vocab_size, eos_token=self._eos_token_ids
            )
        matcher = LLMatcher(self._vocabulary, _internal_form(grammar), limits=_LIMITS)
        if matcher.is_error():
            raise InvalidRequestError(_explain(grammar, matcher.get_error()), param=grammar.kind)
        return matcher


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
        """Begin to compute which tokens may come next; None when no row is constrained.

        Args:
            constraints: one for each row.

        Returns:
            Booleans ``[rows, vocab]``, True where a token may come.
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
        return torch.from_numpy(flags[:, : self._vocab_size].view(np.bool_))


def _internal_form(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_schema":
            return str(LLMatcher.grammar_from_json_schema(grammar.text, overrides=_JSON_LAYOUT))
        case "regex":
            return str(LLMatcher.grammar_from_regex(grammar.text))
        case "choice":
            texts = " | ".join(json.dumps(text) for text in json.loads(grammar.text))
            return str(LLMatcher.grammar_from_lark(f"start: {texts}"))
        case "lark":
            return str(LLMatcher.grammar_from_lark(grammar.text))


def _explain(grammar: Grammar, error: str) -> str:
    """The library's message, with the path of a schema's keyword that it can't enforce."""
    unimplemented = re.search(r"Unimplemented keys: \[(.*?)\]", error)
    if grammar.kind == "json_schema" and unimplemented:
        keys = re.findall(r'"(.*?)"', unimplemented[1])
        paths = [path for path in _paths(json.loads(grammar.text)) if path[-1] in keys]
        if paths:
            where = ", ".join("#/" + "/".join(path) for path in paths)
            return f"The json_schema can't be enforced: {where} is not supported; remove it."
    return f"The {grammar.kind} can't be enforced: {error.strip()}"


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
