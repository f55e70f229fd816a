"""What somebody who watches costs: one reader of the live feed against none, over HTTP.

Streams decode all the time, read by another process, in rounds with and without a watcher in turn
(none, one, one, none, and so on), so that what drifts, drifts for both. A round is summed up by the
median time from step to step, which a busy moment of the machine does not move. Beside that, the
processor time spent on the view is counted where it is spent. Run it alone on the machine.
"""

import argparse
import asyncio
import statistics
import sys
import time
from contextlib import asynccontextmanager
from itertools import pairwise

import uvicorn

from astrai_api.application import create_app
from astrai_api.live import FrameEncoder
from astrai_api.settings import Settings
from astrai_engine import EngineConfig, InferenceEngine
from astrai_engine.live_view import LiveView

LOAD = """
import asyncio, httpx, sys

async def read(client, number):
    body = {"prompt": f"Story {number}:", "max_tokens": int(sys.argv[3]), "ignore_eos": True}
    body["stream"] = True
    async with client.stream("POST", sys.argv[1] + "/v1/completions", json=body) as response:
        async for _ in response.aiter_raw():
            pass

async def main():
    async with httpx.AsyncClient(timeout=None) as client:
        await asyncio.gather(*(read(client, number) for number in range(int(sys.argv[2]))))

asyncio.run(main())
"""
WATCH = """
import httpx, sys

accept = {"accept": "text/event-stream"}
with httpx.stream("GET", sys.argv[1] + "/engine/live", headers=accept, timeout=None) as response:
    for _ in response.iter_raw():
        pass
"""
WARM_SECONDS = 5


class Account:
    """Processor seconds of functions while they run."""

    def __init__(self, *functions):
        self.seconds = 0.0
        for owner, name in functions:
            setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function):
        def counted(*args):
            start = time.thread_time()
            try:
                return function(*args)
            finally:
                self.seconds += time.thread_time() - start

        return counted


@asynccontextmanager
async def child(script, *arguments):
    words = [str(argument) for argument in arguments]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, *words)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def median_cycle(engine, seconds):
    """Milliseconds from the beginning of a step to that of the next."""
    await asyncio.sleep(0.5)
    engine.start_trace()
    await asyncio.sleep(seconds)
    starts = [record.started_at for record in engine.stop_trace().records]
    return 1000 * statistics.median(b - a for a, b in pairwise(starts))


async def watched(engine, seconds, url):
    async with child(WATCH, url):
        return await median_cycle(engine, seconds)


async def run(options):
    account = Account((LiveView, "note_step"), (LiveView, "note_end"), (FrameEncoder, "encode"))
    pool = options.streams * (options.tokens + 64)
    engine = InferenceEngine(config=EngineConfig(max_batch_size=options.streams, n_tokens=pool))
    config = uvicorn.Config(
        create_app(engine=engine, settings=Settings()), port=0, log_level="error"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.05)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    changes, num_watched = [], 0.0
    async with child(LOAD, url, options.streams, options.tokens):
        await asyncio.sleep(WARM_SECONDS)
        for number in range(options.pairs):
            cycles = {}
            for is_watched in (False, True) if number % 2 == 0 else (True, False):
                measure = watched(engine, options.seconds, url) if is_watched else None
                cycles[is_watched] = await (measure or median_cycle(engine, options.seconds))
            num_watched += options.seconds + 0.5
            changes.append(100 * (cycles[True] / cycles[False] - 1))
            print(f"alone {cycles[False]:.2f}, watched {cycles[True]:.2f} ms a step")
    server.should_exit = True
    await serving
    error = statistics.stdev(changes) / len(changes) ** 0.5
    print(f"longer steps: mean {statistics.mean(changes):+.2f} %, standard error {error:.2f} %")
    print(f"the view took {100 * account.seconds / num_watched:.3f} % of a core while watched")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=4000, help="of each stream")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.5, help="of each round")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
