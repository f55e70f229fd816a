"""The commands of a chat: lines that begin with a slash."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from astrai_api.cli.console import Remarks
from astrai_api.cli.conversation import PARAMETERS, Conversation
from astrai_api.cli.exits import CommandError

Outcome = tuple[Conversation, str | None]
"""The conversation from here on, and a question to ask at once."""


@dataclass(frozen=True)
class ChatCommand:
    """A command.

    Attributes:
        argument: what follows it, for people; empty if nothing does.
        summary: what it does.
        run: does it, given the conversation, the argument and where to speak.
    """

    argument: str
    summary: str
    run: Callable[[Conversation, str, Remarks], Outcome]


def run_command(conversation: Conversation, line: str, remarks: Remarks) -> Outcome:
    """Run a line that begins with a slash.

    Raises:
        CommandError: there is no such command, or it can't be done.
        EOFError: it was the last one.
    """
    name, _, argument = line.strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise CommandError(f"{name} is no command; /help lists them.")
    argument = argument.strip()
    needs_argument = command.argument and not command.argument.startswith("[")
    if needs_argument and not argument:
        raise CommandError(f"Write {name} {command.argument}.")
    return command.run(conversation, argument, remarks)


def _help(conversation: Conversation, _: str, remarks: Remarks) -> Outcome:
    for name, command in COMMANDS.items():
        remarks.say(f"{f'{name} {command.argument}':<22} {command.summary}")
    return conversation, None


def _exit(_conversation: Conversation, _: str, _remarks: Remarks) -> Outcome:
    raise EOFError


def _new(conversation: Conversation, _: str, remarks: Remarks) -> Outcome:
    remarks.say("A new conversation.")
    return Conversation(conversation.system, conversation.parameters), None


def _system(conversation: Conversation, text: str, remarks: Remarks) -> Outcome:
    conversation.system = text or None
    remarks.say(f"The system prompt is now: {text}" if text else "There is no system prompt now.")
    return conversation, None


def _set(conversation: Conversation, argument: str, remarks: Remarks) -> Outcome:
    name, _, value = argument.partition(" ")
    conversation.set(name, value.strip() or "default")
    remarks.say(_parameters(conversation))
    return conversation, None


def _show(conversation: Conversation, _: str, remarks: Remarks) -> Outcome:
    remarks.say(f"system: {conversation.system or 'none'}")
    remarks.say(_parameters(conversation))
    for turn in conversation.turns:
        remarks.say(f"{turn['role']}: {turn['content']}")
    return conversation, None


def _undo(conversation: Conversation, _: str, remarks: Remarks) -> Outcome:
    remarks.say(f"Forgotten: {conversation.undo()}")
    return conversation, None


def _retry(conversation: Conversation, _: str, _remarks: Remarks) -> Outcome:
    return conversation, conversation.undo()


def _save(conversation: Conversation, argument: str, remarks: Remarks) -> Outcome:
    path = Path(argument).expanduser()
    conversation.save(path)
    remarks.say(f"Saved in {path}.")
    return conversation, None


def _load(_: Conversation, argument: str, remarks: Remarks) -> Outcome:
    loaded = Conversation.load(Path(argument).expanduser())
    remarks.say(f"Loaded {len(loaded.turns)} messages.")
    return loaded, None


def _parameters(conversation: Conversation) -> str:
    given = [f"{name} {value}" for name, value in conversation.parameters.items()]
    return f"parameters: {', '.join(given) or 'all as the server has them'}"


COMMANDS = {
    "/help": ChatCommand("", "this list", _help),
    "/new": ChatCommand("", "forget the conversation; system prompt and parameters stay", _new),
    "/retry": ChatCommand("", "answer the last question again", _retry),
    "/undo": ChatCommand("", "forget the last question and its answer", _undo),
    "/system": ChatCommand("[TEXT]", "what the model is told first; empty: nothing", _system),
    "/set": ChatCommand("NAME VALUE", f"one of {', '.join(PARAMETERS)}; 'default' unsets", _set),
    "/show": ChatCommand("", "system prompt, parameters and all that was said", _show),
    "/save": ChatCommand("FILE", "write the conversation into a file", _save),
    "/load": ChatCommand("FILE", "go on with a saved one", _load),
    "/exit": ChatCommand("", "leave; Ctrl-D does too", _exit),
}
"""All of them, as ``/help`` lists them."""
