"""Chat templates render what transformers renders, and fail in their own words."""

import datetime
import json
import re

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from astrai_engine.chat_template import ChatTemplate
from astrai_engine.errors import ModelLoadError, TemplateError

BOS, EOS = "<s>", "</s>"

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WITH_TOOLS = """\
{{- bos_token }}
{%- if tools %}
    {{- '<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}{{ tool | tojson(indent=2) }}
    {%- endfor %}
    {{- '</tools>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '[RESULT]' + message.content + '[/RESULT]' }}
    {%- elif message.tool_calls %}
        {%- for call in message.tool_calls %}
            {%- set call = call.function if call.function else call %}
            {{- '[CALL]' + call.name + ' ' }}{{ call.arguments | tojson }}{{- '[/CALL]' }}
        {%- endfor %}
    {%- else %}
        {{- '[' + message.role + ']' + message.content | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""
STRICT = """\
{% if messages[0].role == 'system' %}
    {{ raise_exception('System role not supported') }}
{% endif %}
{% for message in messages %}
    {% if loop.index0 % 2 != (message.role == 'assistant') | int %}
        {{ raise_exception('Roles must alternate') }}
    {% endif %}
    {% if not message.content %}{% continue %}{% endif %}
{{ message.role }}: {{ message.content }}
    {% generation %}{{ loop.index }}{% endgeneration %}

{% endfor %}
"""
DATED = "{{ strftime_now('%Y') }} {{ messages | length }}{{ documents }}{{ flag | default('off') }}"

QUESTION = {"role": "user", "content": "  Wie gro\u00df? <b> & \u65e5\u672c \U0001f642 "}
ANSWER = {"role": "assistant", "content": "So: gro\u00df\n"}
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {
    "role": "assistant",
    "tool_calls": [
        {
            "id": "1",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "K\u00f6ln", "days": 2}},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "rain"}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "café's", "parameters": {"type": "object"}},
}


@pytest.fixture(scope="module")
def reference():
    """A transformers tokenizer, of which only the chat template matters here."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BOS, eos_token=EOS)


def template(source):
    return ChatTemplate(source, bos_token=BOS, eos_token=EOS)


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize(
    ("source", "messages", "tools"),
    [
        (CHATML, [QUESTION], None),
        (CHATML, [SYSTEM, QUESTION, ANSWER, QUESTION], []),
        (WITH_TOOLS, [SYSTEM, QUESTION], None),
        (WITH_TOOLS, [SYSTEM, QUESTION], [TOOL]),
        (WITH_TOOLS, [QUESTION, CALL, RESULT, QUESTION], None),
        (WITH_TOOLS, [QUESTION, CALL, RESULT, QUESTION], [TOOL]),
        (STRICT, [QUESTION, ANSWER, QUESTION], None),
        (STRICT, [QUESTION, {"role": "assistant", "content": ""}], None),
        (DATED, [QUESTION], None),
        (
            "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}",
            [{"reasoning": "so"}],
            None,
        ),
    ],
)
def test_rendered_as_transformers_does(reference, source, messages, tools, prompt):
    expected = reference.apply_chat_template(
        messages, tools=tools, chat_template=source, tokenize=False, add_generation_prompt=prompt
    )
    assert template(source).render(messages, tools=tools, add_generation_prompt=prompt) == expected


@pytest.mark.parametrize("source", [CHATML, WITH_TOOLS])
@pytest.mark.parametrize("content", ["The capital", "The capital ", "a\n\n"])
def test_the_final_message_is_continued_as_transformers_does(reference, source, content):
    messages = [QUESTION, {"role": "assistant", "content": content}]
    expected = reference.apply_chat_template(
        messages, chat_template=source, tokenize=False, continue_final_message=True
    )
    rendered = template(source).render(messages, continue_final_message=True)
    assert rendered == expected
    assert rendered.rstrip().endswith(content.rstrip())


def test_parts_of_the_final_message_are_continued():
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text }}|{% endfor %}{% endfor %}"
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "assistant", "content": parts}]
    assert template(source).render(messages, continue_final_message=True) == "one|two"
    assert parts[1]["text"] == "two"


@pytest.mark.parametrize("final", [{"role": "assistant"}, {"role": "assistant", "content": []}])
def test_nothing_to_continue(final):
    with pytest.raises(TemplateError, match="needs a last message with text"):
        template(CHATML).render([QUESTION, final], continue_final_message=True)


def test_a_template_that_drops_the_final_message_can_not_continue_it():
    with pytest.raises(TemplateError, match="drops the last message"):
        template("{{ messages[0].content }}").render(
            [QUESTION, ANSWER], continue_final_message=True
        )


def test_the_templates_own_words_are_the_error():
    with pytest.raises(TemplateError, match="Roles must alternate") as caught:
        template(STRICT).render([QUESTION, QUESTION])
    assert caught.value.param == "messages"
    with pytest.raises(TemplateError, match="System role not supported"):
        template(STRICT).render([SYSTEM])


def test_arguments_as_json_text_serve_both_kinds_of_template():
    """B128: clients send arguments as text; templates read them as text or as a mapping."""
    text = '{"a": 1,  "b": "\u00e4"}'
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": text}}]}
    each = "{% for k, v in messages[0].tool_calls[0].function.arguments | items %}{{ k }}={{ v }};"
    raw = "{{ messages[0].tool_calls[0].function.arguments }}"
    as_json = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert template(each + "{% endfor %}").render([call]) == "a=1;b=\u00e4;"
    assert template(raw).render([call]) == text
    assert json.loads(template(as_json).render([call])) == json.loads(text)


@pytest.mark.parametrize("text", ["{not json", "[1]", "3", ""])
def test_arguments_that_are_no_json_object_stay_text(text):
    """B128: a model's own broken arguments in the history are no reason to fail."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": text}}]}
    source = "{{ messages[0].tool_calls[0].function.arguments }}"
    assert template(source).render([call]) == text


def test_a_message_without_content_is_rendered():
    """B127: null content is no content, not a missing message."""
    call = {**CALL, "content": None}
    rendered = template(CHATML).render([QUESTION, call, RESULT, QUESTION])
    assert rendered.count("<|im_start|>") == 5
    roles = re.findall(r"<\|im_start\|>(\w+)", rendered)
    assert roles == ["user", "assistant", "user", "user", "assistant"]
    rendered = template("{% for m in messages %}{{ m.tool_calls }}{{ m.content }};{% endfor %}")
    assert rendered.render([QUESTION, call, RESULT, QUESTION]).count(";") == 4


def test_arguments_that_a_template_can_not_read_are_a_refusal():
    """B128: never an error of the server."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{no"}}]}
    source = "{% for k, v in messages[0].tool_calls[0].function.arguments | items %}{% endfor %}"
    with pytest.raises(TemplateError, match="refuses these messages"):
        template(source).render([call])


def test_text_parts_are_joined_for_templates_that_know_only_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\nab<|im_end|>" in template(CHATML).render([{"role": "user", "content": parts}])
    with pytest.raises(TemplateError):
        template(CHATML).render([{"role": "user", "content": [{"type": "image_url"}]}])


def test_no_tool_calls_is_the_same_as_absent():
    """B129: an empty list of calls is not a call."""
    source = "{{ messages[0].tool_calls is defined }}"
    assert template(source).render([{**ANSWER, "tool_calls": []}]) == "False"


def test_messages_are_not_changed():
    message = {"role": "user", "content": None, "tool_calls": [], "reasoning": "r"}
    before = json.dumps(message)
    template(CHATML).render([message])
    assert json.dumps(message) == before


def test_a_template_for_tools_is_chosen_by_name():
    named = template({"default": "plain", "tool_use": "tools"})
    assert named.render([QUESTION]) == "plain"
    assert named.render([QUESTION], tools=[TOOL]) == "tools"
    with pytest.raises(TemplateError, match="no default"):
        template({"rag": "x"}).render([QUESTION])


def test_the_template_for_tools_can_be_told():
    named = {"default": "plain", "tool_use": "with tools"}
    assert template(named).tool_source == "with tools"
    assert template("only").tool_source == "only"
    assert template({"rag": "documents"}).tool_source is None


def test_variables_and_the_clock():
    year = str(datetime.datetime.now().year)
    assert template(DATED).render([QUESTION], flag="on") == f"{year} 1Noneon"


def test_tokens_the_model_lacks_are_empty():
    assert ChatTemplate("[{{ bos_token }}{{ eos_token }}]").render([QUESTION]) == "[]"


def test_a_broken_template_is_a_load_error():
    with pytest.raises(ModelLoadError, match=r"line 2: .*endfor"):
        ChatTemplate("\n{% endfor %}")


@pytest.mark.parametrize(
    "attack",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
    ],
)
def test_templates_run_in_a_sandbox(attack):
    with pytest.raises(TemplateError):
        template(attack).render([QUESTION])
