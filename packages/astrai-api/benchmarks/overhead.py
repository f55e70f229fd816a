"""What the server adds to a token: from the engine's event to the bytes on the socket.

An engine without a model sends one event to every stream at once, step by step, from a thread of
its own, as the real one does. Each text is the time it was made; a client in another process
reads raw sockets and compares with when the kernel got the bytes (Linux tells), and with when it
has read them itself, which counts its own work too.

    python overhead.py --streams 32 --steps 200 --http httptools --loop uvloop
"""

import argparse
import asyncio
import multiprocessing
import selectors
import socket
import statistics
import struct
import threading
import time

import uvicorn

from astrai_api import Settings, create_app
from astrai_api.testing import FakeEngine
from astrai_engine.events import Finished, FinishReason, TokenDelta, Usage

STEP_SECONDS = 0.04
BODIES = {
    "/v1/chat/completions": b'{"messages":[{"role":"user","content":"x"}],"stream":true}',
    "/v1/messages": b'{"max_tokens":9,"messages":[{"role":"user","content":"x"}],"stream":true}',
    "/v1/completions": b'{"prompt":"x","stream":true}',
    "/v1/responses": b'{"input":"x","stream":true}',
}
MARK = b"at:"
SO_TIMESTAMPNS = 35  # of Linux; the socket module has no name for it


class PacedHandle:
    """A request whose events come from the engine's thread."""

    request_id = "req-0"
    num_prompt_tokens = 1
    prompt_end = ""

    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.events = asyncio.Queue()

    def abort(self):
        pass

    async def __aiter__(self):
        while True:
            event = await self.events.get()
            yield event
            if isinstance(event, Finished):
                return


class PacedEngine(FakeEngine):
    """Starts all streams together once the expected number is there."""

    def __init__(self, num_streams, num_steps):
        super().__init__()
        self.num_streams, self.num_steps = num_streams, num_steps
        self.waiting = []

    async def submit_async(self, request):  # noqa: ARG002 (every request is answered alike)
        handle = PacedHandle()
        self.waiting.append(handle)
        if len(self.waiting) == self.num_streams:
            streams, self.waiting = self.waiting, []
            threading.Thread(target=self.run, args=(streams,), daemon=True).start()
        return handle

    def run(self, streams):
        for step in range(1, self.num_steps + 1):
            time.sleep(STEP_SECONDS)
            text = f"{MARK.decode()}{time.time_ns()};"
            self.deliver(streams, TokenDelta(text, (step,), Usage(1, 0, step)))
        self.deliver(streams, Finished(FinishReason.LENGTH, Usage(1, 0, self.num_steps)))

    def deliver(self, streams, event):
        def put():
            for handle in streams:
                handle.events.put_nowait(event)

        streams[0].loop.call_soon_threadsafe(put)


def client(port, path, num_streams, results):
    """Read all streams; nothing is parsed before the end.

    It polls: to wake it up would be the server's work, which it is not for clients elsewhere.
    """
    body = BODIES[path]
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}"
    selector = selectors.DefaultSelector()
    for _ in range(num_streams):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        selector.register(connection, selectors.EVENT_READ)
    received = []
    while selector.get_map():
        for key, _ in selector.select(0):
            data, control, _, _ = key.fileobj.recvmsg(65536, 64)
            received.append((time.time_ns(), control, key.fd, data))
            if not data:
                selector.unregister(key.fileobj)
                key.fileobj.close()
    first_seen = {}  # the last events of a response repeat its whole text
    for at, control, stream, data in received:
        for part in data.split(MARK)[1:]:
            made = int(part.partition(b";")[0])
            latencies = ((kernel_time(control) - made) / 1e6, (at - made) / 1e6)
            first_seen.setdefault((stream, made), latencies)
    results.put(list(first_seen.values()))


def kernel_time(control):
    """When the newest bytes of a read were put on the socket, in nanoseconds."""
    ((_, _, stamp),) = control
    seconds, nanoseconds = struct.unpack("qq", stamp)
    return seconds * 10**9 + nanoseconds


def measure(path, options):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    engine = PacedEngine(options.streams, options.steps)
    config = uvicorn.Config(
        create_app(engine=engine, settings=Settings()),
        port=0,
        http=options.http,
        loop=options.loop,
        log_level="error",
        access_log=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    reader = context.Process(target=client, args=(port, path, options.streams, results))
    cpu = time.process_time()
    reader.start()
    latencies = results.get(timeout=600)
    cpu = time.process_time() - cpu
    reader.join()
    server.should_exit = True
    thread.join()
    on_socket, read = map(sorted, zip(*latencies, strict=True))
    last = int(len(latencies) * 0.99)
    print(
        f"{path}: {len(latencies)} events, median {statistics.median(on_socket):.2f} ms, "
        f"p99 {on_socket[last]:.2f} ms, read by the client at {statistics.median(read):.2f} ms; "
        f"server CPU {cpu / len(latencies) * 1e6:.0f} us an event"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--path", choices=[*BODIES, "all"], default="/v1/chat/completions")
    parser.add_argument("--http", default="auto", choices=["auto", "h11", "httptools"])
    parser.add_argument("--loop", default="auto", choices=["auto", "asyncio", "uvloop"])
    options = parser.parse_args()
    for path in BODIES if options.path == "all" else [options.path]:
        measure(path, options)


if __name__ == "__main__":
    main()
