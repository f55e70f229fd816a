"""The requests of the load: every protocol, in every shape, and those that are to be refused.

All but the kind ``sampled`` are greedy, so each body has one right answer, whatever else runs.
"""

from dataclasses import dataclass

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"

_QUESTIONS = (
    "What is the capital of France?",
    "Write a few sentences about the sea.",
    "Name three kinds of bread.",
    "Grüße aus 東京 🙂! What does this say?",
    "Tell me a short story of a red fox and a lighthouse.",
    "How does an old clock keep time?",
)
_HANDBOOK = "You work in a library and answer its visitors. " + " ".join(
    f"Shelf {shelf} in room {shelf % 7} has books on {topic}, and is open until {9 + shelf % 8} pm."
    for shelf, topic in enumerate(
        ("maps", "birds", "trains", "opera", "bridges", "tides", "glass", "moss", "kites", "salt"),
        1,
    )
)
"""A system prompt that many requests begin with."""

_CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
_WEATHER = ("get_weather", "The weather in a city.", _CITY)
_TRAVELS = ("What is the weather in Paris tomorrow?", "Will it rain in Oslo for three days?")


@dataclass(frozen=True)
class Kind:
    """Requests of one sort.

    Attributes:
        name: as the report has it.
        path: of the endpoint.
        bodies: without ``stream``.
        weight: how often it is chosen, beside the others.
        is_exact: every body has one right answer.
        is_salted: half of the requests share no cached prefix with any other.
    """

    name: str
    path: str
    bodies: tuple[dict, ...]
    weight: int = 2
    is_exact: bool = True
    is_salted: bool = False


@dataclass(frozen=True)
class BadRequest:
    """A request, and the status it is refused with."""

    method: str
    path: str
    body: dict | bytes | None
    status: int


def _user(text):
    return [{"role": "user", "content": text}]


def _greedy(num_tokens, limit="max_tokens", **fields):
    return {"temperature": 0, limit: num_tokens, **fields}


def _chats(**fields):
    return tuple(
        _greedy(8 + 12 * number, messages=_user(question), **fields)
        for number, question in enumerate(_QUESTIONS)
    )


def _function():
    name, description, schema = _WEATHER
    return {"name": name, "description": description, "parameters": schema}


def _chat_kinds():
    librarian = {"role": "system", "content": _HANDBOOK}
    shared = tuple(
        _greedy(24, messages=[librarian, *_user(f"Where are the books on {topic}?")])
        for topic in ("birds", "tides", "glass", "kites")
    )
    tools = [{"type": "function", "function": _function()}]
    schema = {"type": "json_schema", "json_schema": {"name": "trip", "schema": _CITY}}
    return (
        Kind("chat", CHAT, _chats(), weight=6),
        Kind("chat, n = 3", CHAT, _chats(n=3)[:3]),
        Kind("chat, wide log-probabilities", CHAT, _chats(logprobs=True, top_logprobs=20)[3:]),
        Kind("chat, shared prefix", CHAT, shared, weight=6, is_salted=True),
        Kind("chat, long prompt", CHAT, _long_prompts(), weight=1, is_salted=True),
        Kind(
            "chat, tools",
            CHAT,
            tuple(
                _greedy(64, messages=_user(text), tools=tools, tool_choice="required")
                for text in _TRAVELS
            ),
        ),
        Kind(
            "chat, JSON schema",
            CHAT,
            tuple(_greedy(64, messages=_user(t), response_format=schema) for t in _TRAVELS),
        ),
        Kind("sampled", CHAT, _sampled(), is_exact=False),
    )


def _long_prompts():
    tale = " ".join(f"In year {year} the river rose {year % 9} feet." for year in range(1800, 1900))
    return tuple(
        _greedy(8, messages=_user(f"{tale} In which year was it {feet} feet?")) for feet in (3, 7)
    )


def _sampled():
    return tuple(
        {"messages": _user(question), "temperature": 1.2, "top_p": 0.95, "max_tokens": 48, "n": 2}
        for question in _QUESTIONS
    )


def _completion_kinds():
    single = tuple(
        _greedy(16 + 16 * number, prompt=text)
        for number, text in enumerate(("Once upon a time", "The old bridge", "A map of the"))
    )
    several = _greedy(20, prompt=["Once upon a time", "The sea is", "In the north"], n=2)
    yes_or_no = _greedy(4, prompt="Is water wet? Answer:", guided_choice=[" yes", " no"])
    return (
        Kind("completion", COMPLETIONS, single, weight=3),
        Kind("completion, 3 prompts x 2", COMPLETIONS, (several,), weight=1),
        Kind("completion, guided choice", COMPLETIONS, (yes_or_no,), weight=1),
    )


def _message_kinds():
    name, description, schema = _WEATHER
    tools = [{"name": name, "description": description, "input_schema": schema}]
    told = {"tools": tools, "tool_choice": {"type": "any"}}
    shared = tuple(
        _greedy(24, system=_HANDBOOK, messages=_user(f"Until when may I read about {topic}?"))
        for topic in ("maps", "opera", "salt")
    )
    trips = tuple(_greedy(64, messages=_user(text)) for text in _TRAVELS)
    held = {"output_config": {"format": {"type": "json_schema", "schema": _CITY}}}
    return (
        Kind("messages", MESSAGES, _chats(), weight=6),
        Kind("messages, shared prefix", MESSAGES, shared, weight=3),
        Kind("messages, tools", MESSAGES, tuple(trip | told for trip in trips)),
        Kind("messages, JSON schema", MESSAGES, tuple(trip | held for trip in trips)),
    )


def _response_kinds():
    plain = tuple(
        _greedy(8 + 12 * number, "max_output_tokens", input=question)
        for number, question in enumerate(_QUESTIONS)
    )
    trips = tuple(_greedy(64, "max_output_tokens", input=text) for text in _TRAVELS)
    tools = {"tools": [{"type": "function", **_function()}], "tool_choice": "required"}
    held = {"text": {"format": {"type": "json_schema", "name": "trip", "schema": _CITY}}}
    return (
        Kind("responses", RESPONSES, plain, weight=3),
        Kind("responses, tools", RESPONSES, tuple(trip | tools for trip in trips), weight=1),
        Kind("responses, JSON schema", RESPONSES, tuple(trip | held for trip in trips), weight=1),
    )


KINDS = (*_chat_kinds(), *_completion_kinds(), *_message_kinds(), *_response_kinds())

BAD_REQUESTS = (
    BadRequest("POST", CHAT, b'{"messages": [', 400),
    BadRequest("POST", MESSAGES, b"[1, 2]", 400),
    BadRequest(
        "POST", CHAT, b'{"messages": [{"role": "user", "content": "x"}], "top_p": NaN}', 400
    ),
    BadRequest("POST", CHAT, {"messages": [{"role": "wizard", "content": "x"}]}, 422),
    BadRequest("POST", MESSAGES, {"max_tokens": 4}, 422),
    BadRequest("POST", RESPONSES, {"input": "x", "temperature": -1}, 422),
    BadRequest("POST", RESPONSES, {"input": "x", "previous_response_id": "resp_1"}, 400),
    BadRequest("POST", COMPLETIONS, {"prompt": "x", "suffix": "y"}, 400),
    BadRequest("POST", CHAT, {"messages": _user("fox " * 9000)}, 400),
    BadRequest("POST", CHAT, {"messages": _user("x"), "model": "somebody-else"}, 404),
    BadRequest("GET", CHAT, None, 405),
    BadRequest("POST", "/v1/nothing", {}, 404),
)
"""What clients send by mistake."""

WIDE = next(kind for kind in KINDS if "wide" in kind.name)
"""Answers of many kilobytes, which fill the buffers before a slow reader."""

STREAMED_AT_THE_END = next(kind for kind in KINDS if kind.name == "messages")
"""What still runs when the server is told to stop."""
