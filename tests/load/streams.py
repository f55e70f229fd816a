"""Many streaming clients that come, read and go at random, against a real server.

Starts ``uvicorn astrai_api:app`` on the embedded model and drives it for a while over all
protocols; clients hang up at any moment, before the first byte too. Fails unless every answer is
right or a 429, ``/health`` stays quick, memory stays flat and every page comes back.

``python tests/load/streams.py --clients 64 --seconds 300``
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

MAX_HEALTH_P99 = 0.1
MAX_GROWTH_MIB = 30
MIN_MEMORY_SECONDS = 200  # before that, the pool is still being written for the first time
TOPICS = ("the sea", "a red fox", "old clocks", "Grüße aus 東京 🙂", "bread", "a lighthouse")
PLACES = ("/v1/chat/completions", "/v1/messages", "/v1/completions")


class Report:
    """What happened, counted."""

    def __init__(self):
        self.outcomes = Counter()
        self.errors = []
        self.health = []
        self.memory = []  # (seconds since the start, MiB)

    def problems(self):
        """Everything that should not be so, as sentences."""
        found = [f"wrong answer: {error}" for error in self.errors[:5]]
        if not self.outcomes["complete"] or not self.outcomes["hung up"]:
            found.append("no answer was read to its end, or no client hung up")
        if self.health_p99 > MAX_HEALTH_P99:
            found.append(f"/health p99 is {self.health_p99 * 1000:.0f} ms")
        if self.memory[-1][0] >= MIN_MEMORY_SECONDS and self.growth > MAX_GROWTH_MIB:
            found.append(f"memory grew by {self.growth:.1f} MiB in the second half")
        return found

    @property
    def health_p99(self):
        return sorted(self.health)[int(len(self.health) * 0.99)]

    @property
    def slope(self):
        """MiB a minute over the second half, when all pages of the pool have been written."""
        late = [(at, size) for at, size in self.memory if at > self.memory[-1][0] / 2]
        fit = statistics.linear_regression(*zip(*late, strict=True))
        return fit.slope * 60

    @property
    def growth(self):
        """MiB that the slope makes of the second half."""
        return self.slope * self.memory[-1][0] / 2 / 60

    def show(self):
        counts = ", ".join(f"{count} {name}" for name, count in self.outcomes.most_common())
        print(f"requests: {counts}; {len(self.errors)} wrong")
        print(
            f"/health: {len(self.health)} calls, median "
            f"{statistics.median(self.health) * 1000:.1f} ms, p99 {self.health_p99 * 1000:.1f} ms"
        )
        sizes = [size for _, size in self.memory]
        print(
            f"memory: {sizes[0]:.0f} MiB at the start, {max(sizes):.0f} at most, {sizes[-1]:.0f} "
            f"at the end; {self.slope:+.2f} MiB a minute over the second half"
        )


def body_of(path, rng):
    """A request of a protocol; many share the beginning of their prompt."""
    words = " ".join(str(rng.randrange(100)) for _ in range(rng.randrange(40)))
    text = f"Write a few sentences about {rng.choice(TOPICS)}. {words}"
    body = {"stream": True, "max_tokens": rng.randint(1, 64), "temperature": rng.choice((0, 1))}
    if path == "/v1/completions":
        return body | {"prompt": text}
    return body | {"messages": [{"role": "user", "content": text}]}


async def request(port, method, path, body=b""):
    """Send a request; gives its streams."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def fetch(port, path):
    """Status and body of a GET."""
    reader, writer = await request(port, "GET", path)
    try:
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split()[1]), body
    finally:
        writer.close()


async def client(port, rng, end, report):
    """Ask, read, and sometimes go away in the middle, until the time is up."""
    while time.monotonic() < end:
        path = rng.choice(PLACES)
        patience = rng.choice((None, None, rng.randint(0, 40)))  # reads before it hangs up
        try:
            outcome = await asyncio.wait_for(ask(port, path, body_of(path, rng), patience), 120)
        except (OSError, TimeoutError) as error:
            report.errors.append(f"{path}: {error!r}")
            continue
        if outcome.startswith("wrong"):
            report.errors.append(f"{path}: {outcome}")
        else:
            report.outcomes[outcome] += 1
        if outcome == "refused with 429":
            await asyncio.sleep(1)


async def ask(port, path, body, patience):
    """One request; says how it ended."""
    reader, writer = await request(port, "POST", path, json.dumps(body).encode())
    try:
        received = b""
        while patience is None or patience > 0:
            data = await reader.read(65536)
            if not data:
                return verdict(received)
            received += data
            patience = None if patience is None else patience - 1
        return "hung up"
    finally:
        writer.close()


def verdict(received):
    """Whether a whole answer is right."""
    head, _, body = received.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 429 ") and b"retry-after" in head.lower():
        return "refused with 429"
    if not head.startswith(b"HTTP/1.1 200 "):
        return f"wrong status: {received[:300]!r}"
    if b"[DONE]" not in body[-40:] or b'"error"' in body:
        return f"wrong end: {body[-300:]!r}"
    return "complete"


async def watch(port, pid, end, report):
    """Call ``/health`` and look at the server's memory, until the time is up."""
    start = time.monotonic()
    while time.monotonic() < end:
        asked = time.monotonic()
        status, _ = await fetch(port, "/health")
        report.health.append(time.monotonic() - asked)
        if status != 200:
            report.errors.append(f"/health: {status}")
        if not report.memory or asked - start > report.memory[-1][0] + 1:
            report.memory.append((asked - start, resident_mib(pid)))
        await asyncio.sleep(0.1)


def resident_mib(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


async def stats(port):
    return json.loads((await fetch(port, "/stats"))[1])


async def drive(port, pid, options):
    """Run the clients; gives the report and what is left in the server afterwards."""
    report = Report()
    end = time.monotonic() + options.seconds
    rngs = [random.Random(options.seed * 10_000 + number) for number in range(options.clients)]
    clients = [client(port, rng, end, report) for rng in rngs]
    await asyncio.gather(watch(port, pid, end, report), *clients)
    for _ in range(100):
        left = await stats(port)
        if not left["active_tasks"] and not left["waiting_queue"]:
            break
        await asyncio.sleep(0.1)
    return report, left


def left_behind(left):
    """What an idle server should not hold, as sentences."""
    found = []
    pages = left["pages"]
    if left["active_tasks"] or left["waiting_queue"]:
        found.append(f"still busy after 10 seconds: {left}")
    if pages["in_use"] or pages["free"] + pages["cached"] != pages["total"]:
        found.append(f"pages did not come back: {pages}")
    return found


def start_server(log):
    """A server of the README's command; gives its process and its port once it serves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # A pool that is written all over within the first half: from then on, growth is a leak.
    environment = {"ASTRAI_N_TOKENS": "16384"} | os.environ
    command = [sys.executable, "-m", "uvicorn", "astrai_api:app", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--no-access-log"], env=environment, stdout=log, stderr=subprocess.STDOUT
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if asyncio.run(fetch(port, "/health"))[0] == 200:
                return process, port
        except OSError:
            pass
        time.sleep(0.2)
    process.kill()
    raise SystemExit(f"The server did not start; see {log.name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".log", delete=False) as log:
        process, port = start_server(log)
        try:
            report, left = asyncio.run(drive(port, process.pid, options))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    tokens = left["total_tokens"] / options.seconds
    print(f"{options.clients} clients for {options.seconds:.0f} s, {tokens:.0f} tokens a second")
    report.show()
    print(f"afterwards: pages {left['pages']}, finished {left['finished']}")
    problems = report.problems() + left_behind(left)
    for problem in problems:
        print(f"PROBLEM {problem}")
    if problems:
        raise SystemExit(f"The server's log is {log.name}")
    Path(log.name).unlink()


if __name__ == "__main__":
    main()
