"""Variables of the chat template that a request's parameters stand for."""

from collections.abc import Mapping
from typing import Any

_NO_REASONING = {"enable_thinking": False, "thinking": False}
"""The switch, by the names that templates of reasoning models read."""


def template_variables(given: Mapping[str, Any], *, reasons: bool = True) -> dict[str, Any]:
    """What the chat template gets.

    Args:
        given: the request's own ``chat_template_kwargs``, which win.
        reasons: False when the request wants no reasoning.
    """
    return {**({} if reasons else _NO_REASONING), **given}
