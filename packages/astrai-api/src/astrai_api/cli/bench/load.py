"""How requests come: so many at a time (closed loop), or at their own pace (open loop)."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal

from astrai_api.cli.answer import StreamedAnswer
from astrai_api.cli.bench.records import RequestRecord
from astrai_api.cli.exits import CommandError
from astrai_api.cli.target import Target

Arrival = Literal["poisson", "constant"]


@dataclass(frozen=True)
class Load:
    """A load.

    Attributes:
        num_requests: in all.
        concurrency: open at once, at most; None is no limit.
        rate: requests a second, whether or not earlier ones were answered; None sends the next
            when one is answered.
        arrival: of an open loop: at random, as independent people come, or evenly.
        seed: of the randomness.
    """

    num_requests: int
    concurrency: int | None = None
    rate: float | None = None
    arrival: Arrival = "poisson"
    seed: int = 0

    @property
    def description(self) -> str:
        """In words."""
        if self.rate is None:
            return f"{self.num_requests} requests, {self.concurrency} at a time"
        most = "" if self.concurrency is None else f", at most {self.concurrency} open"
        return f"{self.num_requests} requests, {self.rate:g} a second ({self.arrival}){most}"

    def due_times(self) -> Iterator[float]:
        """When each request of an open loop is due, in seconds from the start."""
        assert self.rate is not None
        draw = random.Random(self.seed)
        now = 0.0
        for _ in range(self.num_requests):
            yield now
            now += draw.expovariate(self.rate) if self.arrival == "poisson" else 1 / self.rate

    async def run(
        self,
        target: Target,
        path: str,
        bodies: Iterable[dict[str, Any]],
        on_record: Callable[[RequestRecord], object],
    ) -> list[RequestRecord]:
        """Send the requests and measure them.

        Args:
            target: answers.
            path: where requests go.
            bodies: of the requests; as many are taken as are needed.
            on_record: told of each when it has ended.

        Returns:
            Records in the order in which requests were due.
        """
        start = time.perf_counter()

        async def one(body: dict[str, Any], due: float | None) -> RequestRecord:
            record = await measure(target, path, body, start=start, due=due)
            on_record(record)
            return record

        needed = islice(iter(bodies), self.num_requests)
        if self.rate is None:
            records = await self._closed_loop(needed, one)
        else:
            records = await self._open_loop(needed, one, start)
        return sorted(records, key=lambda record: record.due)

    async def _closed_loop(
        self,
        bodies: Iterator[dict[str, Any]],
        one: Callable[[dict[str, Any], float | None], Awaitable[RequestRecord]],
    ) -> list[RequestRecord]:
        async def client() -> list[RequestRecord]:
            return [await one(body, None) for body in bodies]

        clients = min(self.concurrency or self.num_requests, self.num_requests)
        found = await asyncio.gather(*(client() for _ in range(clients)))
        return [record for records in found for record in records]

    async def _open_loop(
        self,
        bodies: Iterator[dict[str, Any]],
        one: Callable[[dict[str, Any], float | None], Awaitable[RequestRecord]],
        start: float,
    ) -> list[RequestRecord]:
        places = asyncio.Semaphore(self.concurrency or self.num_requests)

        async def in_a_place(body: dict[str, Any], due: float) -> RequestRecord:
            async with places:
                return await one(body, due)

        tasks = []
        for body, due in zip(bodies, self.due_times(), strict=True):
            await asyncio.sleep(start + due - time.perf_counter())
            tasks.append(asyncio.ensure_future(in_a_place(body, due)))
        return list(await asyncio.gather(*tasks))


async def measure(
    target: Target, path: str, body: dict[str, Any], *, start: float, due: float | None
) -> RequestRecord:
    """Send one request and note when what came.

    Args:
        target: answers.
        path: where the request goes.
        body: of the request.
        start: of the run, by ``time.perf_counter``.
        due: seconds from the start at which it should have been sent; None is now.
    """
    due = time.perf_counter() - start if due is None else due
    answer = StreamedAnswer(target, path, body)
    stamps: list[float] = []
    error = None
    try:
        async for _ in answer:
            stamps.append(time.perf_counter() - start - due)  # noqa: PERF401 (kept on failure)
    except CommandError as failure:
        error = str(failure)
    total = time.perf_counter() - start - due
    details = answer.usage.get("prompt_tokens_details") or {}
    return RequestRecord(
        due=due,
        first=stamps[0] if stamps else None,
        gaps=[later - earlier for earlier, later in pairwise(stamps)],
        total=total,
        prompt_tokens=int(answer.usage.get("prompt_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
        output_tokens=int(answer.usage.get("completion_tokens") or len(stamps)),
        error=error,
    )
