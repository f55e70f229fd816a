"""Reasoning: what a model thinks between two tags before it answers."""

from dataclasses import dataclass, replace

from astrai_api.answer_parts import AnswerParser
from astrai_api.reasoning_parser import ReasoningParser
from astrai_engine.grammar import Grammar
from astrai_engine.reasoning_tags import ReasoningTags

_KNOWN = (
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<thought>", "</thought>"),
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningTags("\u25c1think\u25b7", "\u25c1/think\u25b7"),
)


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model marks its reasoning.

    Attributes:
        tags: what stands before and behind it.
    """

    tags: ReasoningTags

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The tags, which may be special tokens: the parser has to see their text."""
        return (self.tags.start, self.tags.end)

    def is_open(self, prompt_end: str) -> bool:
        """Whether the answer to a prompt begins inside the reasoning.

        Args:
            prompt_end: the last characters of the prompt.
        """
        return self.tags.is_open(prompt_end)

    def parser(self, inner: AnswerParser, *, is_open: bool) -> AnswerParser:
        """A parser that takes the reasoning off an answer.

        Args:
            inner: gets the rest, without white space before it.
            is_open: the answer begins inside the reasoning.
        """
        return ReasoningParser(self.tags, inner, is_open=is_open)

    def allow_before(self, grammar: Grammar) -> Grammar:
        """The same grammar, before whose text the model may reason first."""
        return replace(grammar, after=self.tags)


def detect_reasoning(template: str | None) -> ReasoningFormat | None:
    """The reasoning that a chat template knows of.

    Args:
        template: its source; None without one.

    Returns:
        None when it mentions no known tags.
    """
    known = (tags for tags in _KNOWN if template is not None and tags.end in template)
    tags = next(known, None)
    return None if tags is None else ReasoningFormat(tags)
