"""Every format finds the calls in a text, and nothing else, however the text is cut."""

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from astrai_api.answer_parts import ContentText, ToolCallArguments, ToolCallStart
from astrai_api.tools.formats import FORMATS, detect_tool_format
from astrai_api.tools.mistral import MistralFormat
from astrai_api.tools.tool import Tool

TOOLS = [Tool("f"), Tool("get_weather"), Tool("get-time")]

HARD = (
    '{"s": "a}]\\"{[\\\\ </tool_call> [TOOL_CALLS] ;)", "ü": [1, {"n": null}], '
    '"e": "\\ud83d\\ude42"}'
)
"""Arguments with all that could be taken for the end of a call."""


def content(text):
    return ContentText(text)


def call(index, name, arguments):
    return [ToolCallStart(index, name), ToolCallArguments(index, arguments)]


def hermes(name, arguments, key="arguments"):
    return f'<tool_call>\n{{"name": "{name}", "{key}": {arguments}}}\n</tool_call>'


def llama(name, arguments):
    return f'{{"name": "{name}", "parameters": {arguments}}}'


def mistral(*calls):
    items = ", ".join(f'{{"name": "{name}", "arguments": {text}}}' for name, text in calls)
    return f"[TOOL_CALLS] [{items}]"


CALLS = [
    # hermes
    ("hermes", hermes("f", "{}"), call(0, "f", "{}")),
    ("hermes", hermes("f", HARD), call(0, "f", HARD)),
    ("hermes", hermes("get-time", '{"x":1}', "parameters"), call(0, "get-time", '{"x":1}')),
    ("hermes", f" \n{hermes('f', '{}')}\n", call(0, "f", "{}")),
    (
        "hermes",
        f"Let me.\n\n{hermes('f', HARD)}\n{hermes('get_weather', '{}')} So. ",
        [content("Let me."), *call(0, "f", HARD), *call(1, "get_weather", "{}"), content("So. ")],
    ),
    ("hermes", hermes("f", "{}") * 2, [*call(0, "f", "{}"), *call(1, "f", "{}")]),
    (
        "hermes",
        f'<tool_call>{{"arguments" :{HARD} ,"name": "f","id":"7"}}</tool_call>',
        call(0, "f", HARD),
    ),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', call(0, "f", "{}")),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {}}', call(0, "f", "{}")),
    (
        "hermes",
        f'<tool_call>{{"name": "f", "arguments": {{}}}}\n{hermes("f", HARD)}',
        [*call(0, "f", "{}"), *call(1, "f", HARD)],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>x',
        [*call(0, "f", "{}"), content("<tool_call>x")],
    ),
    (
        "hermes",
        f"<tool_call> <{hermes('f', '{}')}",
        [content("<tool_call> <"), *call(0, "f", "{}")],
    ),
    # llama3_json
    ("llama3_json", llama("f", HARD), call(0, "f", HARD)),
    ("llama3_json", f"<|python_tag|>{llama('f', '{}')}", call(0, "f", "{}")),
    (
        "llama3_json",
        f"{llama('f', '{}')}; {llama('get_weather', HARD)} ;{llama('f', HARD)}",
        [*call(0, "f", "{}"), *call(1, "get_weather", HARD), *call(2, "f", HARD)],
    ),
    (
        "llama3_json",
        f'I will.\n  {{"type": "function", "name": "f", "parameters": {HARD}}}\nDone',
        [content("I will."), *call(0, "f", HARD), content("Done")],
    ),
    (
        "llama3_json",
        f"{llama('f', '{}')}\n{llama('f', HARD)} and",
        [*call(0, "f", "{}"), *call(1, "f", HARD), content("and")],
    ),
    # pythonic
    ("pythonic", "[f()]", call(0, "f", "{}")),
    (
        "pythonic",
        '[ get_weather( city = "Paris" ) , '
        """f(x=-1, y=[True, None, 'it\\'s', (1.5,)], z={'k': "])"})]""",
        [
            *call(0, "get_weather", '{"city": "Paris"}'),
            *call(1, "f", '{"x": -1, "y": [true, null, "it\'s", [1.5]], "z": {"k": "])"}}'),
        ],
    ),
    (
        "pythonic",
        f"<|python_start|>[f(a={HARD}, b=true)]<|python_end|> Ok",
        [*call(0, "f", f'{{"a": {HARD}, "b": true}}'), content("Ok")],
    ),
    (
        "pythonic",
        f"Yes:\n[f()]\n{llama('f', HARD)}",
        [content("Yes:"), *call(0, "f", "{}"), *call(1, "f", HARD)],
    ),
    (
        "pythonic",
        "[f(), g()] or not",
        [*call(0, "f", "{}"), content("g()] or not")],
    ),
    # mistral
    ("mistral", mistral(("f", HARD)), call(0, "f", HARD)),
    (
        "mistral",
        f"Sure. {mistral(('f', '{}'), ('get-time', HARD))}",
        [content("Sure."), *call(0, "f", "{}"), *call(1, "get-time", HARD)],
    ),
    (
        "mistral",
        f'[TOOL_CALLS]{{"name": "f", "arguments": {HARD}, "id": "a1B2c3D4e"}}',
        call(0, "f", HARD),
    ),
    ("mistral", f"[TOOL_CALLS]get-time[ARGS]{HARD}", call(0, "get-time", HARD)),
    (
        "mistral",
        f"[TOOL_CALLS]f{HARD}[TOOL_CALLS]f [CALL_ID]a1b2c3d4e[ARGS] {{}}",
        [*call(0, "f", HARD), *call(1, "f", "{}")],
    ),
]


@pytest.mark.parametrize(("name", "text", "parts"), CALLS)
def test_calls_are_found(parse_all_ways, name, text, parts):
    assert parse_all_ways(lambda: FORMATS[name].parser(TOOLS), text) == parts
    for part in parts:
        if isinstance(part, ToolCallArguments):
            assert isinstance(json.loads(part.text), dict)


LOOK_ALIKES = {
    "hermes": [
        hermes("unknown", "{}"),
        hermes("get_weathe", "{}"),
        hermes("get_weathers", "{}"),
        hermes("f", "[1]"),
        hermes("f", "null"),
        "The tag <tool_call> opens a call, </tool_call> ends it.",
        "<tool_call>\n{not json}\n</tool_call>",
        '<tool_call>{"name": "f", "argument": {}}</tool_call>',
        '<tool_call>{"name": "f", "name": "f", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}, "arguments": {}, "name": "f"}</tool_call>',
        '<tool_call>{"arguments": {"a": 01}, "name": "f"}</tool_call>',
        '<tool_call>{"arguments": {"a" 1}, "name": "f"}</tool_call>',
        '<tool_call>{"arguments": {"a": "\\x"}, "name": "f"}</tool_call>',
        '<tool_call>{"arguments": {"a": [1}, "name": "f"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name" "f"}</tool_call>',
        '<tool_call>{name: "f"}</tool_call>',
        '<tool_call>{"id": 7, "name": "f"}</tool_call>',
        '{"name": "f", "arguments": {}}',
        "if a < b and b <tool: \n < <t ",
        "<tool_cal",
    ],
    "llama3_json": [
        'In prose {"name": "f", "parameters": {}} is no call.',
        llama("unknown", "{}"),
        '{"city": "Paris", "name": "f"}',
        '{"name": "Gudrun", "age": 3}',
        '{"parameters": {"city": "Par',
        "<|python_tag|>print(1)",
        "{\n}\n{ ",
        '<|python_tag|>{"x": 1}',
    ],
    "pythonic": [
        "See [f(x=1)] there.",
        "[1, 2]",
        "[unknown(x=1)]",
        "[f(1)]",
        "[f(x=y)]",
        "[f(x=1, x=2)]",
        "[f(**{})]",
        "[f(x=b'')]",
        "[f(x={1: 2, (3,): 4})]",
        "[f(x=(1])]",
        "[f(x=1) and so on",
        "[f x]",
        "[]",
        "<|python_start|>print(1)<|python_end|>",
        "[f(x=NaN)]",
        "[f(x='\n')]",
        "[f(" + "[" * 70,
    ],
    "mistral": [
        "[TOOL_CALLS] are brackets",
        "[TOOL_CALLS] []",
        mistral(("unknown", "{}")),
        "[TOOL_CALLS]unknown[ARGS]{}",
        "[TOOL_CALLS]f[NO]{}",
        "[TOOL_CALLS]f[CALL_ID]a-b[ARGS]{}",
        "[TOOL_CALLS]f[ARGS][1]",
        "[1, 2] [TOOL_CALL",
        '[{"name": "f", "arguments": {}}]',
    ],
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in LOOK_ALIKES.items() for text in texts]
)
def test_what_only_looks_like_a_call_is_content_to_the_letter(parse_all_ways, name, text):
    assert parse_all_ways(lambda: FORMATS[name].parser(TOOLS), text) == [content(text)]
    around = f" \n a {text} \n"
    assert parse_all_ways(lambda: FORMATS[name].parser(TOOLS), around) == [content(around)]


SHORT = '{"s": "}\\"]"}'
WHOLE = {
    "hermes": f"Hm.\n{hermes('get_weather', SHORT)}",
    "llama3_json": f"Hm.\n{llama('get_weather', SHORT)}; {llama('f', SHORT)}",
    "pythonic": f"Hm.\n[get_weather(a={SHORT}), f(b='])')]",
    "mistral": f"Hm.\n{mistral(('get_weather', SHORT), ('f', SHORT))}",
}


OPENINGS = {
    "hermes": "<tool_call>",
    "llama3_json": '{"name": "g',
    "pythonic": "[g",
    "mistral": "[TOOL_CALLS]",
}
"""Where a call can be nothing else any more."""


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_cut_anywhere_leaks_nothing(parse_all_ways, name):
    """What was passed on is a beginning of what the whole text has, and no call is content."""
    text = WHOLE[name]
    whole = parse_all_ways(lambda: FORMATS[name].parser(TOOLS), text)
    for end in range(len(text)):
        parts = parse_all_ways(lambda: FORMATS[name].parser(TOOLS), text[:end])
        if not any(isinstance(part, ToolCallStart) for part in parts):
            is_text = parts == ([content(text[:end])] if end else [])
            assert is_text or parts == [content("Hm.")]
            assert not is_text or OPENINGS[name] not in text[:end]
        else:
            *before, last = parts
            assert before == whole[: len(before)]
            assert getattr(whole[len(before)], "text", "").startswith(getattr(last, "text", ""))


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        (
            "hermes",
            hermes("f", '{"a": oops}') + "\nNext",
            [*call(0, "f", '{"a": oops}}\n'), content("Next")],
        ),
        (
            "hermes",
            hermes("f", '{"a": 1') + "\nNext",
            [*call(0, "f", '{"a": 1}'), content("Next")],
        ),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {}\n</tool_call> a',
            [*call(0, "f", "{}"), content("a")],
        ),
        ("llama3_json", llama("f", "{'a'") + " b", call(0, "f", "{'a'} b")),
        ("mistral", "[TOOL_CALLS]f[ARGS]{,} c", call(0, "f", "{,} c")),
    ],
)
def test_a_mistake_in_arguments_stays_in_them(parse_all_ways, name, text, parts):
    """Their beginning is out already; what is wrong is for the client to see."""
    assert parse_all_ways(lambda: FORMATS[name].parser(TOOLS), text) == parts


def test_arguments_are_passed_on_as_they_come():
    parser = FORMATS["hermes"].parser(TOOLS)
    assert parser.push('<tool_call>\n{"name": "f", "arguments": ') == []
    assert parser.push('{"ci') == [ToolCallStart(0, "f"), ToolCallArguments(0, '{"ci')]
    assert parser.push('ty": 1}') == [ToolCallArguments(0, 'ty": 1}')]
    assert parser.push("}\n</tool_call>") == []


def test_arguments_before_the_name_wait_for_it():
    parser = FORMATS["llama3_json"].parser(TOOLS)
    assert parser.push('{"parameters": {"a": 1}, "name": "f"') == []
    assert parser.push("}") == call(0, "f", '{"a": 1}')


ALPHABETS = {
    "hermes": [
        "<tool_call>",
        "</tool_call>",
        '{"name"',
        ": ",
        '"f"',
        ', "arguments"',
        "{",
        "}",
        "<",
        "\n",
        "a ",
    ],
    "llama3_json": [
        "<|python_tag|>",
        '{"name"',
        ": ",
        '"f"',
        ', "parameters"',
        "{",
        "}",
        ";",
        "\n",
        "a ",
    ],
    "pythonic": ["<|python_start|>", "[", "]", "f(", ")", "x=", "1", ", ", "'", '"', "\n", "a "],
    "mistral": [
        "[TOOL_CALLS]",
        "[",
        "]",
        "f",
        "[ARGS]",
        '{"name"',
        ": ",
        '"f"',
        ', "arguments"',
        "{",
        "}",
        "\n",
    ],
}


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_text_is_parsed_the_same_however_it_is_cut(parse_all_ways, name, data):
    text = "".join(data.draw(st.lists(st.sampled_from(ALPHABETS[name]), max_size=14)))
    parse_all_ways(lambda: FORMATS[name].parser(TOOLS), text)


@pytest.mark.parametrize("name", FORMATS)
@given(text=st.text())
@settings(max_examples=60, deadline=None)
def test_text_without_calls_comes_back_as_it_is(parse_all_ways, name, text):
    assume(not any(tag in text for tag in FORMATS[name].special_tokens))  # they begin a call
    parts = parse_all_ways(lambda: FORMATS[name].parser(TOOLS), text)
    assert parts == ([content(text)] if text else [])


ARGUMENTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=6,
    ),
    max_size=3,
)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=40, deadline=None)
@given(arguments=ARGUMENTS, ensure_ascii=st.booleans(), indent=st.none() | st.just(1))
def test_any_arguments_come_back_as_they_were_written(
    parse_all_ways, name, arguments, ensure_ascii, indent
):
    written = json.dumps(arguments, ensure_ascii=ensure_ascii, indent=indent)
    text = {
        "hermes": hermes("f", written),
        "llama3_json": llama("f", written),
        "pythonic": f"[f(x={written})]",
        "mistral": mistral(("f", written)),
    }[name]
    expected = f'{{"x": {written}}}' if name == "pythonic" else written
    assert parse_all_ways(lambda: FORMATS[name].parser(TOOLS), text) == call(0, "f", expected)


TEMPLATES = {
    "hermes": '<tool_call>\\n{"name": \' and <|python_tag|>',
    "llama3_json": "{%- if builtin_tools %}<|python_tag|>{% endif %}'\"parameters\": '",
    "pythonic": "<|python_start|>[func_name1(params_name1=params_value1)]",
    "mistral": '[AVAILABLE_TOOLS]...[TOOL_CALLS] [{"name"...',
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_template_tells_the_format(name):
    assert detect_tool_format(TEMPLATES[name]).name == name
    assert detect_tool_format(TEMPLATES["hermes"], name).name == name


@pytest.mark.parametrize("template", [None, "{{ messages }}", "{{ tools }} <my_own_call>"])
def test_hermes_is_the_default(template):
    assert detect_tool_format(template).name == "hermes"


def test_mistral_writes_calls_as_its_template_does():
    assert detect_tool_format("[TOOL_CALLS]name[ARGS]{}") == MistralFormat(tags_each=True)
    assert detect_tool_format("[TOOL_CALLS]name[ARGS]{}", "mistral") == MistralFormat(
        tags_each=True
    )
    assert detect_tool_format("[TOOL_CALLS] [") == MistralFormat()
