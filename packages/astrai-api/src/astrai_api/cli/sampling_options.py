"""Options that say how a model is to answer, and the request fields they become."""

from typing import Annotated, Any

import typer

_PANEL = "How to answer"

System = Annotated[
    str | None,
    typer.Option(
        help="Instructions that the model gets before the conversation, such as 'Answer in "
        "French.'",
        rich_help_panel=_PANEL,
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Longest answer in tokens; a token is about three quarters of a word.",
        rich_help_panel=_PANEL,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="0 always takes the likeliest word, 1 follows the model's own odds, more is wilder.",
        rich_help_panel=_PANEL,
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Choose among the likeliest words that have this much of the odds together.",
        rich_help_panel=_PANEL,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(help="The same seed gives the same answer.", rich_help_panel=_PANEL),
]


def request_fields(**options: Any) -> dict[str, Any]:
    """Fields of a request: those options that were given."""
    return {name: value for name, value in options.items() if value is not None}
