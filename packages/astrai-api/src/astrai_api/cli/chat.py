"""``astrai chat``: a conversation in the terminal."""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from astrai_api.cli.chat_commands import COMMANDS
from astrai_api.cli.chat_session import ChatSession
from astrai_api.cli.console import Quiet, Remarks
from astrai_api.cli.conversation import Conversation
from astrai_api.cli.exits import CommandError
from astrai_api.cli.sampling_options import (
    MaxTokens,
    Seed,
    System,
    Temperature,
    TopP,
    request_fields,
)
from astrai_api.cli.target import ApiKey, Model, Url, open_target

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

_PROMPT = ">>> "
_CONTINUED = "\\"


@app.command(epilog="In the chat: [bold]" + "[/bold], [bold]".join(COMMANDS) + "[/bold].")
def chat(
    *,
    url: Url = None,
    model: Model = None,
    api_key: ApiKey = None,
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    seed: Seed = None,
    load: Annotated[
        Path | None, typer.Option(help="Go on with a conversation that /save wrote.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Talk with a model in the terminal.

    Answers appear as they are made, with their speed below. The model remembers the conversation
    until /new. Ctrl-C stops an answer, Ctrl-D ends the chat. A line that ends with a backslash
    goes on in the next one. Piped input is a turn a line.
    """
    conversation = Conversation() if load is None else Conversation.load(load)
    conversation.system = conversation.system if system is None else system
    conversation.parameters |= request_fields(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed
    )
    remarks = Remarks(quiet=quiet)
    watched = sys.stdin.isatty()
    with open_target(url, model, api_key, remarks) as target:
        if watched:
            remarks.say(f"Talking with {target.title}. /help lists commands.")
        converse(ChatSession(target, conversation, remarks), _reader(watched), watched=watched)


def converse(session: ChatSession, read: Callable[[], str], *, watched: bool) -> None:
    """Take turns until the input ends or somebody says so.

    Args:
        session: the chat.
        read: gives the next line; raises EOFError at the end.
        watched: a person can react to an error; without one it ends the chat.

    Raises:
        CommandError: a turn failed, and nobody is there to try again.
    """
    while True:
        try:
            session.handle(_whole_turn(read))
        except EOFError:
            return
        except KeyboardInterrupt:
            session.remarks.say("\nCtrl-D or /exit ends the chat.")
        except CommandError as error:
            if not watched:
                raise
            session.remarks.say(str(error), style="red")


def _whole_turn(read: Callable[[], str]) -> str:
    lines = [read()]
    while lines[-1].endswith(_CONTINUED):
        lines[-1] = lines[-1].removesuffix(_CONTINUED)
        lines.append(read())
    return "\n".join(lines)


def _reader(watched: bool) -> Callable[[], str]:
    if not watched:
        return _next_line
    if find_spec("readline"):  # input() then knows editing and the history of lines
        import_module("readline")
    return lambda: input(_PROMPT)


def _next_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
