"""The engine as a program sees it: text in, text out.

    submit -> schedule -> execute -> commit -> emit

``submit`` runs on the caller's thread; the rest is :mod:`astrai_engine.loop`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from astrai_engine.admission import Admission
from astrai_engine.assembly import assemble
from astrai_engine.config import EngineConfig
from astrai_engine.delivery import EventSink
from astrai_engine.errors import InvalidRequestError
from astrai_engine.events import Failed, TokenDelta
from astrai_engine.handle import AsyncRequestHandle, RequestHandle, SyncRequestHandle
from astrai_engine.intake import Intake, Prepared
from astrai_engine.live_frame import LiveFrame
from astrai_engine.live_watch import Watch
from astrai_engine.loop import InferenceScheduler
from astrai_engine.offline import BatchResult, run_batch
from astrai_engine.request import GenerationRequest
from astrai_engine.result import GenerateResult
from astrai_engine.trace import StepTrace

_Handle = TypeVar("_Handle", bound=RequestHandle)


class InferenceEngine:
    """Loads a model and generates with it, many requests at once.

    Usable as a context manager, which shuts it down at the end.

    Args:
        model: hub id, checkpoint folder or ``.gguf`` file; None is ``config.model``, or the
            embedded default if that is None too.
        config: every other setting.

    Raises:
        ConfigurationError: the model can't be found or loaded, or a setting is wrong.
    """

    def __init__(self, model: str | None = None, *, config: EngineConfig | None = None) -> None:
        config = config or EngineConfig()
        if model is not None:
            config = replace(config, model=model)
        parts = assemble(config)
        self.info = parts.info
        self.name = parts.info.model
        self.tokenizer = parts.tokenizer
        self._parts = parts
        self._admission = Admission(config.max_batch_size, config.max_queue)
        self._loop = InferenceScheduler(
            parts.scheduler,
            parts.executor,
            on_closed=lambda _: self._admission.leave(),
            on_stopped=lambda: parts.tiers.save(parts.pool),
        )
        self._intake = Intake(parts, self._loop, self._admission)
        self._encoding = ThreadPoolExecutor(max_workers=2, thread_name_prefix="astrai-encode")
        self._loop.start()
        if parts.crew is not None:
            parts.crew.watch(self._loop.lose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    # ---- text in, text out ----

    @overload
    def generate(
        self, prompt: str, stream: Literal[False] = ..., *, n: Literal[1] = ..., **parameters: Any
    ) -> str: ...
    @overload
    def generate(
        self, prompt: str, stream: Literal[False] = ..., *, n: int, **parameters: Any
    ) -> list[str]: ...
    @overload
    def generate(
        self, prompt: list[str], stream: Literal[False] = ..., **parameters: Any
    ) -> list[str]: ...
    @overload
    def generate(
        self, prompt: str, stream: Literal[True], **parameters: Any
    ) -> Generator[str, None, None]: ...
    @overload
    def generate(
        self, prompt: list[str], stream: Literal[True], **parameters: Any
    ) -> Generator[tuple[int, str], None, None]: ...
    def generate(
        self, prompt: str | list[str], stream: bool = False, **parameters: Any
    ) -> str | list[str] | Generator[str, None, None] | Generator[tuple[int, str], None, None]:
        """Continue one prompt or several.

        Args:
            prompt: text, or a list of texts that run together.
            stream: give the text piece by piece. Generation starts with the first piece asked
                for, and closing the generator ends it.
            **parameters: any field of :class:`GenerationRequest`, and ``cb``, which is called
                with every new piece of text on the engine's thread.

        Returns:
            Of one prompt its text (a list of texts for ``n`` above 1), of several a list in
            their order. Streaming: a generator of pieces, or of (prompt number, piece).

        Raises:
            AstraiError: a request was refused or failed.
        """
        cb: Callable[[str], None] | None = parameters.pop("cb", None)
        prompts = [prompt] if isinstance(prompt, str) else prompt
        requests = [GenerationRequest(prompt=p, stream=stream, **parameters) for p in prompts]
        if stream:
            pieces = self._stream(requests, cb)
            return _texts(pieces) if isinstance(prompt, str) else pieces
        results = self._complete(requests, cb)
        if isinstance(prompt, str):
            return results[0] if requests[0].n > 1 else results[0][0]
        return [text for texts in results for text in texts]

    def generate_with_request(
        self, request: GenerationRequest
    ) -> str | list[str] | Generator[str, None, None]:
        """Run one request; ``request.stream`` chooses the form, as in :meth:`generate`."""
        if request.stream:
            return _texts(self._stream([request], None))
        texts = self._complete([request], None)[0]
        return texts if request.n > 1 else texts[0]

    async def generate_async(self, prompt: str, **parameters: Any) -> AsyncGenerator[str, None]:
        """Continue a prompt, piece by piece, on the running asyncio loop.

        Args:
            prompt: the text.
            **parameters: any field of :class:`GenerationRequest`.

        Raises:
            AstraiError: the request was refused or failed.
        """
        handle = await self.submit_async(GenerationRequest(prompt=prompt, **parameters))
        try:
            async for event in handle:
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, TokenDelta):
                    yield event.text
        finally:
            handle.abort()

    def run_batch(
        self,
        requests: Iterable[GenerationRequest],
        *,
        results_path: str | Path | None = None,
        progress: bool = True,
    ) -> list[BatchResult]:
        """Run any number of requests and give their results in order.

        A request that is refused or fails gets a result that says so; the others go on.

        Args:
            requests: what to run.
            results_path: JSON lines file that each result is appended to; a batch that was
                interrupted resumes from it.
            progress: show a progress bar on standard error.
        """

        def submit(request: GenerationRequest, sink: EventSink) -> str:
            request_id = self._intake.new_id()
            self._intake.start(self._intake.prepare(request), request_id, sink)
            return request_id

        return run_batch(
            submit,
            self.abort,
            requests,
            window=2 * self.info.max_batch_size,
            results_path=None if results_path is None else Path(results_path),
            progress=progress,
        )

    # ---- events ----

    def submit(self, request: GenerationRequest) -> SyncRequestHandle:
        """Start a request; its handle iterates over the events.

        Raises:
            RequestError: it can never be served as it stands.
            QueueFullError: too many requests wait.
            EngineUnavailableError: the engine is shutting down or lost.
        """
        return self._open(self._intake.prepare(request), SyncRequestHandle)

    async def submit_async(self, request: GenerationRequest) -> AsyncRequestHandle:
        """Start a request from asyncio; templates and tokenisation run on another thread.

        Raises:
            As :meth:`submit`.
        """
        self._intake.check(request)
        prepared = await asyncio.get_running_loop().run_in_executor(
            self._encoding, self._intake.prepare, request
        )
        return self._open(prepared, AsyncRequestHandle)

    def abort(self, request_id: str) -> None:
        """End a request; harmless when it has already ended."""
        self._loop.abort(request_id)

    def encode_prompt(self, request: GenerationRequest) -> list[int]:
        """The token ids that the prompt of a request becomes, without running it.

        Raises:
            RequestError: the request can never be served as it stands.
        """
        return self._intake.prepare(request).prompt.token_ids

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        """How many tokens the prompt of a request has, without running it."""
        return len(self.encode_prompt(request))

    # ---- state ----

    @property
    def is_healthy(self) -> bool:
        """Whether the engine can take and finish requests."""
        return self._loop.is_alive

    def get_stats(self) -> dict[str, Any]:
        """Counters and gauges; the names are stable."""
        counters = self._loop.counters
        return {
            "total_tasks": counters.requests,
            "total_tokens": counters.generated_tokens,
            "active_tasks": self._loop.num_running,
            "waiting_queue": self._loop.num_waiting,
            "prompt_tokens": counters.prompt_tokens,
            "cached_tokens": counters.cached_tokens,
            "finished": {reason.value: count for reason, count in counters.finished.items()},
            "hit_rate": counters.cached_tokens / max(counters.prompt_tokens, 1),
            "time_to_first_token": counters.first_token_seconds / max(counters.first_tokens, 1),
            "tokens_per_second": counters.tokens_per_second,
            "steps": counters.steps,
            "drafted_tokens": counters.drafted_tokens,
            "accepted_tokens": counters.accepted_tokens,
            "preemptions": self._loop.num_preemptions,
            "pages": {
                "total": self._parts.pool.num_pages,
                "free": self._parts.pool.num_free_pages,
                "cached": self._parts.pool.num_cached_pages,
                "in_use": self._parts.pool.num_in_use_pages,
                "evictions": self._parts.pool.counters.num_evictions,
                "restores": self._parts.pool.counters.num_page_restores,
            },
            "tiers": self._parts.tiers.stats(),
        }

    async def watch(self) -> AsyncGenerator[LiveFrame, None]:
        """What the engine does, up to four times a second, for as long as it is iterated.

        Frames come while something runs, and one when it has ended. The first comes at once, the
        end when the engine stops or has drained.

        Raises:
            EngineUnavailableError: the engine is lost or shut down.
        """
        watch = Watch()
        self._loop.watch(watch)
        try:
            async for frame in watch:
                yield frame
        finally:
            self._loop.unwatch(watch)

    def start_trace(self, max_steps: int = 10_000) -> None:
        """Record what runs in each step from now on, keeping the last ``max_steps``."""
        self._loop.trace = StepTrace(max_steps)

    def stop_trace(self) -> StepTrace:
        """End the recording and give it; empty if there was none."""
        trace, self._loop.trace = self._loop.trace, None
        return trace or StepTrace(0)

    def begin_drain(self) -> None:
        """Refuse new requests from now on; running and waiting ones go on.

        Whoever watches is told that it is over when the last of them has ended.
        """
        self._admission.close()
        self._loop.end_watch_when_idle()

    def shutdown(self, timeout: float | None = 0.0) -> None:
        """Refuse new requests, let the others finish for ``timeout`` seconds, then stop.

        What still runs then is aborted. Where there is a disk tier, what the prefix cache holds
        is then saved. Calling it again does nothing.

        Args:
            timeout: None waits for as long as it takes.
        """
        self.begin_drain()
        self._admission.wait_empty(timeout)
        self._loop.stop()
        if self._parts.crew is not None:
            self._parts.crew.close()
        self._parts.executor.close()
        self._parts.tiers.close()
        self._encoding.shutdown(wait=False, cancel_futures=True)

    # ---- internals ----

    def _open(self, prepared: Prepared, handle_type: type[_Handle]) -> _Handle:
        handle = handle_type(
            self._intake.new_id(),
            num_prompt_tokens=len(prepared.prompt.token_ids),
            prompt_end=prepared.prompt.end,
            num_choices=prepared.request.n,
            abort=self.abort,
        )
        self._intake.start(prepared, handle.request_id, handle)
        return handle

    def _complete(
        self, requests: Sequence[GenerationRequest], cb: Callable[[str], None] | None
    ) -> list[list[str]]:
        result, request_ids = self._collect(requests, cb)
        try:
            result.wait_completion()
        finally:
            for request_id in request_ids:
                self.abort(request_id)
        return [result.choices(index) for index in range(len(requests))]

    def _stream(
        self, requests: Sequence[GenerationRequest], cb: Callable[[str], None] | None
    ) -> Generator[tuple[int, str], None, None]:
        if any(request.n > 1 for request in requests):
            raise InvalidRequestError(
                "n above 1 can't be streamed as plain text; use submit(), whose events say "
                "which choice they belong to.",
                param="n",
            )
        result, request_ids = self._collect(requests, cb)
        try:
            while not result.is_complete:
                result.wait()
                yield from result.pop_all()
            yield from result.pop_all()
        finally:
            for request_id in request_ids:
                self.abort(request_id)

    def _collect(
        self, requests: Sequence[GenerationRequest], cb: Callable[[str], None] | None
    ) -> tuple[GenerateResult, list[str]]:
        """Start requests whose texts one result collects; many wait for places in the queue."""
        prepared = [self._intake.prepare(request) for request in requests]
        result = GenerateResult(len(requests), cb=cb)
        sinks = [result.sink(index, request.n) for index, request in enumerate(requests)]
        request_ids: list[str] = []
        try:
            for one, sink in zip(prepared, sinks, strict=True):
                request_id = self._intake.new_id()
                self._intake.start(one, request_id, sink, wait=len(requests) > 1)
                request_ids.append(request_id)
        except BaseException:
            for request_id in request_ids:
                self.abort(request_id)
            raise
        return result, request_ids


def _texts(pieces: Generator[tuple[int, str], None, None]) -> Generator[str, None, None]:
    """Pieces without their prompt number; closing it closes what it reads."""
    with closing(pieces):
        for _, text in pieces:
            yield text
