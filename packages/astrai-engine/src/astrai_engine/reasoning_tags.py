"""The tags that a model writes its reasoning between."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """What stands around reasoning.

    Attributes:
        start: before it, such as ``<think>``.
        end: behind it.
    """

    start: str
    end: str

    def is_open(self, prompt_end: str) -> bool:
        """Whether a prompt stops where the reasoning begins, so that the answer is inside it.

        Args:
            prompt_end: the last characters of the prompt.
        """
        return prompt_end.rstrip().endswith(self.start)

    def is_closed(self, prompt_end: str) -> bool:
        """Whether a prompt stops where the reasoning has ended, so that none is wanted."""
        return prompt_end.rstrip().endswith(self.end)
