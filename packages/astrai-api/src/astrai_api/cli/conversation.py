"""A conversation: what was said, how answers are to be made, and its file."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astrai_api.cli.exits import CommandError

PARAMETERS: dict[str, type[int] | type[float]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "max_tokens": int,
    "seed": int,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
}
"""What can be set of an answer, with the kind of number it is."""


@dataclass
class Conversation:
    """Turns of a user and a model.

    Attributes:
        system: instructions that come first; None without.
        parameters: fields of every request.
        turns: messages of user and assistant, alternating.
    """

    system: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    turns: list[dict[str, str]] = field(default_factory=list)

    def body(self) -> dict[str, Any]:
        """The request for the next answer."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return {**self.parameters, "messages": [*first, *self.turns]}

    def ask(self, text: str) -> None:
        """The user says something."""
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        """The model says something."""
        self.turns.append({"role": "assistant", "content": text})

    def undo(self) -> str:
        """Forget the last question and its answer; gives the question.

        Raises:
            CommandError: nothing has been asked.
        """
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        raise CommandError("Nothing has been asked yet.")

    def set(self, name: str, value: str) -> None:
        """Set a parameter of answers, or leave it to the server with ``default``.

        Raises:
            CommandError: there is no such parameter, or the value is no number.
        """
        if name not in PARAMETERS:
            raise CommandError(f"{name!r} can't be set; what can is {', '.join(PARAMETERS)}.")
        if value == "default":
            self.parameters.pop(name, None)
            return
        kind = PARAMETERS[name]
        try:
            self.parameters[name] = kind(value)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise CommandError(f"{name} is {wanted} or 'default', not {value!r}.") from None

    def save(self, path: Path) -> None:
        """Write everything into a JSON file.

        Raises:
            CommandError: it can't be written.
        """
        content = {"system": self.system, "parameters": self.parameters, "turns": self.turns}
        try:
            path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", "utf-8")
        except OSError as error:
            raise CommandError(f"{path} can't be written: {error.strerror}.") from error

    @classmethod
    def load(cls, path: Path) -> "Conversation":
        """Read what :meth:`save` wrote.

        Raises:
            CommandError: there is no such file, or it holds something else.
        """
        try:
            content = json.loads(path.read_text("utf-8"))
        except OSError as error:
            raise CommandError(f"{path} can't be read: {error.strerror}.") from error
        except ValueError:
            content = None
        if not isinstance(content, dict) or content.keys() != {"system", "parameters", "turns"}:
            raise CommandError(f"{path} holds no conversation; name a file that /save wrote.")
        return cls(**content)
