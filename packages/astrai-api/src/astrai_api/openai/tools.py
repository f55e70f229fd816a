"""Tools and ``tool_choice`` of the OpenAI protocols."""

from collections.abc import Mapping, Sequence
from typing import Any

from astrai_api.errors import bad_request
from astrai_api.openai.response_schemas import ResponsesRequest, ResponseTool
from astrai_api.openai.schemas import ChatCompletionRequest, FunctionDefinition, ToolDef
from astrai_api.tools.choice import ToolChoice, check_names, choose
from astrai_api.tools.tool import Tool

_LONGEST_NAME = 64


def chat_tools(request: ChatCompletionRequest) -> ToolChoice:
    """The tools of a chat, and what it wants done with them.

    Raises:
        ApiError: 400; a tool is no function, a name is bad or there twice, or ``tool_choice``
            asks for what is not there.
    """
    functions = [_function(tool, f"tools[{i}]") for i, tool in enumerate(request.tools)]
    return _chosen(functions, "tools[{}].function.name", request)


def response_tools(request: ResponsesRequest) -> ToolChoice:
    """The function tools of a response, and what it wants done with them.

    Raises:
        ApiError: as :func:`chat_tools`; tools that are no functions are left out.
    """
    return _chosen(request.function_tools, "tools[{}].name", request)


def _chosen(
    functions: Sequence[FunctionDefinition | ResponseTool],
    param: str,
    request: ChatCompletionRequest | ResponsesRequest,
) -> ToolChoice:
    check_names([function.name for function in functions], longest=_LONGEST_NAME, param=param)
    tools = [_tool(function) for function in functions]
    mode, names = _wish(request.tool_choice)
    return choose(tools, mode, names, is_parallel=request.parallel_tool_calls)


def _function(tool: ToolDef, path: str) -> FunctionDefinition:
    if tool.type != "function":
        raise bad_request(
            f"{path}.type must be 'function': this server has no tools of type {tool.type!r}.",
            param=f"{path}.type",
        )
    if tool.function is None:
        raise bad_request(f"{path}.function is missing.", param=f"{path}.function")
    return tool.function


def _tool(function: FunctionDefinition | ResponseTool) -> Tool:
    parameters = function.parameters or {"type": "object", "properties": {}}
    return Tool(function.name, function.description or None, parameters, function.strict)


def _wish(given: str | Mapping[str, Any]) -> tuple[Any, Sequence[str] | None]:
    """Mode and names of a ``tool_choice``; both protocols' forms are read in both."""
    if isinstance(given, str):
        given = {"type": given}
    match given.get("type"):
        case "none" | "auto" | "required" as mode:
            return mode, None
        case "function":
            return "required", [_name(given)]
        case "allowed_tools":
            allowed = given.get("allowed_tools", given)
            return _allowed(allowed if isinstance(allowed, Mapping) else {})
        case _:
            raise bad_request(
                "tool_choice must be none, auto, required, or an object of the type function or "
                "allowed_tools.",
                param="tool_choice",
            )


def _allowed(given: Mapping[str, Any]) -> tuple[Any, Sequence[str]]:
    mode, entries = given.get("mode"), given.get("tools")
    if mode not in ("auto", "required") or not isinstance(entries, list) or not entries:
        raise bad_request(
            "tool_choice of the type allowed_tools needs a mode, auto or required, and tools.",
            param="tool_choice",
        )
    return mode, [_name(entry) for entry in entries]


def _name(entry: Any) -> str:
    holder = entry.get("function", entry) if isinstance(entry, Mapping) else None
    name = holder.get("name") if isinstance(holder, Mapping) else None
    if not isinstance(name, str):
        raise bad_request("tool_choice needs the name of a function.", param="tool_choice")
    return name
