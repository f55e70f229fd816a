"""Options of ``astrai bench serve``."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

_LOAD = "How requests come"
_PROMPTS = "What is asked"
_LIMITS = "What is good enough"
_RESULTS = "Results"


def _option(panel: str, text: str, *names: str, **limits: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **limits)


Server = Annotated[str, typer.Argument(help="Any OpenAI-compatible server.", metavar="URL")]
ServedModel = Annotated[
    str | None, typer.Option(help="Name to ask for; the server's first without it.")
]

Requests = Annotated[int, _option(_LOAD, "How many.", "--requests", "-n", min=1)]
Concurrency = Annotated[
    int | None,
    _option(
        _LOAD,
        "Closed loop: so many clients, each of which asks again when it is answered (8 without "
        "--rate). With --rate, the most that may be open.",
        "--concurrency",
        "-c",
        min=1,
    ),
]
Rate = Annotated[
    float | None,
    _option(
        _LOAD,
        "Open loop: requests a second, sent whether or not earlier ones were answered, as "
        "independent people do. Latencies then include the time in the queue.",
        min=0.001,
    ),
]
ArrivalKind = Annotated[
    Literal["poisson", "constant"],
    _option(_LOAD, "Open loop: at random times (poisson) or evenly."),
]
Warmup = Annotated[int, _option(_LOAD, "Requests before it that don't count.", min=0)]
Seed = Annotated[int, _option(_LOAD, "Of arrivals and made-up prompts.")]

Prompts = Annotated[
    Path | None,
    _option(
        _PROMPTS,
        "File with a prompt a line: text, JSON with prompt or messages, or lines of a batch. "
        "Without it, prompts are made up.",
        exists=True,
        dir_okay=False,
    ),
]
PromptTokens = Annotated[
    int, _option(_PROMPTS, "Made-up prompts: about so many tokens each.", min=1)
]
SharedTokens = Annotated[
    int,
    _option(
        _PROMPTS,
        "Of these, how many are the same in all prompts of a group, as a system prompt is: what "
        "a prefix cache saves.",
        "--shared-prefix-tokens",
        min=0,
    ),
]
PrefixGroups = Annotated[int, _option(_PROMPTS, "How many such groups.", min=1)]
OutputTokens = Annotated[int, _option(_PROMPTS, "Length of every answer.", min=1)]
IgnoreEos = Annotated[
    bool,
    _option(
        _PROMPTS,
        "Have the model go on to that length. Turn it off for servers that don't know ignore_eos.",
    ),
]
Endpoint = Annotated[Literal["chat", "completions"], _option(_PROMPTS, "Which protocol to ask in.")]

MaxFirst = Annotated[
    float | None, _option(_LIMITS, "To the first text.", min=0, metavar="MILLISECONDS")
]
MaxToken = Annotated[
    float | None,
    _option(_LIMITS, "Mean time per token after the first.", min=0, metavar="MILLISECONDS"),
]
MaxTotal = Annotated[
    float | None, _option(_LIMITS, "To the end of the answer.", min=0, metavar="MILLISECONDS")
]
Require = Annotated[
    float | None,
    _option(
        _LIMITS,
        "Share of requests that has to be answered within the limits, such as 0.95; otherwise "
        "the exit status is 5.",
        min=0,
        max=1,
        metavar="SHARE",
    ),
]

Name = Annotated[str | None, _option(_RESULTS, "Of the run, for tables.")]
JsonFile = Annotated[
    Path | None, _option(_RESULTS, "Keep everything in a file, for compare.", "--json")
]
HtmlFile = Annotated[
    Path | None, _option(_RESULTS, "Write a report with charts; one file.", "--html")
]
