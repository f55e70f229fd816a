"""What comes with the end of a completion: why it ended, and what it took."""

from typing import Any

from astrai_engine.events import FinishReason, Usage

FINISH_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
}


def usage_counts(usage: Usage, reasoning_tokens: int | None = None) -> dict[str, Any]:
    """The ``usage`` object.

    Args:
        usage: the whole prompt, of which a part was cached, and the output.
        reasoning_tokens: the part of the output that is reasoning; None for models without.
    """
    counts: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if reasoning_tokens is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return counts
