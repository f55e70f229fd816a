"""Chat templates: messages to the text a model was trained on, by Hugging Face's conventions."""

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from astrai_engine.errors import ModelLoadError, TemplateError
from astrai_engine.tool_prompt import with_tools_as_text

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")

Message = dict[str, Any]


class ChatTemplate:
    """A model's chat template, compiled in a sandbox.

    Args:
        source: the template, or several by name: ``tool_use`` serves requests with tools,
            ``default`` all others.
        bos_token: text of the beginning-of-sequence token, or None.
        eos_token: text of the end-of-sequence token, or None.

    Raises:
        ModelLoadError: the template is not valid.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        bos_token: str | None = None,
        eos_token: str | None = None,
    ) -> None:
        named = {"default": source} if isinstance(source, str) else dict(source)
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self.sources = named
        self._tokens = {name: token for name, token in tokens.items() if token is not None}
        self._compiled = {name: _compile(text) for name, text in named.items()}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt for a chat.

        Messages are prepared as templates expect them: fields that are None and empty
        ``tool_calls`` are left out, and arguments of tool calls that come as JSON text can be
        read as a mapping too. If the template can't render a message without content, or with
        content in text parts, it gets that content as one text. If it knows of no tools, they are
        told in the text of the messages (:mod:`astrai_engine.tool_prompt`).

        Args:
            messages: the chat, oldest first.
            tools: tool definitions.
            add_generation_prompt: end with what makes the model answer.
            continue_final_message: end inside the last message, so that the model continues
                it; ``add_generation_prompt`` is then off.
            variables: anything else the template reads.

        Raises:
            TemplateError: the template refuses the messages; its own words are in the message.
        """
        given = {
            "tools": tools,
            "documents": None,
            **self._tokens,
            **variables,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        template = self._select(tools)
        if template.knows_tools:
            return self._render_chat(template, messages, given, continue_final_message)
        by_system, *by_user = with_tools_as_text(messages, tools)
        try:
            return self._render_chat(template, by_system, given, continue_final_message)
        except TemplateError:
            if not by_user:
                raise
        return self._render_chat(template, by_user[0], given, continue_final_message)

    @property
    def tool_source(self) -> str | None:
        """The source that chats with tools are rendered with."""
        return self.sources.get("tool_use", self.sources.get("default"))

    def _select(self, tools: Any) -> "_Compiled":
        if tools is not None and "tool_use" in self._compiled:
            return self._compiled["tool_use"]
        if "default" in self._compiled:
            return self._compiled["default"]
        raise TemplateError(
            f"The model's chat templates ({', '.join(self._compiled)}) have no default; "
            "send a raw prompt instead.",
            param="messages",
        )

    def _render_chat(
        self,
        template: "_Compiled",
        messages: Sequence[Mapping[str, Any]],
        given: dict[str, Any],
        continue_final_message: bool,
    ) -> str:
        prepared = [_prepared(message) for message in messages]
        if continue_final_message:
            prepared = [*prepared[:-1], _tagged(prepared)]
        text = self._render(template.template, prepared, given)
        return _cut_at_tag(text) if continue_final_message else text

    def _render(
        self, template: jinja2.Template, messages: list[Message], given: dict[str, Any]
    ) -> str:
        try:
            return template.render(messages=messages, **given)
        except (jinja2.UndefinedError, TypeError) as error:
            plain = [_with_text_content(message) for message in messages]
            if plain == messages:
                raise _refusal(error) from error
        except Exception as error:  # templates run arbitrary expressions
            raise _refusal(error) from error
        try:
            return template.render(messages=plain, **given)
        except Exception as error:
            raise _refusal(error) from error


def _refusal(error: Exception) -> TemplateError:
    return TemplateError(
        f"The model's chat template refuses these messages: {error}", param="messages"
    )


class _Compiled(NamedTuple):
    """A template, and whether it does anything with tools."""

    template: jinja2.Template
    knows_tools: bool


class _GenerationTag(Extension):
    """Renders ``{% generation %}``, which marks the assistant's text for training, as its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own declaration)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _JsonArguments(dict[str, Any]):
    """A tool call's arguments: a mapping that prints as the JSON text it came from."""

    def __init__(self, text: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._text = text

    def __str__(self) -> str:
        return self._text


def _compile(source: str) -> _Compiled:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    functions: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    environment.globals.update(functions)
    try:
        variables = find_undeclared_variables(environment.parse(source))
        knows_tools = "tools" in variables or "tool_calls" in source
        return _Compiled(environment.from_string(source), knows_tools)
    except jinja2.TemplateSyntaxError as error:
        raise ModelLoadError(
            f"The model's chat template is not valid (line {error.lineno}: {error.message}); "
            "give it a corrected one."
        ) from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; jinja's own filter would escape it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _prepared(message: Mapping[str, Any]) -> Message:
    prepared = {key: value for key, value in message.items() if value is not None}
    reasoning = next((prepared[key] for key in _REASONING_KEYS if key in prepared), None)
    if reasoning is not None:
        prepared = {"thinking": reasoning, **prepared, "reasoning_content": reasoning}
    calls = prepared.pop("tool_calls", None)
    if calls:
        prepared["tool_calls"] = [_prepared_call(call) for call in calls]
    return prepared


def _prepared_call(call: Any) -> Any:
    """Arguments may sit in the call or, as OpenAI has it, in its ``function``."""
    if not isinstance(call, Mapping):
        return call
    prepared = dict(call)
    if isinstance(prepared.get("function"), Mapping):
        prepared["function"] = _prepared_call(prepared["function"])
    arguments = prepared.get("arguments")
    if isinstance(arguments, str):
        prepared["arguments"] = _parsed_arguments(arguments)
    return prepared


def _parsed_arguments(text: str) -> Any:
    try:
        values = json.loads(text)
    except ValueError:
        return text
    return _JsonArguments(text, values) if isinstance(values, dict) else text


def _with_text_content(message: Message) -> Message:
    content = message.get("content")
    if isinstance(content, str):
        return message
    parts = content if isinstance(content, (list, tuple)) else ()
    texts = [part["text"] for part in parts if isinstance(part, Mapping) and "text" in part]
    return {**message, "content": "".join(texts)} if len(texts) == len(parts) else message


def _tagged(messages: list[Message]) -> Message:
    """The last message with a tag where the model is to continue."""
    final = messages[-1] if messages else {}
    content = final.get("content")
    if isinstance(content, str):
        return {**final, "content": content + _TAG}
    parts = [dict(part) for part in content or ()]
    for part in reversed(parts):
        if "text" in part:
            part["text"] += _TAG
            return {**final, "content": parts}
    raise TemplateError(
        "continue_final_message needs a last message with text to continue.", param="messages"
    )


def _cut_at_tag(rendered: str) -> str:
    at = rendered.rfind(_TAG.strip())
    if at < 0:
        raise TemplateError(
            "The model's chat template drops the last message, so it can't be continued.",
            param="messages",
        )
    # A template that trims messages took the tag's own space; it would have trimmed the text.
    keeps_space = rendered.startswith(_TAG, at)
    return rendered[:at] if keeps_space else rendered[:at].rstrip()
