"""A chat while it runs: turns go to the model, lines that begin with a slash to us."""

import sys

from astrai_api.cli.answer import CHAT, StreamedAnswer
from astrai_api.cli.chat_commands import run_command
from astrai_api.cli.console import Remarks
from astrai_api.cli.conversation import Conversation
from astrai_api.cli.exits import CommandError
from astrai_api.cli.target import Target

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class ChatSession:
    """Connects a conversation with what answers.

    Args:
        target: answers.
        conversation: so far.
        remarks: for the speed of answers, and for what commands say.
    """

    def __init__(self, target: Target, conversation: Conversation, remarks: Remarks) -> None:
        self.conversation = conversation
        self.remarks = remarks
        self._target = target

    def handle(self, line: str) -> None:
        """A turn of the user, or a command.

        Raises:
            CommandError: it can't be done.
            EOFError: the user has had enough.
        """
        if line.startswith("/"):
            self.conversation, question = run_command(self.conversation, line, self.remarks)
        else:
            question = line
        if question is not None and question.strip():
            self._answer(question)

    def _answer(self, question: str) -> None:
        self.conversation.ask(question)
        answer = StreamedAnswer(self._target, CHAT, self.conversation.body())
        try:
            self._target.run(_show(answer))
        except CommandError:
            self.conversation.undo()
            raise
        except KeyboardInterrupt:
            sys.stdout.write(_PLAIN if sys.stdout.isatty() else "")
            self.remarks.say("\nStopped; what there is of the answer is kept.")
        if not answer.text:
            self.conversation.undo()
            return
        self.conversation.answer(answer.text)
        if self.remarks.is_terminal and answer.seconds:
            self.remarks.say(answer.speed)


async def _show(answer: StreamedAnswer) -> None:
    """Print an answer as it comes; reasoning is dim, and only for people."""
    colours = sys.stdout.isatty()
    thinking = False
    async for piece in answer:
        if piece.is_reasoning and not colours:
            continue
        if piece.is_reasoning != thinking:
            thinking = piece.is_reasoning
            sys.stdout.write(_DIM if thinking else f"{_PLAIN}\n\n")
        sys.stdout.write(piece.text)
        sys.stdout.flush()
    sys.stdout.write(f"{_PLAIN}\n" if thinking else "\n")
