"""One answer of a model, as it comes: its pieces, and how fast it was."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from astrai_api.cli.exits import CommandError
from astrai_api.cli.http_errors import answered, refusal, unreachable
from astrai_api.cli.sse_reader import json_events
from astrai_api.cli.target import Target

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer.

    Attributes:
        text: what it says.
        is_reasoning: whether the model still thinks aloud.
    """

    text: str
    is_reasoning: bool = False


@dataclass
class StreamedAnswer:
    """An answer while it is streamed: iterate over its pieces, then read the rest.

    Attributes:
        text: the answer so far, without reasoning.
        finish_reason: why it ended; None before.
        usage: the server's counts; empty before the end, or where it gives none.
        first_seconds: from the request to the first piece.
        seconds: from the request to the end.
    """

    target: Target
    path: str
    body: Mapping[str, Any]
    text: str = field(default="", init=False)
    finish_reason: str | None = field(default=None, init=False)
    usage: Mapping[str, Any] = field(default_factory=dict, init=False)
    first_seconds: float = field(default=0.0, init=False)
    seconds: float = field(default=0.0, init=False)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """Send the request and give the pieces as they come.

        Raises:
            CommandError: the server refuses, fails midway, or goes away.
        """
        start = time.perf_counter()
        place = self.target.place
        body = {**self.body, "stream": True, "stream_options": {"include_usage": True}}
        request = self.target.request(self.path, body)
        with unreachable(place):
            response = await self.target.client.send(request, stream=True)
            async with aclosing(response):
                if not response.is_success:
                    await response.aread()
                    answered(response, place)
                async for event in json_events(response):
                    for piece in self._pieces(event):
                        self.first_seconds = self.first_seconds or time.perf_counter() - start
                        self.text += "" if piece.is_reasoning else piece.text
                        yield piece
        self.seconds = time.perf_counter() - start
        if self.finish_reason is None:
            raise CommandError(f"{place} broke the answer off; see its log.")

    def _pieces(self, event: Mapping[str, Any]) -> list[Piece]:
        if "error" in event:
            raise refusal(500, event, self.target.place)
        self.usage = event.get("usage") or self.usage
        pieces = []
        for choice in event.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            delta = choice.get("delta") or {}
            if reasoning := delta.get("reasoning_content"):
                pieces.append(Piece(reasoning, is_reasoning=True))
            if text := delta.get("content") or choice.get("text"):
                pieces.append(Piece(text))
        return pieces

    @property
    def speed(self) -> str:
        """How long it was and how fast it came, for people."""
        tokens = int(self.usage.get("completion_tokens", 0))
        if not tokens:
            return f"{self.seconds:.1f} s, the first text after {self.first_seconds:.2f} s"
        rate = (tokens - 1) / max(self.seconds - self.first_seconds, 1e-9)
        shown = f", {rate:,.0f} tokens/s" if tokens > 1 else ""
        first = f"first after {self.first_seconds:.2f} s"
        return f"{tokens} tokens in {self.seconds:.1f} s, {first}{shown}"
