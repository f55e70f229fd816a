"""Tokens per second over HTTP, beside the engine's own on the same work.

In turns on the embedded model: the engine alone, one asyncio task reading each request; and the
server, read through raw sockets by a client in another process. What that client takes of the
processor it takes from the engine, on this machine and on no other, so its share of all cores is
measured and taken off.

    python throughput.py --streams 32 --tokens 64 --rounds 3
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import selectors
import socket
import statistics
import threading
import time

import uvicorn

from astrai_api import Settings, create_app
from astrai_engine import GenerationRequest, InferenceEngine


def fields(number, num_tokens):
    """One request, in words that both sides take."""
    return {
        "prompt": f"A tale of number {number}, in which a fox crosses the sea:",
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


def engine_seconds(engine, streams, tokens):
    """How long the engine takes alone."""

    async def read(number):
        async for _ in await engine.submit_async(GenerationRequest(**fields(number, tokens))):
            pass

    async def read_all():
        await asyncio.gather(*map(read, range(streams)))

    start = time.perf_counter()
    asyncio.run(read_all())
    return time.perf_counter() - start


def client(port, streams, tokens, results):
    """Read all streams; how long that takes, and the processor time it takes."""
    start, cpu = time.perf_counter(), time.process_time()
    selector = selectors.DefaultSelector()
    for number in range(streams):
        body = json.dumps(fields(number, tokens) | {"stream": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        selector.register(connection, selectors.EVENT_READ, bytearray())
    answers = []
    while selector.get_map():
        for key, _ in selector.select():
            data = key.fileobj.recv(65536)
            key.data.extend(data)
            if not data:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                answers.append(key.data)
    spent = time.perf_counter() - start, time.process_time() - cpu
    assert all(b"data: [DONE]" in answer for answer in answers), "an answer is not whole"
    results.put(spent)


def server_seconds(port, streams, tokens):
    """What the client saw and used."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=client, args=(port, streams, tokens, results))
    process.start()
    spent = results.get(timeout=600)
    process.join()
    return spent


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    work = (options.streams, options.tokens)
    engine = InferenceEngine()
    app = create_app(engine=engine, settings=Settings())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    engine_seconds(engine, *work)  # warm both up
    alone, served = [], []
    for number in range(options.rounds):
        alone.append(engine_seconds(engine, *work))
        seconds, cpu = server_seconds(port, *work)
        served.append(seconds - cpu / os.cpu_count())
        print(
            f"round {number + 1}: engine {alone[-1]:.2f} s, HTTP {seconds:.2f} s, of which the "
            f"client's share {seconds - served[-1]:.2f} s",
            flush=True,
        )
    server.should_exit = True
    thread.join()
    num_tokens = options.streams * options.tokens
    mine, ours = statistics.median(alone), statistics.median(served)
    print(
        f"{options.streams} streams: engine {num_tokens / mine:.0f} tokens/s, HTTP "
        f"{num_tokens / ours:.0f} tokens/s without the client, {(mine / ours - 1) * 100:+.1f} %"
    )


if __name__ == "__main__":
    main()
