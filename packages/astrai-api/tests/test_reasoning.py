"""Reasoning is taken off the answer, however the text is cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrai_api.answer_parts import ContentText, ReasoningText, ToolCallArguments, ToolCallStart
from astrai_api.plain import PlainAnswer
from astrai_api.reasoning import detect_reasoning
from astrai_api.tools.formats import FORMATS
from astrai_api.tools.tool import Tool
from astrai_engine.grammar import Grammar

THINK = detect_reasoning("{{ '<think>' }}...{{ content.split('</think>') }}")


def read(parse_all_ways, text, *, is_open=False):
    return parse_all_ways(lambda: THINK.parser(PlainAnswer(), is_open=is_open), text)


def thought(reasoning, content=""):
    answer = [ContentText(content)] if content else []
    return [ReasoningText(reasoning), *answer] if reasoning else answer


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>\nHm, 2 < 3.\n\nSo.\n</think>\n\nYes. ", thought("Hm, 2 < 3.\n\nSo.", "Yes. ")),
        (" \n<think>a</think>b", thought("a", "b")),
        ("<think>\n\n</think>\n\nNo thought.", thought("", "No thought.")),
        ("<think></think>", []),
        ("<think>cut </thin", thought("cut </thin")),
        ("<think>cut\n ", thought("cut")),
        ("<think>a</think>\n", thought("a")),
        ("<think>a</think>b</think> <think>c", thought("a", "b</think> <think>c")),
        (
            " No <think>tag at the start</think>.",
            thought("", " No <think>tag at the start</think>."),
        ),
        ("<thin", thought("", "<thin")),
        (" \n", thought("", " \n")),
        ("", []),
    ],
)
def test_the_model_opens_it(parse_all_ways, text, parts):
    assert read(parse_all_ways, text) == parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Hm.\n</think>\n\nYes.", thought("Hm.", "Yes.")),
        ("\n Hm, <b> </ th\n ink", thought("Hm, <b> </ th\n ink")),
        ("\n</think>\nYes.", thought("", "Yes.")),
        ("<think>\nopened again</think>Yes.", thought("opened again", "Yes.")),
        ("<thin", thought("<thin")),
        (" \n", []),
        ("", []),
    ],
)
def test_the_prompt_has_opened_it(parse_all_ways, text, parts):
    assert read(parse_all_ways, text, is_open=True) == parts


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(
        st.sampled_from(["<think>", "</think>", "<", "/", "\n", " ", "a"]), max_size=10
    ),
    is_open=st.booleans(),
)
def test_any_text_is_parsed_the_same_however_it_is_cut(parse_all_ways, pieces, is_open):
    read(parse_all_ways, "".join(pieces), is_open=is_open)


def test_calls_come_behind_it_and_not_inside(parse_all_ways):
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    parts = parse_all_ways(
        lambda: THINK.parser(FORMATS["hermes"].parser([Tool("f")]), is_open=True),
        f"Or {call}?\n</think>\n\n{call}",
    )
    assert parts == [
        ReasoningText(f"Or {call}?"),
        ToolCallStart(0, "f"),
        ToolCallArguments(0, "{}"),
    ]


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("<think>", "</think>"),
        ("[THINK]", "[/THINK]"),
        ("<thought>", "</thought>"),
        ("<seed:think>", "</seed:think>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    ],
)
def test_the_template_tells_the_tags(start, end):
    found = detect_reasoning(f"{{% if x %}}{start}{{{{ y }}}}{end}{{% endif %}}")
    assert found.special_tokens == (start, end)
    assert found.is_open(f"<|assistant|>{start}\n")
    assert not found.is_open(f"{start}\n\n{end}\n\n")
    assert not found.is_open(f"what is {start}?<|assistant|>")


@pytest.mark.parametrize("template", [None, "", "{{ messages }} [think]"])
def test_other_models_have_none(template):
    assert detect_reasoning(template) is None


def test_reasoning_may_come_before_a_grammar():
    grammar = THINK.allow_before(Grammar.json_object())
    assert grammar.after == THINK.tags
    assert (grammar.kind, grammar.text) == ("json_schema", Grammar.json_object().text)
