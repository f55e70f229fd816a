"""Errors of the engine.

AstraiError
├── ConfigurationError       a setting is wrong; raised while starting
│   ├── ModelNotFoundError   the named model is not there
│   └── ModelLoadError       the model is there but cannot be loaded
│       └── UnsupportedArchitectureError  nothing here runs models of its kind
├── RequestError             the request can never be served as it stands
│   ├── InvalidRequestError  a parameter is wrong; ``param`` names it
│   ├── PromptTooLongError   more tokens than the context (or the pool) holds
│   └── TemplateError        the chat template refuses these messages, or there is none
├── QueueFullError           try again in ``retry_after`` seconds
├── DeadlineExceededError    the request's own time limit passed
├── EngineUnavailableError   the engine is shutting down or is lost
└── GenerationError          the forward pass or the sampler failed for this request

Every message is a sentence that says what to do.
"""


class AstraiError(Exception):
    """Root of all errors raised by the engine."""


class ConfigurationError(AstraiError):
    """A setting is wrong; the message names it."""


class ModelNotFoundError(ConfigurationError):
    """The named model does not exist."""


class ModelLoadError(ConfigurationError):
    """The model exists but cannot be loaded."""


class UnsupportedArchitectureError(ModelLoadError):
    """Nothing here runs models of this architecture; the message names the nearest that is."""


class RequestError(AstraiError):
    """The request can never be served as it stands.

    Args:
        message: what is wrong and what to do.
        param: the name of the offending parameter, when there is one.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequestError(RequestError):
    """A parameter is missing, of the wrong type, or out of range."""


class PromptTooLongError(RequestError):
    """The prompt has more tokens than the context or the pool can hold.

    Args:
        num_tokens: tokens in the prompt.
        max_tokens: the most a prompt may have.
        context_length: the model's context in tokens, prompt and output together.
    """

    def __init__(self, num_tokens: int, max_tokens: int, context_length: int) -> None:
        super().__init__(
            f"prompt is too long: {num_tokens} tokens > {max_tokens} maximum. "
            f"This model's maximum context length is {context_length} tokens.",
            param="messages",
        )
        self.num_tokens = num_tokens
        self.max_tokens = max_tokens
        self.context_length = context_length


class TemplateError(RequestError):
    """The chat template refuses these messages, or the model has no template."""


class QueueFullError(AstraiError):
    """Too many requests are waiting.

    Args:
        retry_after: seconds after which trying again makes sense.
    """

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineExceededError(AstraiError):
    """The request's deadline passed before it finished."""


class EngineUnavailableError(AstraiError):
    """The engine is shutting down, or its loop is lost."""


class GenerationError(AstraiError):
    """The forward pass or the sampler failed for this request."""
