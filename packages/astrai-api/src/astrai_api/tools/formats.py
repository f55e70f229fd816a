"""The formats of tool calls, and which of them a model's chat template means."""

from collections.abc import Mapping
from types import MappingProxyType

from astrai_api.tools.format import ToolFormat
from astrai_api.tools.hermes import HermesFormat
from astrai_api.tools.llama3_json import Llama3JsonFormat
from astrai_api.tools.mistral import MistralFormat
from astrai_api.tools.pythonic import PythonicFormat

_ALL: tuple[ToolFormat, ...] = (
    HermesFormat(),
    Llama3JsonFormat(),
    PythonicFormat(),
    MistralFormat(),
)

FORMATS: Mapping[str, ToolFormat] = MappingProxyType({each.name: each for each in _ALL})
"""All formats by name."""

_SIGNS = (
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_start|>", "pythonic"),
    ("[func_name1(", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": ', "llama3_json"),
)
"""What tells a template's format, the surest first."""


def detect_tool_format(template: str | None, override: str | None = None) -> ToolFormat:
    """The format that a model calls tools in.

    Args:
        template: the source of its chat template; None without one.
        override: the name of a format, one of ``FORMATS``, which then is the one.

    Returns:
        Hermes where the template knows of no tools, as the default tool prompt teaches it, and
        where it has a format that is not known.
    """
    source = template or ""
    found = (name for sign, name in _SIGNS if sign in source)
    name = override or next(found, "hermes")
    if name == "mistral" and "[ARGS]" in source:
        return MistralFormat(tags_each=True)
    return FORMATS[name]
