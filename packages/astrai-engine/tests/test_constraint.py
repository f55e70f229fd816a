"""Grammars enforced while sampling, on a random model: it would never match by itself."""

import json
import re
from dataclasses import replace

import pytest

from astrai_engine import EngineConfig, GenerationRequest, InferenceEngine
from astrai_engine.errors import InvalidRequestError
from astrai_engine.events import Finished, FinishReason, TokenDelta
from astrai_engine.grammar import Grammar

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine(tiny_checkpoint):
    config = EngineConfig(model=str(tiny_checkpoint), page_size=4)
    with InferenceEngine(config=config) as engine:
        yield engine


def run(engine, grammar, *, prompt="x", max_tokens=100, **parameters):
    """Gives the text and why it ended."""
    request = GenerationRequest(prompt=prompt, grammar=grammar, max_tokens=max_tokens, **parameters)
    events = list(engine.submit(request))
    assert isinstance(events[-1], Finished), events[-1]
    return "".join(e.text for e in events if isinstance(e, TokenDelta)), events[-1].reason


@pytest.mark.parametrize("seed", range(5))
def test_json_matches_its_schema(engine, seed):
    text, reason = run(engine, Grammar.json_schema(PERSON), seed=seed, top_k=0)
    person = json.loads(text)
    assert set(person) == {"name", "age"}
    assert len(person["name"]) <= 6
    assert 0 <= person["age"] <= 99
    assert reason is FinishReason.STOP


def test_a_pattern_is_matched_whole(engine):
    pattern = r"[A-Z][a-z]{2,4}-\d{3}"
    for seed in range(5):
        text, reason = run(engine, Grammar.regex(pattern), seed=seed)
        assert re.fullmatch(pattern, text)
        assert reason is FinishReason.STOP


def test_a_choice_is_one_of_its_texts(engine):
    texts = {run(engine, Grammar.choice(["yes", 'a "no"', "ümlaut"]), seed=s)[0] for s in range(12)}
    assert texts <= {"yes", 'a "no"', "ümlaut"}
    assert len(texts) > 1


def test_a_lark_grammar_is_followed(engine):
    grammar = Grammar.lark('start: "(" start ")" | "x"')
    text, _ = run(engine, grammar, temperature=0.0, logit_bias={engine.tokenizer.token_id("("): 9})
    assert re.fullmatch(r"\(*x?\)*", text)


def test_cut_at_its_length_the_text_is_a_valid_beginning(engine):
    whole, _ = run(engine, Grammar.json_schema(PERSON), seed=1)
    text, reason = run(engine, Grammar.json_schema(PERSON), seed=1, max_tokens=7)
    assert reason is FinishReason.LENGTH
    assert whole.startswith(text)
    assert text.startswith("{")


def test_the_grammar_ends_the_text_even_where_others_would_go_on(engine):
    text, reason = run(
        engine, Grammar.choice(["done"]), ignore_eos=True, min_tokens=50, logit_bias={65: 100.0}
    )
    assert (text, reason) == ("done", FinishReason.STOP)


def test_a_stop_string_still_ends_it(engine):
    text, reason = run(engine, Grammar.choice(["one two three"]), stop=[" two"])
    assert (text, reason) == ("one", FinishReason.STOP)


def test_constrained_and_free_rows_share_a_batch(engine):
    free = GenerationRequest(prompt="free", max_tokens=12, temperature=0.0, ignore_eos=True)
    alone = engine.generate_with_request(free)
    handles = [
        engine.submit(
            GenerationRequest(prompt=f"{i}", grammar=Grammar.json_schema(PERSON), max_tokens=90)
        )
        for i in range(4)
    ]
    handles.insert(2, engine.submit(free))
    texts = ["".join(e.text for e in h if isinstance(e, TokenDelta)) for h in handles]
    assert texts.pop(2) == alone
    assert all(set(json.loads(text)) == {"name", "age"} for text in texts)


def test_choices_of_one_request_go_their_own_ways(engine):
    request = GenerationRequest(
        prompt="x", grammar=Grammar.regex("[ab]{6}"), n=4, seed=2, max_tokens=9, top_k=0
    )
    texts = engine.generate_with_request(request)
    assert all(re.fullmatch("[ab]{6}", text) for text in texts)
    assert len(set(texts)) > 1


def test_a_seed_gives_the_same_structured_text(engine):
    first, second = (run(engine, Grammar.json_schema(PERSON), seed=8)[0] for _ in range(2))
    assert first == second


def test_preemption_does_not_lose_the_place_in_the_grammar(tiny_checkpoint):
    config = EngineConfig(
        model=str(tiny_checkpoint), page_size=4, n_tokens=80, max_batch_size=4, max_step_tokens=16
    )
    requests = [
        GenerationRequest(prompt=f"p{i}", grammar=Grammar.json_schema(PERSON), seed=i)
        for i in range(8)
    ]
    with InferenceEngine(config=config) as engine:
        results = engine.run_batch(requests, progress=False)
        assert engine.get_stats()["preemptions"] > 0
    assert all(set(json.loads(result.texts[0])) == {"name", "age"} for result in results)


@pytest.mark.parametrize(
    ("grammar", "match"),
    [
        (Grammar.regex("a(b"), "regex can't be enforced"),
        (Grammar.lark("start: nowhere"), "unknown name"),
        (Grammar.json_schema({"type": "string", "pattern": "(?<=a)b"}), "look-around"),
        (
            Grammar.json_schema({"properties": {"tags": {"type": "array", "uniqueItems": True}}}),
            "#/properties/tags/uniqueItems is not supported",
        ),
        (Grammar.json_schema({"$ref": "http://example.com/schema"}), "can't be enforced"),
    ],
)
def test_what_cannot_be_enforced_is_refused_and_the_next_request_works(engine, grammar, match):
    """B153."""
    with pytest.raises(InvalidRequestError, match=match):
        engine.submit(GenerationRequest(prompt="x", grammar=grammar))
    assert run(engine, Grammar.choice(["fine"]))[0] == "fine"


def test_text_may_look_like_one_thing_or_another(engine):
    either = replace(Grammar.json_schema(PERSON), otherwise=Grammar.choice(["none", "nobody"]))
    brace, letter = (engine.tokenizer.token_id(text) for text in "{n")
    for token_id in (brace, letter):
        text, reason = run(engine, either, logit_bias={token_id: 100.0}, max_tokens=200)
        assert reason is FinishReason.STOP
        if token_id == brace:
            assert set(json.loads(text)) == {"name", "age"}
        else:
            assert text in ("none", "nobody")


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.json_schema({"not": {}}, source="mine"),
        Grammar.regex("(", source="mine"),
        Grammar.lark("nothing", source="mine"),
    ],
)
def test_refusals_name_what_the_caller_knows(engine, grammar):
    with pytest.raises(InvalidRequestError, match="The mine can't be enforced") as caught:
        run(engine, grammar)
    assert caught.value.param == "mine"
