"""Tools and ``tool_choice`` of the Anthropic protocol."""

from typing import Any

from astrai_api.anthropic.schemas import MessagesRequest, ToolDef
from astrai_api.errors import bad_request
from astrai_api.tools.choice import ToolChoice, check_names, choose
from astrai_api.tools.tool import Tool

_LONGEST_NAME = 128
_MODES: dict[str, Any] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


def message_tools(request: MessagesRequest) -> ToolChoice:
    """The tools of a request, and what it wants done with them.

    Raises:
        ApiError: 400; a tool is one of the provider's own, a name is bad or there twice, or
            ``tool_choice`` asks for what is not there.
    """
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools)]
    names = [tool.name for tool in tools]
    check_names(names, longest=_LONGEST_NAME, param="tools[{}].name")
    wish = request.tool_choice
    kind = wish.get("type", "auto")
    if not isinstance(kind, str) or kind not in _MODES:
        raise bad_request(
            f"tool_choice.type must be one of {', '.join(_MODES)}.", param="tool_choice"
        )
    named = [str(wish.get("name", ""))] if kind == "tool" else None
    is_parallel = wish.get("disable_parallel_tool_use") is not True
    return choose(tools, _MODES[kind], named, is_parallel=is_parallel)


def _tool(tool: ToolDef, path: str) -> Tool:
    if tool.type != "custom":
        raise bad_request(
            f"{path}.type: this server has no tool of the type {tool.type!r}; define it as a "
            "custom tool, with an input_schema.",
            param=f"{path}.type",
        )
    schema = tool.input_schema or {"type": "object", "properties": {}}
    return Tool(tool.name, tool.description or None, schema, tool.strict)
