"""What an answer says, the same whether it came whole or as a stream, in each of the protocols."""

import json
from dataclasses import dataclass, field


class WrongAnswerError(Exception):
    """An answer that no request should get."""


@dataclass(frozen=True)
class Choice:
    """One answer to a prompt: its text, its calls as pairs of name and arguments, why it ended."""

    text: str
    calls: tuple[tuple[str, str], ...]
    reason: str


@dataclass(frozen=True)
class Answer:
    """All choices of a request, and how many tokens they took."""

    choices: tuple[Choice, ...]
    num_tokens: int


@dataclass
class _Draft:
    """A choice that is being put together; calls by their place."""

    text: str = ""
    calls: dict = field(default_factory=dict)
    reason: str | None = None

    def call(self, place, name="", arguments=""):
        so_far = self.calls.get(place, ("", ""))
        self.calls[place] = (so_far[0] + name, so_far[1] + arguments)

    def done(self):
        if self.reason is None:
            raise WrongAnswerError("a choice has no reason for its end")
        return Choice(self.text, tuple(call for _, call in sorted(self.calls.items())), self.reason)


def read_answer(path, body, *, stream):
    """What the body of a 200 says.

    Raises:
        WrongAnswerError: it is not what the protocol has, or tells of a failure.
    """
    whole, streamed = _READERS[path]
    try:
        return streamed(_events(body)) if stream else whole(json.loads(body))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise WrongAnswerError(f"{error!r} in {body[-300:]!r}") from error


def _events(body):
    """The data of all events, after a look at how the stream ends."""
    frames = body.decode("ascii").split("\n\n")
    if frames.pop() != "":
        raise WrongAnswerError(f"the last event is cut: {body[-200:]!r}")
    lines = [line for frame in frames for line in frame.split("\n") if line.startswith("data: ")]
    data = [line.removeprefix("data: ") for line in lines]
    events = [json.loads(line) for line in data if line != "[DONE]"]
    for event in events:
        if event.get("error") or event.get("type") in ("error", "response.failed"):
            raise WrongAnswerError(f"a failure midway: {event}")
    is_response = events and events[0].get("type") == "response.created"
    if not is_response and (not data or data[-1] != "[DONE]"):
        raise WrongAnswerError(f"the stream has no end: {body[-200:]!r}")
    return events


def _chat(body):
    drafts = []
    for choice in body["choices"]:
        message = choice["message"]
        draft = _Draft(message["content"] or "", reason=choice["finish_reason"])
        for place, call in enumerate(message.get("tool_calls") or ()):
            draft.call(place, call["function"]["name"], call["function"]["arguments"])
        drafts.append(draft)
    return _answer(drafts, body["usage"]["completion_tokens"])


def _chat_stream(events):
    return _chunks(events, _add_delta)


def _add_delta(draft, choice):
    draft.text += choice["delta"].get("content") or ""
    for call in choice["delta"].get("tool_calls") or ():
        function = call["function"]
        draft.call(call["index"], function.get("name") or "", function.get("arguments") or "")


def _completion(body):
    drafts = [_Draft(choice["text"], reason=choice["finish_reason"]) for choice in body["choices"]]
    return _answer(drafts, body["usage"]["completion_tokens"])


def _completion_stream(events):
    return _chunks(events, _add_text)


def _add_text(draft, choice):
    draft.text += choice["text"]


def _chunks(events, add):
    """Chunks of completions: choices in any order, and the counts at the end."""
    drafts = {}
    for event in events:
        for choice in event["choices"]:
            draft = drafts.setdefault(choice["index"], _Draft())
            add(draft, choice)
            draft.reason = choice["finish_reason"] or draft.reason
    ordered = [draft for _, draft in sorted(drafts.items())]
    return _answer(ordered, events[-1]["usage"]["completion_tokens"])


def _message(body):
    draft = _Draft(reason=body["stop_reason"])
    for place, block in enumerate(body["content"]):
        if block["type"] == "text":
            draft.text += block["text"]
        else:
            draft.call(place, block["name"], _in_order(block["input"]))
    return _answer([draft], body["usage"]["output_tokens"])


def _message_stream(events):
    draft, names, inputs, num_tokens = _Draft(), {}, {}, None
    for event in events:
        match event:
            case {"type": "content_block_start", "index": place, "content_block": {"name": name}}:
                names[place], inputs[place] = name, ""
            case {"type": "content_block_delta", "delta": {"text": text}}:
                draft.text += text
            case {"type": "content_block_delta", "index": place, "delta": {"partial_json": piece}}:
                inputs[place] += piece
            case {"type": "message_delta", "delta": delta, "usage": usage}:
                draft.reason, num_tokens = delta["stop_reason"], usage["output_tokens"]
    for place, name in names.items():
        draft.call(place, name, _in_order(json.loads(inputs[place] or "{}")))
    return _answer([draft], num_tokens)


def _response(body):
    draft = _Draft(reason=body["status"])
    for place, item in enumerate(body["output"]):
        if item["type"] == "message":
            draft.text += "".join(part["text"] for part in item["content"])
        else:
            draft.call(place, item["name"], item["arguments"])
    return _answer([draft], body["usage"]["output_tokens"])


def _response_stream(events):
    draft = _Draft()
    for event in events:
        match event:
            case {"type": "response.output_text.delta", "delta": text}:
                draft.text += text
            case {"type": "response.output_item.added", "output_index": place, "item": item}:
                if item["type"] == "function_call":
                    draft.call(place, item["name"])
            case {
                "type": "response.function_call_arguments.delta",
                "output_index": place,
                "delta": piece,
            }:
                draft.call(place, arguments=piece)
    last = events[-1]["response"]
    draft.reason = last["status"]
    return _answer([draft], last["usage"]["output_tokens"])


def _in_order(arguments):
    return json.dumps(arguments, sort_keys=True)


def _answer(drafts, num_tokens):
    if not drafts:
        raise WrongAnswerError("there is no choice")
    return Answer(tuple(draft.done() for draft in drafts), num_tokens)


_READERS = {
    "/v1/chat/completions": (_chat, _chat_stream),
    "/v1/completions": (_completion, _completion_stream),
    "/v1/messages": (_message, _message_stream),
    "/v1/responses": (_response, _response_stream),
}
