"""Errors of the cache.

KVCacheError
├── InvalidArgumentError an argument is out of range
├── DuplicateTaskError   the task id is in use
├── UnknownTaskError     no task has this id
├── PromptTooLongError   more tokens than a request may have, or than the pool holds
├── BindError            the step asked for cannot be bound
│   └── SharedPageError  it would write a page that others may read
└── PageStateError       the page is not in the state the operation needs
    └── DoubleFreeError  the page or row is free already

What may happen in normal running (no page or row is free just now) is not an error: those calls
return ``False``, ``None`` or ``-1``. Every error leaves the cache as it was before the call.
"""


class KVCacheError(Exception):
    """Root of all errors raised by the cache."""


class InvalidArgumentError(KVCacheError, ValueError):
    """An argument is out of range; the message names it."""


class DuplicateTaskError(KVCacheError, ValueError):
    """The task id is in use; free that task first, or choose another id."""


class UnknownTaskError(KVCacheError, LookupError):
    """No task has this id."""


class PromptTooLongError(KVCacheError, ValueError):
    """The prompt can never fit, however many other tasks are freed.

    Args:
        num_tokens: tokens asked for.
        max_tokens: the most one task can have in this pool.
    """

    def __init__(self, num_tokens: int, max_tokens: int) -> None:
        super().__init__(
            f"A task of {num_tokens} tokens can never fit: this pool holds at most {max_tokens} "
            "tokens for one task. Shorten the prompt, or build the pool with a larger "
            "max_seq_len or n_tokens."
        )
        self.num_tokens = num_tokens
        self.max_tokens = max_tokens


class BindError(KVCacheError, ValueError):
    """The step asked for cannot be bound; the message says which argument is wrong."""


class SharedPageError(BindError):
    """The step would write a page that another task or a later hit may read."""


class PageStateError(KVCacheError, ValueError):
    """The page is not in the state that the operation needs."""


class DoubleFreeError(PageStateError):
    """The page or row is free already."""
