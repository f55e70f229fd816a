"""What comes with the end of a completion: why it ended, and what it took."""

from typing import Any

from astrai_engine.events import FinishReason, Usage

FINISH_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
}


def usage_counts(usage: Usage) -> dict[str, Any]:
    """The ``usage`` object: the whole prompt, of which a part was cached, and the output."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
