"""What the grammars of tool calls allow is what their parsers read: engine and API together."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from astrai_api.answer_parts import ContentText, ToolCallArguments, ToolCallStart
from astrai_api.tools.formats import FORMATS
from astrai_api.tools.mistral import MistralFormat
from astrai_api.tools.tool import Tool
from astrai_engine import EngineConfig, GenerationRequest, InferenceEngine
from astrai_engine.constraint import GrammarCompiler
from astrai_engine.errors import InvalidRequestError
from astrai_engine.events import Finished, FinishReason, TokenDelta
from astrai_engine.tokenizer import Tokenizer

END = 256


def check_f(arguments):
    assert set(arguments) <= {"a", "b", "c"}
    assert 0 <= arguments["a"] <= 99
    assert arguments.get("b", "x") in ["x", "y'\"\\ü"]
    assert all(isinstance(item, bool) for item in arguments.get("c", []))


F = Tool(
    "f",
    parameters={
        "type": "object",
        "properties": {
            "b": {"enum": ["x", "y'\"\\ü"]},
            "a": {"$ref": "#/$defs/small"},
            "c": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        },
        "required": ["a"],
        "$defs": {"small": {"type": "integer", "minimum": 0, "maximum": 99}},
    },
    strict=True,
)
NOTHING = Tool("no-arguments")
EITHER = Tool(
    "either",
    parameters={
        "anyOf": [
            {
                "type": "object",
                "properties": {key: {"type": "null"}},
                "required": [key],
                "additionalProperties": False,
            }
            for key in ("left", "not a keyword")
        ]
    },
)
ANYTHING = Tool("anything", parameters={"type": "object"})
CHECKS = {
    "anything": lambda arguments: isinstance(arguments, dict) or pytest.fail(str(arguments)),
    "f": check_f,
    "no-arguments": lambda arguments: arguments == {} or pytest.fail(str(arguments)),
    "either": lambda arguments: (
        arguments in ({"left": None}, {"not a keyword": None}) or pytest.fail(str(arguments))
    ),
}
ALL = [*FORMATS.values(), MistralFormat(tags_each=True)]
IDS = [*FORMATS, "mistral with tags"]


def byte_tokenizer(special=(), added=()):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>", *special])
    backend.add_tokens([AddedToken(text, special=False) for text in added])
    return Tokenizer(backend, eos_token="<|end|>")


@pytest.fixture(params=["text", "special tokens", "added tokens"])
def tags(request):
    """How a vocabulary has the tags of a format: gives what makes one."""

    def make(tool_format):
        texts = tool_format.special_tokens
        special = texts if request.param == "special tokens" else ()
        added = texts if request.param == "added tokens" else ()
        tokenizer = byte_tokenizer(special, added)
        return tokenizer, {text: tokenizer.token_id(text) for text in special}

    return make


def compiled(grammar, tokenizer, visible, prompt_end=""):
    compiler = GrammarCompiler(tokenizer, frozenset({END}), tokenizer.vocab_size)
    return compiler.compile(grammar, prompt_end=prompt_end, visible=visible)


def walk(constraint, tokenizer, seed, limit=3000):
    """A text that a random choice among what is allowed comes to; it likes to close things."""
    rng, ids = random.Random(seed), []
    while not constraint.is_complete and len(ids) < limit:
        bits = allocate_token_bitmask(1, tokenizer.vocab_size)
        fill_next_token_bitmask(constraint.matcher, bits)
        flags = np.unpackbits(bits.view(np.uint8), bitorder="little")[: tokenizer.vocab_size]
        allowed = [int(i) for i in np.flatnonzero(flags)]
        if END in allowed and rng.random() < 0.4:
            break
        closing = [i for i in allowed if tokenizer.token_text(i) in {'"', "]", "}", ")"}]
        readable = [i for i in allowed if i != END and tokenizer.token_text(i).isascii()]
        choices = closing if closing and rng.random() < 0.5 else readable or allowed
        token_id = rng.choice([i for i in choices if i != END])
        constraint.consume(token_id)
        ids.append(token_id)
    assert constraint.matcher.is_accepting()
    return tokenizer.decode(ids, skip_special_tokens=False)


def calls_in(tool_format, tools, text):
    """The valid calls that a text consists of, as (name, arguments)."""
    parser = tool_format.parser(tools)
    parts = parser.push(text) + parser.finish()
    assert not any(isinstance(part, ContentText) for part in parts), text
    names = [part.name for part in parts if isinstance(part, ToolCallStart)]
    texts = [""] * len(names)
    for part in parts:
        if isinstance(part, ToolCallArguments):
            texts[part.index] += part.text
    for name, arguments in zip(names, texts, strict=True):
        CHECKS[name](json.loads(arguments))
    return list(zip(names, texts, strict=True))


@pytest.mark.parametrize(
    "tools",
    [[F, NOTHING], [F, NOTHING, EITHER], [ANYTHING, F]],
    ids=["keywords", "no keywords", "any object"],
)
@pytest.mark.parametrize("tool_format", ALL, ids=IDS)
def test_all_that_a_grammar_allows_are_valid_calls(tags, tool_format, tools):
    tokenizer, visible = tags(tool_format)
    one = tool_format.grammar(tools, parallel=False)
    several = tool_format.grammar(tools, parallel=True)
    single, parallel = (compiled(grammar, tokenizer, visible) for grammar in (one, several))
    for seed in range(12):
        assert len(calls_in(tool_format, tools, walk(single.copy(), tokenizer, seed))) == 1
    counts = [
        len(calls_in(tool_format, tools, walk(parallel.copy(), tokenizer, seed)))
        for seed in range(12)
    ]
    assert 1 <= min(counts) < max(counts) <= 8


@pytest.mark.parametrize("tool_format", ALL, ids=IDS)
def test_a_named_tool_is_the_only_one(tags, tool_format):
    tokenizer, visible = tags(tool_format)
    constraint = compiled(tool_format.grammar([F], parallel=True), tokenizer, visible)
    for seed in range(5):
        calls = calls_in(tool_format, [F, NOTHING], walk(constraint.copy(), tokenizer, seed))
        assert {name for name, _ in calls} == {"f"}


def accepts(constraint, tokenizer, text):
    """Whether a text is allowed as a whole, and whether it may end there."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    constraint = constraint.copy()
    taken = constraint.matcher.try_consume_tokens(ids)
    return taken == len(ids), taken == len(ids) and constraint.matcher.is_accepting()


WHOLE, BEGUN, REFUSED = (True, True), (True, False), (False, False)
JSON_CALL = '{"name": "f", "KEY": {"a": 5}}'
AUTO = {
    "hermes": [
        ('Free text, <b> and {"name": 1}.', WHOLE),
        (f"Ok. <tool_call>\n{JSON_CALL}\n</tool_call> Done", WHOLE),
        ('<tool_call>\n{"name": "no-arguments", "arguments": {"any": [1]}}\n</tool_call>', WHOLE),
        ('<tool_call>\n{"name": "f", "arguments": {"c', REFUSED),
        ("<tool_call> no", REFUSED),
        ("<tool_call>\n{", BEGUN),
    ],
    "llama3_json": [
        ('Free {"name": "x"}, {"parameters": 1}\n{"city": 1}', WHOLE),
        (f"Ok.\n{JSON_CALL} Done", WHOLE),
        (f"<|python_tag|>{JSON_CALL}", WHOLE),
        ('{"name":"f", "parameters": {"a": 5}}', WHOLE),
        ('{"name": "unknown', REFUSED),
        ('{"name": "f", "parameters": {"c', REFUSED),
        ('\n{ "parameters"', REFUSED),
        ("<|python_tag|>print", REFUSED),
    ],
    "pythonic": [
        ("Free [f(x)] and\n[1, 2]", WHOLE),
        ('Ok.\n[f(b="x", a=5), no-arguments(any=[1])] Done', WHOLE),
        ("<|python_start|>[f(a=5)]", WHOLE),
        ("[f(c", REFUSED),
        ("\n[f(a=5), unknown", REFUSED),
        ('{"name":', REFUSED),
        ("[f(a=5", BEGUN),
    ],
    "mistral": [
        ("Free [1, 2] [TOOL]", WHOLE),
        (f"Ok. [TOOL_CALLS] [{JSON_CALL}, {JSON_CALL}] Done", WHOLE),
        ("[TOOL_CALLS] no", REFUSED),
        ('[TOOL_CALLS][{"name": "f", "arguments": {"c', REFUSED),
    ],
}


@pytest.mark.parametrize("name", FORMATS)
def test_strict_tools_are_enforced_where_a_call_begins(tags, name):
    tool_format = FORMATS[name]
    tokenizer, visible = tags(tool_format)
    constraint = compiled(tool_format.auto_grammar([F, NOTHING]), tokenizer, visible)
    key = "parameters" if name == "llama3_json" else "arguments"
    for text, expected in AUTO[name]:
        assert accepts(constraint, tokenizer, text.replace("KEY", key)) == expected, text


def test_strict_tools_that_are_no_keywords_are_enforced_as_json(tags):
    pythonic = FORMATS["pythonic"]
    tokenizer, visible = tags(pythonic)
    tools = [replace(EITHER, strict=True), F]
    constraint = compiled(pythonic.auto_grammar(tools), tokenizer, visible)
    call = '{"name": "either", "parameters": {"left": null}}'
    assert accepts(constraint, tokenizer, f"Ok.\n{call}\nDone") == WHOLE
    assert accepts(constraint, tokenizer, "\n[f(") == REFUSED
    assert accepts(constraint, tokenizer, '{"name": "either", "parameters": {"right') == REFUSED


@pytest.mark.parametrize("tool_format", ALL, ids=IDS)
def test_without_strict_tools_nothing_is_enforced(tool_format):
    assert tool_format.auto_grammar([NOTHING, EITHER]) is None


@pytest.mark.parametrize("tool_format", ALL, ids=IDS)
def test_a_schema_that_can_not_be_enforced_is_refused_with_its_path(tool_format):
    """B153."""
    tags = {"type": "array", "uniqueItems": True}
    tool = Tool("f", parameters={"properties": {"tags": tags, "x": {}}}, strict=True)
    tokenizer = byte_tokenizer()
    for grammar in (tool_format.grammar([tool], parallel=True), tool_format.auto_grammar([tool])):
        with pytest.raises(InvalidRequestError, match=r"tools can't be .*uniqueItems") as refusal:
            compiled(grammar, tokenizer, {})
        assert refusal.value.param == "tools"


@pytest.fixture(scope="module")
def engine():
    with InferenceEngine(config=EngineConfig(max_batch_size=8, max_seq_len=1024)) as engine:
        yield engine


@pytest.mark.parametrize("tool_format", ALL, ids=IDS)
def test_the_embedded_model_always_makes_a_valid_call(engine, tool_format):
    """Whatever it would say by itself: at temperature 1, from the whole vocabulary."""
    tools = [F, NOTHING]
    handles = [
        engine.submit(
            GenerationRequest(
                messages=[{"role": "user", "content": "What is 17 + 4?"}],
                tools=[tool.as_openai() for tool in tools],
                grammar=tool_format.grammar(tools, parallel=seed % 2 == 1),
                visible_special_tokens=tool_format.special_tokens,
                top_k=0,
                seed=seed,
                max_tokens=400,
            )
        )
        for seed in range(8)
    ]
    for handle in handles:
        events = list(handle)
        assert isinstance(events[-1], Finished)
        assert events[-1].reason is FinishReason.STOP
        assert handle.prompt_end.endswith("<|im_start|>assistant\n")
        text = "".join(event.text for event in events if isinstance(event, TokenDelta))
        assert calls_in(tool_format, tools, text)
