"""Where a text ends in what may become a tag."""

from collections.abc import Iterable


def start_of_unfinished(text: str, tags: Iterable[str]) -> int:
    """The first place from which the rest of a text begins one of the tags.

    Args:
        text: text in which no tag is whole.
        tags: what may be under way.

    Returns:
        ``len(text)`` when none is.
    """
    return min((_start(text, tag) for tag in tags), default=len(text))


def _start(text: str, tag: str) -> int:
    first = max(0, len(text) - len(tag) + 1)
    return next((at for at in range(first, len(text)) if tag.startswith(text[at:])), len(text))
