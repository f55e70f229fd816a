"""Every parameter clients are known to send: honoured, accepted as harmless, or refused by name."""

import pytest

from astrai_api.testing import FakeEngine

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
HELLO = [{"role": "user", "content": "Hello"}]
ASK = {
    CHAT: {"messages": HELLO},
    MESSAGES: {"messages": HELLO, "max_tokens": 9},
    COMPLETIONS: {"prompt": "Hello"},
    RESPONSES: {"input": "Hello"},
}
OPENAI = (CHAT, COMPLETIONS, RESPONSES)
ALL = (*OPENAI, MESSAGES)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NO_REASONING = {"enable_thinking": False, "thinking": False}


def rows(paths, table):
    return [(path, *row) for path in paths for row in table]


HONOURED = [
    *rows(
        ALL,
        [
            ({"temperature": 0.5}, {"temperature": 0.5}),
            ({"temperature": 0}, {"temperature": 0.0}),
            ({"top_p": 0.5}, {"top_p": 0.5}),
            ({"top_p": 0}, {"top_p": 0.0}),
            ({"top_k": 7}, {"top_k": 7}),
            ({"top_k": -1}, {"top_k": -1}),
            ({"top_k": 0}, {"top_k": 0}),
            ({"stream": True}, {"stream": True}),
            ({}, {"temperature": 1.0, "top_p": 1.0, "top_k": 50, "stream": False, "n": 1}),
        ],
    ),
    *rows(
        OPENAI,
        [
            ({"min_p": 0.1}, {"min_p": 0.1}),
            ({"min_tokens": 2}, {"min_tokens": 2}),
            ({"presence_penalty": -1.5}, {"presence_penalty": -1.5}),
            ({"frequency_penalty": 1.5}, {"frequency_penalty": 1.5, "rep_window": None}),
            ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
            ({"logit_bias": {"5": -100}}, {"logit_bias": {5: -100.0}}),
            ({"logit_bias": {}}, {"logit_bias": None}),
            ({"seed": 2**63 - 1}, {"seed": 2**63 - 1}),
            ({"stop": "zz"}, {"stop": ("zz",)}),
            ({"stop": ["y", "z"]}, {"stop": ("y", "z")}),
            ({"stop_token_ids": [5]}, {"stop_token_ids": [5]}),
            ({"ignore_eos": True}, {"ignore_eos": True}),
            ({"cache_salt": "mine"}, {"cache_salt": "mine"}),
            ({"cache_salt": ""}, {"cache_salt": None}),
        ],
    ),
    *rows(
        [CHAT],
        [
            ({"max_tokens": 5}, {"max_tokens": 5}),
            ({"max_tokens": 128_000}, {"max_tokens": 128_000}),
            ({"max_completion_tokens": 3, "max_tokens": 5}, {"max_tokens": 3}),
            ({"n": 2}, {"n": 2}),
            ({"logprobs": True, "top_logprobs": 20}, {"logprobs": True, "top_logprobs": 20}),
            ({"chat_template_kwargs": {"a": 1}}, {"chat_template_kwargs": {"a": 1}}),
            ({"reasoning_effort": "none"}, {"chat_template_kwargs": NO_REASONING}),
        ],
    ),
    *rows(
        [COMPLETIONS],
        [
            ({"max_tokens": 5}, {"max_tokens": 5}),
            ({"n": 2, "best_of": 2}, {"n": 2}),
            ({"logprobs": 5}, {"logprobs": True, "top_logprobs": 5}),
            ({"echo": True, "logprobs": 1}, {"prompt_logprobs": 1}),
        ],
    ),
    *rows(
        [RESPONSES],
        [
            ({"max_output_tokens": 5}, {"max_tokens": 5}),
            ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
            ({"chat_template_kwargs": {"a": 1}}, {"chat_template_kwargs": {"a": 1}}),
            ({"reasoning": {"effort": "none"}}, {"chat_template_kwargs": NO_REASONING}),
        ],
    ),
    *rows(
        [MESSAGES],
        [
            ({"chat_template_kwargs": {"a": 1}}, {"chat_template_kwargs": {"a": 1}}),
            ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": NO_REASONING}),
            ({"max_tokens": 128_000}, {"max_tokens": 128_000}),
            ({"max_tokens": None}, {"max_tokens": 1024}),
            ({"stop_sequences": ["</x>"]}, {"stop": ("</x>",)}),
            ({"temperature": 2}, {"temperature": 2.0}),
        ],
    ),
]

HARMLESS = [
    *rows(
        ALL,
        [
            ({"model": None},),
            ({"user": "u", "metadata": {"a": "b"}},),
            ({"service_tier": "auto"},),
            ({"tools": []},),
            ({"totally_unknown": {"a": [1]}},),
        ],
    ),
    *rows(
        OPENAI,
        [
            ({"store": True, "safety_identifier": "s"},),
            ({"prompt_cache_key": "k", "prompt_cache_retention": "24h"},),
            ({"prompt_cache_options": {"mode": "implicit"}},),
            ({"stream_options": {"include_obfuscation": False}},),
            ({"moderation": None, "suffix": None, "functions": None},),
        ],
    ),
    *rows(
        [CHAT],
        [
            ({"response_format": {"type": "text"}},),
            ({"reasoning_effort": "low", "verbosity": "low"},),
            ({"reasoning": {"effort": "low"}},),
            ({"prediction": {"type": "content", "content": "x"}},),
            ({"modalities": ["text"]},),
            ({"web_search_options": None, "audio": None},),
            ({"functions": [], "function_call": "auto"},),
            ({"parallel_tool_calls": False, "tool_choice": "auto"},),
            ({"stream_options": {"include_usage": True}},),
            ({"stream_usage": True},),
            ({"include_reasoning": True},),
        ],
    ),
    *rows([COMPLETIONS], [({"suffix": ""},), ({"best_of": 1},)]),
    *rows(
        [RESPONSES],
        [
            ({"reasoning": {"effort": "high", "summary": "auto"}},),
            ({"text": {"verbosity": "low", "format": {"type": "text"}}},),
            ({"truncation": "auto", "max_tool_calls": 3},),
            ({"include": ["reasoning.encrypted_content"]},),
            ({"previous_response_id": None, "background": False, "conversation": None},),
            ({"context_management": [], "parallel_tool_calls": False},),
            ({"tools": [{"type": "web_search"}], "tool_choice": "auto"},),
        ],
    ),
    *rows(
        [MESSAGES],
        [
            ({"system": "Be brief."},),
            ({"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},),
            ({"system": [{"type": "text", "text": "", "cache_control": {}}]},),
            ({"thinking": {"type": "adaptive", "display": "updates"}},),
            ({"thinking": {"type": "enabled", "budget_tokens": 1024}},),
            ({"output_config": {"effort": "max"}},),
            ({"metadata": {"user_id": "u"}, "service_tier": "standard_only"},),
            ({"speed": "fast", "inference_geo": "eu", "container": "c", "diagnostics": {}},),
            ({"cache_control": {"type": "ephemeral"}, "user_profile_id": "u"},),
            ({"context_management": {"edits": []}, "compaction": {}, "betas": ["x"]},),
            ({"mcp_servers": [], "fallbacks": []},),
            ({"tool_choice": {"type": "none"}},),
            ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},),
        ],
    ),
]

REFUSED = [
    *rows(
        ALL,
        [
            ({"temperature": -1}, 422, "temperature"),
            ({"temperature": 2.1}, 422, "temperature"),
            ({"top_p": 1.1}, 422, "top_p"),
            ({"top_k": -2}, 422, "top_k"),
            ({"stream": "yes"}, 422, "stream"),
            ({"model": "nope"}, 404, "model"),
            ({"model": 5}, 422, "model"),
        ],
    ),
    *rows(
        OPENAI,
        [
            ({"min_p": 2}, 422, "min_p"),
            ({"presence_penalty": 2.1}, 422, "presence_penalty"),
            ({"frequency_penalty": -100}, 422, "frequency_penalty"),
            ({"repetition_penalty": 0}, 422, "repetition_penalty"),
            ({"logit_bias": {"5": 101}}, 422, "logit_bias"),
            ({"logit_bias": {"x": 1}}, 422, "logit_bias"),
            ({"seed": 2**63}, 422, "seed"),
            ({"stop": ""}, 400, "stop"),
            ({"stop": [1]}, 400, "stop"),
            ({"stop": ["x"] * 17}, 400, "stop"),
            ({"prompt_logprobs": 1}, 400, "prompt_logprobs"),
            ({"use_beam_search": True}, 400, "use_beam_search"),
            ({"guided_json": "{"}, 400, "guided_json"),
            ({"guided_json": 5}, 422, "guided_json"),
            ({"guided_regex": 5}, 422, "guided_regex"),
            ({"guided_choice": []}, 400, "guided_choice"),
            ({"guided_choice": ["a", ""]}, 400, "guided_choice"),
            ({"guided_whitespace_pattern": " "}, 400, "guided_whitespace_pattern"),
            ({"structured_outputs": {"structural_tag": {}}}, 400, "structured_outputs"),
            ({"structured_outputs": {"json": 5}}, 400, "structured_outputs.json"),
            ({"structured_outputs": {"regex": 5}}, 400, "structured_outputs.regex"),
            ({"structured_outputs": {"choice": "a"}}, 400, "structured_outputs.choice"),
            ({"guided_regex": "a", "guided_choice": ["a"]}, 400, "guided_choice"),
            ({"grammar": "root ::= x"}, 400, "grammar"),
            ({"json_schema": {"type": "object"}}, 400, "json_schema"),
        ],
    ),
    *rows(
        [CHAT],
        [
            ({"messages": []}, 400, "messages"),
            ({"max_tokens": 0}, 422, "max_tokens"),
            ({"max_completion_tokens": -1}, 422, "max_completion_tokens"),
            ({"n": 0}, 422, "n"),
            ({"n": 129}, 422, "n"),
            ({"top_logprobs": 3}, 400, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": 21}, 422, "top_logprobs"),
            ({"response_format": {}}, 400, "response_format"),
            ({"response_format": {"type": "xml"}}, 400, "response_format"),
            ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
            (
                {"response_format": {"type": "json_schema", "json_schema": 5}},
                400,
                "response_format",
            ),
            ({"tools": [{"type": "custom"}]}, 400, "tools"),
            ({"tools": [TOOL, TOOL]}, 400, "tools"),
            ({"parallel_tool_calls": "yes"}, 422, "parallel_tool_calls"),
            ({"tool_choice": "required"}, 400, "tool_choice"),
            ({"tool_choice": TOOL}, 400, "tool_choice"),
            ({"functions": [{"name": "f"}]}, 400, "functions"),
            ({"function_call": {"name": "f"}}, 400, "function_call"),
            ({"modalities": ["text", "audio"]}, 400, "modalities"),
            ({"audio": {"voice": "x"}}, 400, "audio"),
            ({"moderation": {"a": 1}}, 400, "moderation"),
            ({"web_search_options": {}}, 400, "web_search_options"),
        ],
    ),
    *rows(
        [COMPLETIONS],
        [
            ({"max_tokens": -1}, 422, "max_tokens"),
            ({"logprobs": 21}, 422, "logprobs"),
            ({"suffix": "end"}, 400, "suffix"),
            ({"best_of": 3}, 400, "best_of"),
            ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
        ],
    ),
    *rows(
        [RESPONSES],
        [
            ({"max_output_tokens": 0}, 422, "max_output_tokens"),
            ({"previous_response_id": "resp_1"}, 400, "previous_response_id"),
            ({"background": True}, 400, "background"),
            ({"conversation": "conv_1"}, 400, "conversation"),
            ({"prompt": {"id": "p"}}, 400, "prompt"),
            ({"moderation": {"model": "m"}}, 400, "moderation"),
            ({"text": {"format": {"type": "json_schema", "name": "x"}}}, 400, "text.format"),
        ],
    ),
    *rows(
        [MESSAGES],
        [
            ({"messages": []}, 400, "messages"),
            ({"max_tokens": 0}, 400, "max_tokens"),
            ({"max_tokens": -1}, 422, "max_tokens"),
            ({"stop_sequences": [""]}, 400, "stop_sequences"),
            ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "tools"),
            ({"tools": [{"name": "two words"}]}, 400, "tools"),
            ({"tool_choice": {"type": "any"}}, 400, "tool_choice"),
            ({"tool_choice": {"type": "sometimes"}}, 400, "tool_choice"),
            ({"tool_choice": {"type": "tool", "name": "f"}}, 400, "tool_choice"),
            ({"output_config": {"format": {"type": "json_schema"}}}, 400, "output_config"),
            ({"output_config": {"format": {"type": "text"}}}, 400, "output_config"),
            ({"output_format": {"type": "json_schema", "schema": []}}, 400, "output_format"),
            ({"mcp_servers": [{"url": "x"}]}, 400, "mcp_servers"),
        ],
    ),
]


def settings(request):
    """How a request runs, whatever its prompt."""
    return {**vars(request), "request_id": None, "messages": None}


@pytest.fixture
def ask(connect):
    engine = FakeEngine()
    client = connect(engine)

    async def post(path, fields):
        return engine, await client.post(path, json={**ASK[path], **fields})

    return post


@pytest.mark.parametrize(("path", "fields", "expected"), HONOURED)
async def test_honoured(ask, path, fields, expected):
    engine, response = await ask(path, fields)
    assert response.status_code == 200, response.text
    request = engine.requests[0]
    assert {name: getattr(request, name) for name in expected} == expected


@pytest.mark.parametrize(("path", "fields"), HARMLESS)
async def test_harmless(ask, path, fields):
    _, response = await ask(path, fields)
    assert response.status_code == 200, response.text
    engine, _ = await ask(path, {})
    first, second = map(settings, engine.requests)
    assert first == second


@pytest.mark.parametrize(("path", "fields", "status", "param"), REFUSED)
@pytest.mark.parametrize("stream", [False, True])
async def test_refused(ask, path, fields, status, param, stream):
    engine, response = await ask(path, {"stream": stream, **fields})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert param in error["message"]
    assert path == MESSAGES or error["param"].startswith(param)
    assert engine.handles == []
    assert (await ask(path, {}))[1].status_code == 200


@pytest.mark.parametrize("path", ALL)
async def test_null_is_the_default(ask, path):
    """B166."""
    names = {name for row in (*HONOURED, *REFUSED) if row[0] == path for name in row[1]}
    engine, response = await ask(path, dict.fromkeys(names - set(ASK[path])))
    assert response.status_code == 200, response.text
    await ask(path, {})
    first, second = map(settings, engine.requests)
    assert first == second
