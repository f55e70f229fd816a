"""Sends the requests of a batch, many at a time, until each has its result."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from astrai_api.cli.batch_line import BatchLine
from astrai_api.cli.exits import CommandError, ExitCode
from astrai_api.cli.target import Target

OnResult = Callable[[BatchLine, dict[str, Any]], None]

_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 30.0


class BatchRunner:
    """Runs lines against a target.

    A server that is full is waited for; one that fails is tried again.

    Args:
        target: answers.
        concurrency: requests open at once.
        retries: how often a request is sent again after the server failed.
        wait_seconds: before the first of these; doubles with each.
    """

    def __init__(
        self,
        target: Target,
        *,
        concurrency: int,
        retries: int,
        wait_seconds: float = _WAIT_SECONDS,
    ) -> None:
        self._target = target
        self._concurrency = concurrency
        self._retries = retries
        self._wait_seconds = wait_seconds

    async def run(self, lines: Iterator[BatchLine], on_result: OnResult) -> None:
        """Send every line; results come in any order.

        Raises:
            CommandError: the server is gone.
        """

        async def work() -> None:
            for line in lines:
                on_result(line, await self._result(line))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._concurrency):
                    group.create_task(work())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _result(self, line: BatchLine) -> dict[str, Any]:
        if line.problem is not None:
            return line.refused()
        failures = 0
        while True:
            response = await self._send(line, failures)
            if response is not None:
                failures += response.status_code >= 500
                if not _may_pass(response.status_code) or failures > self._retries:
                    break
            else:
                failures += 1
            await asyncio.sleep(self._wait(response, failures))
        request_id = response.headers.get("x-request-id")
        return line.answered(response.status_code, request_id, _body(response))

    async def _send(self, line: BatchLine, failures: int) -> httpx.Response | None:
        """The answer; None where the connection failed and can be tried again."""
        headers = {"x-request-id": f"batch_req_{line.key}"}
        request = self._target.request(line.path, line.body or {}, headers)
        try:
            return await self._target.client.send(request)
        except httpx.TransportError as error:
            if failures < self._retries:
                return None
            raise CommandError(
                f"{self._target.place} stopped answering ({error or type(error).__name__}). What "
                "is done is kept: run the same command again to go on.",
                ExitCode.UNREACHABLE,
            ) from error

    def _wait(self, response: httpx.Response | None, failures: int) -> float:
        told = "" if response is None else response.headers.get("retry-after", "")
        if told.isdigit():
            return min(float(told), _LONGEST_WAIT_SECONDS)
        return float(min(self._wait_seconds * 2 ** max(failures - 1, 0), _LONGEST_WAIT_SECONDS))


def _may_pass(status: int) -> bool:
    """Whether the same request may get another answer later."""
    return status == httpx.codes.TOO_MANY_REQUESTS or status >= 500


def _body(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text
