"""Tools told in text, for templates that know of none."""

import json

import pytest

from astrai_engine.chat_template import ChatTemplate
from astrai_engine.errors import TemplateError
from astrai_engine.tool_prompt import tool_prompt

SOURCE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + SOURCE
TEMPLATE = ChatTemplate(SOURCE)
TOOLS = [{"type": "function", "function": {"name": "f", "description": "caf\u00e9 {x}"}}]
PROMPT = tool_prompt(TOOLS)
USER = {"role": "user", "content": "hi"}


def call(name, arguments):
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text):
    return {"role": "tool", "tool_call_id": "1", "content": text}


def test_every_tool_is_a_line_of_the_prompt():
    lines = tool_prompt([*TOOLS, {"name": "g"}]).splitlines()
    at = lines.index("<tools>")
    assert [json.loads(line) for line in lines[at + 1 : at + 3]] == [*TOOLS, {"name": "g"}]
    assert lines[at + 3] == "</tools>"
    assert "caf\u00e9 {x}" in lines[at + 1]


def test_the_prompt_ends_the_system_message():
    system = {"role": "system", "content": "Be brief."}
    assert TEMPLATE.render([system, USER], tools=TOOLS) == f"<system>Be brief.\n\n{PROMPT}<user>hi"


def test_a_developer_or_a_system_message_in_parts_takes_it_too():
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    rendered = TEMPLATE.render([{"role": "developer", "content": parts}, USER], tools=TOOLS)
    assert rendered == f"<developer>Be brief.\n\n{PROMPT}<user>hi"


def test_without_a_system_message_there_is_one():
    assert TEMPLATE.render([USER], tools=TOOLS) == f"<system>{PROMPT}<user>hi"


def test_a_template_without_system_messages_tells_the_user():
    assert ChatTemplate(NO_SYSTEM).render([USER], tools=TOOLS) == f"<user>{PROMPT}\n\nhi"
    assert ChatTemplate(NO_SYSTEM).render([], tools=TOOLS) == f"<user>{PROMPT}"


def test_what_it_refuses_either_way_stays_refused():
    with pytest.raises(TemplateError, match="never"):
        ChatTemplate("{{ raise_exception('never') }}").render([USER], tools=TOOLS)
    with pytest.raises(TemplateError, match="never"):
        ChatTemplate("{{ raise_exception('never') }}").render([USER])


@pytest.mark.parametrize("tools", [None, []])
def test_without_tools_there_is_no_prompt(tools):
    assert TEMPLATE.render([USER], tools=tools) == "<user>hi"


@pytest.mark.parametrize("arguments", ['{"x":  1}', {"x": "\u00e4"}, "{broken"])
def test_calls_are_text_of_the_assistant(arguments):
    message = {"role": "assistant", "content": "Well.", "tool_calls": [call("f", arguments)] * 2}
    text = arguments if isinstance(arguments, str) else '{"x": "\u00e4"}'
    written = f'<tool_call>\n{{"name": "f", "arguments": {text}}}\n</tool_call>'
    assert TEMPLATE.render([message]) == f"<assistant>Well.\n{written}\n{written}"


def test_calls_without_text_and_without_a_function():
    message = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    written = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert TEMPLATE.render([message]) == f"<assistant>{written}"


def test_results_in_a_row_are_one_message_of_the_user():
    """Any number of results, in any order, with or without calls before them."""
    messages = [USER, result("a"), result([{"type": "text", "text": "b"}]), USER, result(None)]
    assert TEMPLATE.render(messages) == (
        "<user>hi<user><tool_response>\na\n</tool_response>\n<tool_response>\nb\n"
        "</tool_response><user>hi<user><tool_response>\n\n</tool_response>"
    )


def test_a_template_that_knows_tools_gets_them_itself():
    knowing = ChatTemplate("{{ tools }}{{ messages }}")
    assert knowing.render([USER], tools=TOOLS) == f"{TOOLS}{[USER]}"
