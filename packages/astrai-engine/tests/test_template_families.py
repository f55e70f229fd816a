"""Templates of well-known families render what transformers renders, with tools and without.

Their forms, in ``data/templates``, are those that the models' cards document.
"""

from pathlib import Path

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from astrai_engine.chat_template import ChatTemplate

TEMPLATES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((Path(__file__).parent / "data" / "templates").glob("*.jinja"))
}
WITH_TOOLS = {
    name for name, source in TEMPLATES.items() if "tools is" in source or "if tools" in source
}
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "  How large is K\u00f6ln? <b> \U0001f642 "}
ANSWER = {"role": "assistant", "content": "About 1.1 million."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abcdef123",
            "type": "function",
            "function": {"name": "size", "arguments": {"city": "K\u00f6ln", "units": ["km", "mi"]}},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "abcdef123", "content": "1100000"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "size",
            "description": "How many people live in a city's \u00e4rea?",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
]
CHATS = {
    "one": [QUESTION],
    "several": [QUESTION, ANSWER, {"role": "user", "content": "Sure?"}],
    "system": [SYSTEM, QUESTION],
}
TOOL_CHATS = {
    "asked": [SYSTEM, QUESTION],
    "answered": [QUESTION, CALL, RESULT],
}


@pytest.fixture(scope="module")
def reference():
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def both(reference, name, messages, **arguments):
    template = ChatTemplate(TEMPLATES[name], bos_token="<s>", eos_token="</s>")
    expected = reference.apply_chat_template(
        messages, chat_template=TEMPLATES[name], tokenize=False, **arguments
    )
    return template.render(messages, **arguments), expected


def test_there_are_enough_of_them():
    assert len(TEMPLATES) >= 12
    assert len(WITH_TOOLS) >= 5


@pytest.mark.parametrize("prompt", [True, False], ids=["prompt", "whole"])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_chats(reference, name, chat, prompt):
    ours, expected = both(reference, name, CHATS[chat], add_generation_prompt=prompt)
    assert ours == expected
    assert "K\u00f6ln" in ours


@pytest.mark.parametrize("chat", TOOL_CHATS)
@pytest.mark.parametrize("name", sorted(WITH_TOOLS))
def test_chats_with_tools(reference, name, chat):
    ours, expected = both(
        reference, name, TOOL_CHATS[chat], tools=TOOLS, add_generation_prompt=True
    )
    assert ours == expected
    assert "How many people" in ours
