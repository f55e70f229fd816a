"""One answer as clients see it: blocks of text, reasoning and tool calls, one after the other."""

import json
import uuid
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from astrai_api.answer_parts import (
    AnswerParser,
    AnswerPart,
    ContentText,
    ReasoningText,
    ToolCallArguments,
    ToolCallStart,
)
from astrai_engine.events import TokenDelta, TokenLogprob


class BlockKind(Enum):
    """What a block holds."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(slots=True)
class Block:
    """A stretch of an answer that is all of one kind.

    Attributes:
        kind: what it holds.
        place: which of the answer's blocks, from 0.
        call_number: which of the answer's calls, from 0; of calls only.
        name: the tool that is called; of calls only.
        key: makes ids of it; no other block has it.
        pieces: its text, or the arguments of the call as JSON.
        logprobs: entries of the tokens that came with its text.
    """

    kind: BlockKind
    place: int = 0
    call_number: int = 0
    name: str = ""
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class BlockStarted:
    """A block begins; the one before has ended."""

    block: Block


@dataclass(frozen=True, slots=True)
class BlockText:
    """More text of the block that began last."""

    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class BlockEnded:
    """A block is whole."""

    block: Block


BlockEvent: TypeAlias = BlockStarted | BlockText | BlockEnded


class Answer:
    """Takes the text of one choice apart as it comes.

    White space alone is no text: it is left out around calls and reasoning.

    Where calls are forced, small models repeat them until something stops them. So a call that
    says the same as an earlier one is left out there; what may still become one is held back.

    Args:
        parser: finds the parts.
        is_forced: the answer has to be calls, so that any other text is the beginning of one
            that was cut.
        max_calls: calls beyond these are left out; None keeps all.
        shows_reasoning: whether reasoning becomes blocks.

    Attributes:
        blocks: what there is so far.
        reasoning_tokens: how many tokens the reasoning took, its tags included.
    """

    def __init__(
        self,
        parser: AnswerParser,
        *,
        is_forced: bool = False,
        max_calls: int | None = None,
        shows_reasoning: bool = True,
    ) -> None:
        self.blocks: list[Block] = []
        self.reasoning_tokens = 0
        self._parser = parser
        self._is_forced = is_forced
        self._max_calls = max_calls
        self._shows_reasoning = shows_reasoning
        self._open: Block | None = None
        self._num_calls = 0
        self._blank = ""
        self._uncounted = 0
        self._repeat: tuple[str, str] | None = None

    def push(self, delta: TokenDelta) -> list[BlockEvent]:
        """Add new text; gives what it makes of the answer."""
        parts = self._parser.push(delta.text)
        self._count(parts, len(delta.token_ids))
        events = self._take(parts)
        if delta.logprobs:
            texts = (event.block for event in events if isinstance(event, BlockText))
            block = next(texts, self._open)
            if block is not None:
                block.logprobs += delta.logprobs
        return events

    def finish(self) -> list[BlockEvent]:
        """The end of the text. An answer of nothing is an empty text."""
        parts = self._parser.finish()
        self._count(parts, 0)
        events = self._take(parts)
        if not self.blocks and not self._is_forced:
            text = self._blank
            self._start(BlockKind.TEXT, events)
            self._add(text, events)
        self._close(events)
        return events

    @property
    def is_calls(self) -> bool:
        """Whether there are calls, and all of them are whole."""
        calls = [block for block in self.blocks if block.kind is BlockKind.CALL]
        return bool(calls) and all(_is_object(call.text) for call in calls)

    def _count(self, parts: list[AnswerPart], num_tokens: int) -> None:
        """Tokens whose text is held back, or is a tag, go with the text that follows."""
        self._uncounted += num_tokens
        if parts:
            if isinstance(parts[0], ReasoningText):
                self.reasoning_tokens += self._uncounted
            self._uncounted = 0

    def _take(self, parts: list[AnswerPart]) -> list[BlockEvent]:
        events: list[BlockEvent] = []
        for part in parts:
            match part:
                case ContentText(text):
                    self._content(text, events)
                case ReasoningText(text) if self._shows_reasoning:
                    if self._open is None or self._open.kind is not BlockKind.REASONING:
                        self._start(BlockKind.REASONING, events)
                    self._add(text, events)
                case ToolCallStart(index, name) if self._keeps(index):
                    self._call(name, events)
                case ToolCallArguments(index, text) if self._keeps(index):
                    self._arguments(text, events)
        return events

    def _call(self, name: str, events: list[BlockEvent]) -> None:
        self._repeat = (name, "") if self._is_forced and self._repeats(name, "") else None
        if self._repeat is None:
            self._start(BlockKind.CALL, events, name)

    def _arguments(self, text: str, events: list[BlockEvent]) -> None:
        if self._repeat is None:
            self._add(text, events)
            return
        name, held = self._repeat
        if self._repeats(name, held + text):
            self._repeat = (name, held + text)
        else:
            self._repeat = None
            self._start(BlockKind.CALL, events, name)
            self._add(held + text, events)

    def _repeats(self, name: str, arguments: str) -> bool:
        """Whether a call begins like an earlier one."""
        return any(block.name == name and block.text.startswith(arguments) for block in self.blocks)

    def _keeps(self, call: int) -> bool:
        return self._max_calls is None or call < self._max_calls

    def _content(self, text: str, events: list[BlockEvent]) -> None:
        if self._is_forced:
            return
        if self._open is None or self._open.kind is not BlockKind.TEXT:
            if text.isspace():
                self._blank += text
                return
            text = self._blank + text
            self._start(BlockKind.TEXT, events)
        self._add(text, events)

    def _start(self, kind: BlockKind, events: list[BlockEvent], name: str = "") -> None:
        self._close(events)
        self._open = Block(kind, len(self.blocks), self._num_calls, name)
        self._num_calls += kind is BlockKind.CALL
        self._blank = ""
        self.blocks.append(self._open)
        events.append(BlockStarted(self._open))

    def _add(self, text: str, events: list[BlockEvent]) -> None:
        if text and self._open is not None:
            self._open.pieces.append(text)
            events.append(BlockText(self._open, text))

    def _close(self, events: list[BlockEvent]) -> None:
        if self._open is not None:
            events.append(BlockEnded(self._open))
            self._open = None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
