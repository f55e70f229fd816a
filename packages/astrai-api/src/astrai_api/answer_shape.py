"""What the answers to one request have to look like, and how the model writes them."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from astrai_api.answer import Answer
from astrai_api.client import EngineClient
from astrai_api.plain import PlainAnswer
from astrai_api.reasoning import ReasoningFormat, detect_reasoning
from astrai_api.tools.choice import NO_TOOLS, ToolChoice
from astrai_api.tools.format import ToolFormat
from astrai_api.tools.formats import detect_tool_format
from astrai_api.tools.tool import Tool
from astrai_engine.grammar import Grammar

_reasoning_of = lru_cache(detect_reasoning)
_format_of = lru_cache(detect_tool_format)


@dataclass(frozen=True, kw_only=True)
class AnswerShape:
    """Holds the model to what the request wants, and takes its text apart.

    The default holds it to nothing, and all of the text is for the user.

    Attributes:
        choice: the tools, and which of them may or must be called.
        output: what text has to look like that is no call.
        format: how the model writes calls; None when it may make none.
        reasoning: how the model marks reasoning; None when it has none.
        shows_reasoning: whether the client wants to see it.
    """

    choice: ToolChoice = NO_TOOLS
    output: Grammar | None = None
    format: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    shows_reasoning: bool = True

    @classmethod
    def of_chat(
        cls,
        engine: EngineClient,
        *,
        choice: ToolChoice,
        output: Grammar | None = None,
        tool_parser: str | None = None,
        shows_reasoning: bool = True,
    ) -> "AnswerShape":
        """The shape of a chat's answers, in the words of the model's own chat template.

        Args:
            engine: runs the model.
            choice: the tools, and which of them may or must be called.
            output: what text has to look like that is no call.
            tool_parser: name of a tool format, if the operator named one.
            shows_reasoning: whether the client wants to see reasoning.
        """
        template = engine.info.chat_template
        return cls(
            choice=choice,
            output=output,
            format=_format_of(template, tool_parser) if choice.callable else None,
            reasoning=_reasoning_of(template),
            shows_reasoning=shows_reasoning,
        )

    @property
    def is_plain(self) -> bool:
        """Whether all of the text is for the user, as it is."""
        return self.format is None and self.reasoning is None

    def request_fields(self) -> dict[str, Any]:
        """The keywords of a ``GenerationRequest`` that this takes.

        Raises:
            InvalidRequestError: the tools' schemas are too large or too deep.
        """
        return {
            "tools": [tool.as_openai() for tool in self.choice.tools] or None,
            "grammar": self._grammar(),
            "visible_special_tokens": [
                *(self.format.special_tokens if self.format else ()),
                *(self.reasoning.special_tokens if self.reasoning else ()),
            ],
        }

    def new_answer(self, prompt_end: str) -> Answer | None:
        """What takes the text of one choice apart; None when there is nothing to take apart.

        Args:
            prompt_end: the last characters of the prompt.
        """
        if self.is_plain:
            return None
        parser = self.format.parser(self.choice.callable) if self.format else PlainAnswer()
        if self.reasoning is not None:
            parser = self.reasoning.parser(parser, is_open=self.reasoning.is_open(prompt_end))
        return Answer(
            parser,
            is_forced=self.choice.is_forced,
            max_calls=None if self.choice.is_parallel else 1,
            shows_reasoning=self.shows_reasoning,
        )

    def _grammar(self) -> Grammar | None:
        grammar = self._written_grammar()
        if grammar is None or self.reasoning is None:
            return grammar
        return self.reasoning.allow_before(grammar)

    def _written_grammar(self) -> Grammar | None:
        choice = self.choice
        if self.format is None:
            return self.output
        if choice.is_forced:
            calls = self.format.grammar(choice.callable, parallel=choice.is_parallel)
            return replace(calls, closes=True)
        if self.output is not None:
            tools = [_callable_anyhow(tool) for tool in choice.callable]
            calls = self.format.grammar(tools, parallel=choice.is_parallel)
            return replace(self.output, otherwise=calls)
        if choice.is_limited:
            return self.format.auto_grammar([_callable_anyhow(tool) for tool in choice.callable])
        return self.format.auto_grammar(choice.callable)


def _callable_anyhow(tool: Tool) -> Tool:
    """For a grammar that names all tools: arguments are enforced of strict ones only."""
    return tool if tool.strict else replace(tool, parameters={"type": "object"}, strict=True)
