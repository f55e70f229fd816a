"""The small part of an engine that the API uses, as typing protocols.

``astrai_engine.InferenceEngine`` fits it, ``astrai_api.testing.FakeEngine`` does, and so can any
other engine: only requests go in, and only events come out.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from typing import Any, Protocol

from astrai_engine.events import Event
from astrai_engine.live_frame import LiveFrame
from astrai_engine.request import GenerationRequest


class EngineInfo(Protocol):
    """What an engine runs, for people and for ``/v1/models``."""

    @property
    def model(self) -> str:
        """The model's own name."""

    @property
    def device(self) -> str:
        """The device it runs on, such as ``cpu`` or ``cuda:0``."""

    @property
    def dtype(self) -> str:
        """The type of weights and activations."""

    @property
    def backend(self) -> str:
        """The attention backend."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""

    @property
    def n_tokens(self) -> int:
        """Token slots in the K/V pool."""

    @property
    def page_size(self) -> int:
        """Token slots in a page."""

    @property
    def max_seq_len(self) -> int:
        """Tokens in a context, prompt and output together."""

    @property
    def max_batch_size(self) -> int:
        """Requests running at once."""

    @property
    def chat_template(self) -> str | None:
        """Source of the template that chats with tools use; None without one."""

    @property
    def sampling_defaults(self) -> Mapping[str, float]:
        """Sampling parameters for requests that leave them open: keywords of a generation."""


class TokenizerClient(Protocol):
    """A model's vocabulary. Texts are slow to tokenise: not on the event loop."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text.

        Args:
            text: any text.
            add_special_tokens: also add what the model expects around a raw text.
        """

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of tokens, without or with the names of control tokens."""

    def token_text(self, token_id: int) -> str:
        """A token as people read it: its text, or a control token's name."""

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of a token's text; none for control tokens."""


class RequestHandle(Protocol):
    """One submitted request."""

    @property
    def request_id(self) -> str:
        """The engine's own id, unique among all requests."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens in the prompt."""

    @property
    def prompt_end(self) -> str:
        """The last 64 characters of the prompt's text; empty when it came as token ids."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """Events until every choice has one ``Finished`` or ``Failed``."""

    def abort(self) -> None:
        """Stop the request and free what it holds; a no-op once it has ended."""


class EngineClient(Protocol):
    """An engine as the API sees it."""

    @property
    def name(self) -> str:
        """The model's name for clients."""

    @property
    def info(self) -> EngineInfo:
        """What the engine runs."""

    @property
    def is_healthy(self) -> bool:
        """Whether the engine can still serve requests."""

    @property
    def tokenizer(self) -> TokenizerClient:
        """The model's vocabulary."""

    async def submit_async(self, request: GenerationRequest) -> RequestHandle:
        """Render, tokenise and queue a request without blocking the event loop.

        Raises:
            RequestError: the request can never be served.
            QueueFullError: too many requests are waiting.
            EngineUnavailableError: the engine is shutting down or is lost.
        """

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        """Tokens of the request's prompt. Renders and tokenises in the calling thread."""

    def encode_prompt(self, request: GenerationRequest) -> list[int]:
        """Token ids of the request's prompt. Renders and tokenises in the calling thread.

        Raises:
            RequestError: the prompt can never be run.
        """

    def get_stats(self) -> Mapping[str, Any]:
        """Counters and gauges; those that :mod:`astrai_api.metrics` knows are exported."""

    def watch(self) -> AsyncGenerator[LiveFrame, None]:
        """What the engine does: the first frame at once, the end when it stops or has drained.

        Raises:
            EngineUnavailableError: the engine is lost or shut down.
        """

    def begin_drain(self) -> None:
        """Refuse new requests and let the running ones finish."""

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop after at most ``timeout`` seconds; requests still running fail."""
