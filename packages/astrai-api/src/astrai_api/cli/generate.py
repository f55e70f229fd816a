"""``astrai generate``: one prompt, one answer."""

import json
import sys
from typing import Annotated, Any

import typer

from astrai_api.cli.answer import CHAT, COMPLETIONS, StreamedAnswer
from astrai_api.cli.console import Quiet, Remarks
from astrai_api.cli.exits import usage_error
from astrai_api.cli.http_errors import answered, unreachable
from astrai_api.cli.sampling_options import (
    MaxTokens,
    Seed,
    System,
    Temperature,
    TopP,
    request_fields,
)
from astrai_api.cli.target import ApiKey, Model, Target, Url, open_target

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command(
    epilog="Examples: [bold]astrai generate 'Name three rivers.'[/bold] and [bold]git diff | "
    "astrai generate --system 'Summarise this change.'[/bold]"
)
def generate(
    prompt: Annotated[
        str, typer.Argument(help="What to ask; '-' or nothing reads it from standard input.")
    ] = "-",
    *,
    url: Url = None,
    model: Model = None,
    api_key: ApiKey = None,
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    seed: Seed = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it is, rather than answer it.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole response of the protocol as JSON.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Answer one prompt and exit, for scripts and pipes.

    The answer goes to standard output as it is made; how fast it came goes to standard error.
    """
    if raw and system is not None:
        raise usage_error("--raw continues a text as it is; leave --system out.")
    text = prompt
    if prompt == "-":
        text = "" if sys.stdin.isatty() else sys.stdin.read()
    if not text.strip():
        raise usage_error("There is nothing to answer: give a prompt, or pipe one in.")
    body = request_fields(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    path = COMPLETIONS if raw else CHAT
    body |= {"prompt": text} if raw else {"messages": _messages(system, text)}
    remarks = Remarks(quiet=quiet)
    with open_target(url, model, api_key, remarks) as target:
        if as_json:
            typer.echo(json.dumps(target.run(_whole(target, path, body)), ensure_ascii=False))
            return
        answer = StreamedAnswer(target, path, body)
        target.run(_print_pieces(answer))
    if remarks.is_terminal:
        remarks.say(answer.speed)


def _messages(system: str | None, text: str) -> list[dict[str, str]]:
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": text}]


async def _whole(target: Target, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with unreachable(target.place):
        response = await target.client.send(target.request(path, body))
    return answered(response, target.place)


async def _print_pieces(answer: StreamedAnswer) -> None:
    async for piece in answer:
        if not piece.is_reasoning:
            sys.stdout.write(piece.text)
            sys.stdout.flush()
    sys.stdout.write("\n")
