"""Answers: parts become blocks, one after the other."""

import pytest

from astrai_api.answer import Answer, BlockEnded, BlockKind, BlockStarted, BlockText
from astrai_api.answer_parts import (
    ContentText,
    ReasoningText,
    ToolCallArguments,
    ToolCallStart,
)
from astrai_engine.events import TokenDelta, TokenLogprob, Usage

F, G = ToolCallStart(0, "f"), ToolCallStart(1, "g")
F_ARGUMENTS, G_ARGUMENTS = ToolCallArguments(0, '{"a": 1}'), ToolCallArguments(1, "{}")


class Scripted:
    """A parser that finds what it is told, delta by delta, the last at the end."""

    def __init__(self, *parts):
        self.parts = list(parts)

    def push(self, text):
        return self.parts.pop(0)

    def finish(self):
        (last,) = self.parts
        return last


def delta(num_tokens=1, logprobs=()):
    return TokenDelta("text", tuple(range(num_tokens)), Usage(1, 0, 1), 0, tuple(logprobs))


def run(*parts, **options):
    """Give every list of parts to an answer; gives it, and all events as (name, place, text)."""
    answer = Answer(Scripted(*parts), **options)
    events = [event for _ in parts[:-1] for event in answer.push(delta())] + answer.finish()
    return answer, [told(event) for event in events]


def told(event):
    match event:
        case BlockStarted(block):
            return ("start", block.place, block.kind.value)
        case BlockText(block, text):
            return ("text", block.place, text)
        case BlockEnded(block):
            return ("end", block.place)


def test_text_is_one_block():
    answer, events = run([ContentText("a")], [ContentText(" b")], [])
    assert events == [("start", 0, "text"), ("text", 0, "a"), ("text", 0, " b"), ("end", 0)]
    assert answer.blocks[0].text == "a b"
    assert not answer.is_calls


def test_blocks_follow_one_another_without_holes():
    answer, events = run(
        [ReasoningText("hm")], [ContentText("See:"), F, F_ARGUMENTS], [G], [G_ARGUMENTS]
    )
    places = [place for name, place, *_ in events if name == "start"]
    assert places == [0, 1, 2, 3]
    for place in range(3):
        assert events.index(("end", place)) + 1 == events.index(
            ("start", place + 1, answer.blocks[place + 1].kind.value)
        )
    calls = [block for block in answer.blocks if block.kind is BlockKind.CALL]
    assert [(c.call_number, c.name, c.text) for c in calls] == [
        (0, "f", '{"a": 1}'),
        (1, "g", "{}"),
    ]
    assert len({block.key for block in answer.blocks}) == 4
    assert answer.is_calls


def test_white_space_around_calls_is_no_text():
    answer, _ = run([ContentText("\n")], [F, F_ARGUMENTS, ContentText(" \n")], [])
    assert [block.kind for block in answer.blocks] == [BlockKind.CALL]


def test_white_space_before_text_belongs_to_it():
    answer, _ = run([ContentText(" ")], [ContentText("\n")], [ContentText("a")])
    assert answer.blocks[0].text == " \na"


@pytest.mark.parametrize("blank", ["", " \n"])
def test_an_answer_of_nothing_is_an_empty_text(blank):
    answer, events = run([ContentText(blank)] if blank else [], [])
    assert [block.kind for block in answer.blocks] == [BlockKind.TEXT]
    assert answer.blocks[0].text == blank
    assert (events[0], events[-1]) == (("start", 0, "text"), ("end", 0))


def test_a_forced_answer_has_no_text():
    answer, events = run([ContentText('<tool_call>\n{"na')], [], is_forced=True)
    assert (answer.blocks, events) == ([], [])


def test_a_forced_call_is_not_told_twice():
    again = ToolCallStart(1, "f"), ToolCallArguments(1, '{"a": 1}')
    other = ToolCallStart(2, "f"), ToolCallArguments(2, '{"a"'), ToolCallArguments(2, ": 2}")
    answer, events = run([F, F_ARGUMENTS], [*again], [*other], [], is_forced=True)
    assert [block.text for block in answer.blocks] == ['{"a": 1}', '{"a": 2}']
    assert [block.call_number for block in answer.blocks] == [0, 1]
    assert ("text", 1, '{"a": 2}') in events


def test_a_free_call_may_be_told_twice():
    answer, _ = run([F, F_ARGUMENTS], [ToolCallStart(1, "f"), ToolCallArguments(1, '{"a": 1}')], [])
    assert len(answer.blocks) == 2


def test_a_forced_call_cut_where_it_repeats_is_left_out():
    again = ToolCallStart(1, "f"), ToolCallArguments(1, '{"a"')
    answer, _ = run([F, F_ARGUMENTS], [*again], [], is_forced=True)
    assert [block.text for block in answer.blocks] == ['{"a": 1}']


def test_calls_beyond_the_most_are_left_out():
    answer, _ = run([F, F_ARGUMENTS, G, G_ARGUMENTS], [], max_calls=1)
    assert [block.name for block in answer.blocks] == ["f"]
    assert answer.blocks[0].text == '{"a": 1}'


def test_reasoning_can_be_left_out():
    answer, _ = run([ReasoningText("hm"), ContentText("a")], [], shows_reasoning=False)
    assert [block.kind for block in answer.blocks] == [BlockKind.TEXT]
    assert answer.reasoning_tokens == 1


def test_reasoning_tokens_are_those_before_the_text():
    """Tags and text that is held back go with what follows."""
    answer = Answer(
        Scripted([], [ReasoningText("a")], [ReasoningText("b")], [], [ContentText("c")], [])
    )
    for num_tokens in (1, 2, 3, 4, 5):
        answer.push(delta(num_tokens))
    answer.finish()
    assert answer.reasoning_tokens == 1 + 2 + 3


def test_reasoning_that_only_the_end_brings_is_counted():
    answer = Answer(Scripted([], [ReasoningText("a")]))
    answer.push(delta(3))
    answer.finish()
    assert answer.reasoning_tokens == 3


@pytest.mark.parametrize("arguments", ["", '{"a": ', "[1]", "no JSON"])
def test_a_call_that_is_not_whole_is_none_to_run(arguments):
    answer, _ = run([F, ToolCallArguments(0, arguments)], [])
    assert not answer.is_calls


def test_logprobs_go_with_the_text_they_came_with():
    entries = [TokenLogprob(i, "x", b"x", -1.0) for i in range(3)]
    answer = Answer(Scripted([ReasoningText("a")], [ContentText("b")], [], []))
    for entry in entries:
        answer.push(delta(logprobs=[entry]))
    answer.finish()
    assert [block.logprobs for block in answer.blocks] == [entries[:1], entries[1:]]
