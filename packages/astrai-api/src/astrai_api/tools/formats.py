"""The formats of tool calls, and which one a model's chat template means."""

from collections.abc import Mapping
from types import MappingProxyType

from astrai_api.tools.format import ToolFormat
from astrai_api.tools.hermes import HermesFormat

FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {tool_format.name: tool_format for tool_format in (HermesFormat(),)}
)
"""All formats by name."""


def detect_tool_format(template: str | None, override: str | None = None) -> ToolFormat:
    """The format that a model calls tools in.

    Args:
        template: the source of its chat template; None without one.
        override: the name of a format, which then is the one.

    Returns:
        Hermes where the template knows of no tools: the default tool prompt teaches it.
    """
    if override is not None:
        return FORMATS[override]
    return FORMATS["hermes"]
