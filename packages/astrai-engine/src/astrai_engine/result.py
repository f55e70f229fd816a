"""Results for callers that block or take a callback: one object, any number of prompts."""

import threading
from collections.abc import Callable, Sequence

from astrai_engine.errors import AstraiError, EngineUnavailableError
from astrai_engine.events import Event, Failed, Finished, FinishReason, TokenDelta


class GenerateResult:
    """Collects the text of one or several prompts as it is generated.

    Args:
        num_prompts: how many prompts it collects.
        cb: called as ``cb(token)`` with every new piece of text, on the engine's thread; it must
            return quickly.
    """

    def __init__(self, num_prompts: int = 1, *, cb: Callable[[str], None] | None = None) -> None:
        self._texts: list[list[list[str]]] = [[] for _ in range(num_prompts)]
        self._new: list[tuple[int, str]] = []
        self._num_open = 0
        self._error: AstraiError | None = None
        self._cb = cb
        self._changed = threading.Event()
        self._completed = threading.Condition()

    def sink(self, prompt_index: int, num_choices: int = 1) -> "PromptSink":
        """Where the events of one prompt go; call it before that prompt is submitted."""
        self._texts[prompt_index] = [[] for _ in range(num_choices)]
        self._num_open += num_choices
        return PromptSink(self, prompt_index)

    @property
    def is_complete(self) -> bool:
        """Whether every choice of every prompt has ended."""
        return self._num_open == 0

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for new text or an ending; False if ``timeout`` seconds passed first."""
        arrived = self._changed.wait(timeout)
        self._changed.clear()
        return arrived

    def wait_completion(self, timeout: float | None = None) -> bool:
        """Wait until everything has ended; False if ``timeout`` seconds passed first."""
        with self._completed:
            return self._completed.wait_for(lambda: self.is_complete, timeout)

    def pop_all(self) -> list[tuple[int, str]]:
        """The (prompt, text) pieces that arrived since the last call.

        Raises:
            AstraiError: a prompt failed.
        """
        with self._completed:
            new, self._new = self._new, []
            if self._error is not None and not new:
                raise self._error
            return new

    def choices(self, prompt_index: int = 0) -> list[str]:
        """The texts of all choices of one prompt.

        Raises:
            AstraiError: a prompt failed.
        """
        if self._error is not None:
            raise self._error
        return ["".join(pieces) for pieces in self._texts[prompt_index]]

    def _take(self, prompt_index: int, event: Event) -> None:
        with self._completed:
            if isinstance(event, TokenDelta):
                self._texts[prompt_index][event.index].append(event.text)
                self._new.append((prompt_index, event.text))
            elif isinstance(event, Finished | Failed):
                self._num_open -= 1
                self._error = self._error or _error_of(event)
                if self.is_complete:
                    self._completed.notify_all()
        self._changed.set()
        if self._cb is not None and isinstance(event, TokenDelta):
            self._cb(event.text)


class PromptSink:
    """Delivers the events of one prompt to the result that collects it."""

    loop = None

    def __init__(self, result: GenerateResult, prompt_index: int) -> None:
        self._result = result
        self._prompt_index = prompt_index

    def deliver(self, events: Sequence[Event]) -> None:
        """Take events; runs on the engine's thread."""
        for event in events:
            self._result._take(self._prompt_index, event)


def _error_of(event: Finished | Failed) -> AstraiError | None:
    if isinstance(event, Failed):
        return event.error
    if event.reason is FinishReason.ABORTED:
        return EngineUnavailableError("The generation was aborted before it finished.")
    return None
