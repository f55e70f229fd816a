"""What a benchmark asks: prompts from a file, or made up, some with the same beginning."""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any

from astrai_api.cli.exits import usage_error

_WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have "
    "from or had an they which one you were her all she there would their we him been has "
    "when who will more no if out so said what up its about into than them can only other new "
    "some could time"
)
"""Short common words: about one token each in every vocabulary."""


@dataclass(frozen=True)
class SyntheticPrompts:
    """Random words, about a token each; equal for equal seeds.

    Attributes:
        prompt_tokens: in a prompt, its shared beginning included.
        shared_tokens: of them, that a prompt begins with as others of its group do.
        num_groups: different beginnings, taken in turns.
        seed: of the words.

    Raises:
        CommandError: more are shared than there are.
    """

    prompt_tokens: int
    shared_tokens: int = 0
    num_groups: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.shared_tokens > self.prompt_tokens:
            raise usage_error("--shared-prefix-tokens is a part of --prompt-tokens: not more.")

    @property
    def description(self) -> str:
        """In words."""
        shared = f" ({self.shared_tokens} shared in {self.num_groups} groups)"
        return f"about {self.prompt_tokens} tokens in{shared if self.shared_tokens else ''}"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        beginnings = [self._words(f"group {g}", self.shared_tokens) for g in range(self.num_groups)]
        for number in count():
            begin = beginnings[number % self.num_groups]
            own = self._words(f"prompt {number}", self.prompt_tokens - len(begin))
            yield {"prompt": " ".join([*begin, *own])}

    def _words(self, name: str, length: int) -> list[str]:
        return random.Random(f"{self.seed} {name}").choices(_WORDS.split(), k=length)


@dataclass(frozen=True)
class PromptFile:
    """Prompts of a file, from the first again after the last.

    JSON lines hold ``prompt`` or ``messages`` and may hold other fields of a request, or are lines
    of a batch; any other line is a prompt itself.

    Attributes:
        path: of the file.
    """

    path: Path

    @property
    def description(self) -> str:
        """In words."""
        return f"prompts of {self.path.name}"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        prompts = [_prompt(line) for line in self._lines() if line.strip()]
        if not prompts:
            raise usage_error(f"{self.path} has no prompts; write one a line.")
        return cycle(prompts)

    def _lines(self) -> list[str]:
        try:
            return self.path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise usage_error(f"{self.path} can't be read as text: {error}.") from error


def _prompt(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError:
        fields = line
    if not isinstance(fields, dict):
        return {"prompt": line.strip()}
    body = fields.get("body", fields)
    if not isinstance(body, dict) or not body.keys() & {"prompt", "messages"}:
        raise usage_error(f"A line has neither prompt nor messages: {line[:60]!r}")
    return {name: value for name, value in body.items() if name not in ("model", "stream")}


def as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The request of a chat for a prompt of either kind."""
    rest = {name: value for name, value in body.items() if name != "prompt"}
    if "messages" in rest:
        return rest
    return {"messages": [{"role": "user", "content": body["prompt"]}], **rest}


def as_completion(body: Mapping[str, Any]) -> dict[str, Any]:
    """The request of a text completion.

    Raises:
        CommandError: the prompt is a chat.
    """
    if "prompt" not in body:
        raise usage_error("The file holds chats; leave out --endpoint completions.")
    return dict(body)
