"""Where a prompt stops with respect to reasoning, and what a grammar then allows."""

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from astrai_engine.constraint import GrammarCompiler
from astrai_engine.grammar import Grammar
from astrai_engine.reasoning_tags import ReasoningTags
from astrai_engine.tokenizer import Tokenizer

TAGS = ReasoningTags("<think>", "</think>")
OPEN, CLOSED, NEITHER = "<|a|><think>\n", "<think>\n\n</think>\n\n", "<think>?<|a|>"


@pytest.mark.parametrize(
    ("prompt_end", "is_open", "is_closed"),
    [(OPEN, True, False), (CLOSED, False, True), (NEITHER, False, False), ("", False, False)],
)
def test_the_last_tag_counts_when_only_space_follows(prompt_end, is_open, is_closed):
    assert TAGS.is_open(prompt_end) is is_open
    assert TAGS.is_closed(prompt_end) is is_closed


@pytest.fixture(scope="module", params=[(), ("<think>", "</think>")], ids=["text", "tokens"])
def tokenizer(request):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    backend.add_tokens([AddedToken(tag, special=False) for tag in request.param])
    return Tokenizer(backend, eos_token="<|end|>")


NUMBER = {"type": "integer", "minimum": 0}
GRAMMARS = [
    Grammar.json_schema(NUMBER),
    Grammar.regex("[0-9]+"),
    Grammar.choice(["12", "none"]),
    Grammar.lark("start: NUMBER\nNUMBER: /[0-9]+/"),
]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind)
@pytest.mark.parametrize(
    ("prompt_end", "text", "is_allowed"),
    [
        (OPEN, "Well, 5 </ or so.\n</think>\n\n12", True),
        (OPEN, "</think>12", True),
        (OPEN, "12", False),
        (CLOSED, "12", True),
        (CLOSED, "<think>", False),
        (NEITHER, "12", True),
        (NEITHER, "<think>\nWell.\n</think>\n12", True),
        (NEITHER, "Well.", False),
        (NEITHER, "<think>Well.</think>\n\n\n12", False),
    ],
)
def test_reasoning_may_come_before_any_grammar(tokenizer, grammar, prompt_end, text, is_allowed):
    reasoned = Grammar(grammar.kind, grammar.text, after=TAGS)
    compiler = GrammarCompiler(tokenizer, frozenset({256}), tokenizer.vocab_size)
    matcher = compiler.compile(reasoned, prompt_end=prompt_end).matcher
    ids = tokenizer.encode(text, add_special_tokens=False)
    taken = matcher.try_consume_tokens(ids)
    assert (taken == len(ids) and matcher.is_accepting()) is is_allowed
