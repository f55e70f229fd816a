"""What a request wants done with its tools, checked, and the same for all protocols."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from astrai_api.errors import bad_request
from astrai_api.tools.tool import Tool

_NAME = re.compile(r"[a-zA-Z0-9_-]+")


@dataclass(frozen=True, kw_only=True)
class ToolChoice:
    """The tools of a request, and which of them may or must be called.

    Attributes:
        tools: all of them; the model is told of each.
        callable: those that may be called.
        is_forced: the answer has to be calls.
        is_parallel: it may be several.
    """

    tools: tuple[Tool, ...] = ()
    callable: tuple[Tool, ...] = ()
    is_forced: bool = False
    is_parallel: bool = True

    @property
    def is_limited(self) -> bool:
        """Whether the model is told of tools that it may not call."""
        return 0 < len(self.callable) < len(self.tools)


NO_TOOLS = ToolChoice()
"""What a request without any wants."""


def choose(
    tools: Sequence[Tool],
    mode: Literal["none", "auto", "required"],
    names: Sequence[str] | None = None,
    *,
    is_parallel: bool = True,
) -> ToolChoice:
    """What a wire protocol's ``tool_choice`` stands for.

    Args:
        tools: checked already.
        mode: whether tools are called never, as the model likes, or in any case.
        names: the only tools that may be called; None is all of them.
        is_parallel: an answer may have several calls.

    Raises:
        ApiError: 400; a call is asked for and there is no tool, or not one of that name.
    """
    if mode == "none":
        return ToolChoice(tools=tuple(tools))
    by_name = {tool.name: tool for tool in tools}
    absent = [name for name in names or () if name not in by_name]
    if absent:
        listed = ", ".join(by_name) or "none at all"
        raise bad_request(
            f"tool_choice names {absent[0]!r}, but tools has {listed}.", param="tool_choice"
        )
    wanted = tuple(tools) if names is None else tuple(by_name[name] for name in names)
    if mode == "required" and not wanted:
        raise bad_request("tool_choice asks for a tool, but tools has none.", param="tool_choice")
    return ToolChoice(
        tools=tuple(tools),
        callable=wanted,
        is_forced=mode == "required",
        is_parallel=is_parallel,
    )


def check_names(names: Sequence[str], *, longest: int, param: str) -> None:
    """Refuse names that a model could not call.

    Args:
        names: of all tools, in their order.
        longest: characters that a name may have.
        param: the wire field of a tool's name, with ``{}`` for its place.

    Raises:
        ApiError: 400, naming the field.
    """
    for place, name in enumerate(names):
        field = param.format(place)
        if not _NAME.fullmatch(name) or len(name) > longest:
            raise bad_request(
                f"{field} must have 1 to {longest} letters, digits, '_' and '-', not {name!r}.",
                param=field,
            )
        if name in names[:place]:
            raise bad_request(f"{field}: another tool has the name {name!r} too.", param=field)
