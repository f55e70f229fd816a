"""Near ``max_tokens`` structured text is closed, not cut."""

import json
from dataclasses import replace

import pytest

from astrai_engine import EngineConfig, GenerationRequest, InferenceEngine
from astrai_engine.events import FinishReason, TokenDelta
from astrai_engine.grammar import Grammar
from astrai_engine.reasoning_tags import ReasoningTags

STRING = Grammar.json_schema(
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
)
NESTED = Grammar.json_schema(
    {
        "type": "object",
        "properties": {
            "list": {"type": "array", "items": {"type": "string"}},
            "number": {"type": "integer"},
            "text": {"type": "string"},
        },
        "required": ["list", "number", "text"],
        "additionalProperties": False,
    }
)
CALLS = replace(Grammar.lark('start: call ("\\n" call)*\ncall: "f()"'), closes=True)
TEXT = Grammar.regex('(.|"|\\n)*')


@pytest.fixture(scope="module")
def engine(tiny_checkpoint):
    config = EngineConfig(model=str(tiny_checkpoint), page_size=4)
    with InferenceEngine(config=config) as engine:
        yield engine


def run(engine, grammar, *, max_tokens=100, **parameters):
    """Gives the text, why it ended, and how many tokens it took."""
    parameters = {"logit_bias": {256: -100.0}, "seed": 1, "top_k": 0, **parameters}
    request = GenerationRequest(
        prompt="x", grammar=grammar, max_tokens=max_tokens, n=3, **parameters
    )
    events = list(engine.submit(request))
    choices = []
    for index in range(3):
        own = [event for event in events if event.index == index]
        text = "".join(event.text for event in own if isinstance(event, TokenDelta))
        choices.append((text, own[-1].reason, own[-1].usage.completion_tokens))
    return choices


@pytest.mark.parametrize("grammar", [STRING, NESTED, Grammar.json_object()])
def test_text_that_would_not_end_is_whole_at_the_limit(engine, grammar):
    for text, reason, num_tokens in run(engine, grammar, max_tokens=110):
        assert isinstance(json.loads(text), dict)
        assert num_tokens <= 110
        assert reason in (FinishReason.STOP, FinishReason.LENGTH)


def test_a_value_that_was_cut_short_says_so(engine):
    quote = engine.tokenizer.token_id('"')
    comma = engine.tokenizer.token_id(",")
    begun = '{"a": "'
    bias = {256: -100.0, quote: -30.0, comma: -30.0}
    for text, reason, _ in run(engine, STRING, logit_bias=bias):
        assert text.startswith(begun)
        assert isinstance(json.loads(text)["a"], str)
        assert reason is FinishReason.LENGTH


def test_no_call_is_begun_that_may_be_cut(engine):
    """Ending between calls takes nothing away, so that is no cut."""
    newline = engine.tokenizer.token_id("\u010a")
    bias = {256: -100.0, newline: 30.0}
    for text, reason, num_tokens in run(engine, CALLS, max_tokens=80, logit_bias=bias):
        calls = text.split("\n")
        assert set(calls) == {"f()"}
        assert len(calls) > 2
        assert reason is FinishReason.STOP
        assert num_tokens < 80


def test_a_budget_without_room_cuts(engine):
    for text, reason, num_tokens in run(engine, NESTED, max_tokens=12):
        assert reason is FinishReason.LENGTH
        assert num_tokens == 12
        with pytest.raises(ValueError, match="char"):
            json.loads(text)


@pytest.mark.parametrize(
    "grammar", [TEXT, replace(NESTED, after=ReasoningTags("<think>", "</think>"))]
)
def test_free_text_is_not_closed(engine, grammar):
    """Quotes and brackets mean nothing in it."""
    for text, reason, num_tokens in run(engine, grammar, max_tokens=60):
        assert num_tokens == 60 or reason is FinishReason.STOP
        assert not text.endswith('""""')
