"""A mixed load with faults on a real server: everything clients and a full disk can do to it.

Starts ``astrai serve`` on the embedded model and asks each request of ``kinds.py`` once, alone.
Then many clients ask all of them at once, read slowly, stall, hang up, send nonsense and come in
bursts larger than the queue; half way through, the disk of the prefix cache fills up. At the end
the server has to be as it was at the start, and SIGTERM comes while answers are being streamed.
Fails unless every whole answer is the one given alone, and nothing is left behind or lost.

``python tests/load/mixed_load.py --minutes 5``; Linux only.
"""

import argparse
import asyncio
import random
import tempfile
from pathlib import Path

from answers import read_answer
from clients import Clients, ask_all_at_once, ask_alone
from findings import MAX_IDLE_CPU, Findings
from kinds import CHAT, KINDS, STREAMED_AT_THE_END
from report import write_report
from server import Server
from wire import IncompleteReplyError, ask, connected, encode, exchange

IDLE_SECONDS = 30
POOL_SECONDS = 12  # anyio's threads may be idle for ten


async def run(server, options):
    """All of it; gives the findings and the server's last statistics."""
    findings = Findings()
    references = await ask_alone(server.port)
    await ask_all_at_once(server.port)
    before = await held_at_rest(server)
    await put_under_load(server, references, findings, options)
    stats = await settle(server, findings)
    await look_at_rest(server, before, findings)
    await drain(server, references, findings)
    findings.check()
    return findings, stats


async def put_under_load(server, references, findings, options):
    """Run the clients, and whoever watches and disturbs, until the time is up."""
    end = asyncio.get_running_loop().time() + options.minutes * 60
    rngs = [random.Random(options.seed * 10_000 + number) for number in range(options.clients + 1)]
    clients = Clients(server.port, references, findings)
    await asyncio.gather(
        watch(server, end, findings),
        fill_disk(server, end, findings),
        clients.bursts(rngs.pop(), end),
        *(clients.one(rng, end) for rng in rngs),
    )


async def watch(server, end, findings):
    """Call ``/health`` and look at the server's memory, twice a second."""
    clock = asyncio.get_running_loop().time
    start = clock()
    while (asked := clock()) < end:
        reply = await ask(server.port, "GET", "/health")
        findings.health.append(clock() - asked)
        findings.expect(reply.status == 200, f"/health: {reply.status}")
        findings.memory.append((asked - start, server.resident_mib))
        await asyncio.sleep(0.5)


async def fill_disk(server, end, findings):
    """Half way through, leave the cache no room on its disk until it has noticed."""
    clock = asyncio.get_running_loop().time
    await asyncio.sleep((end - clock()) / 2)
    kept = (await server.stats())["tiers"]["disk"]["pages"]
    findings.expect(kept > 0, "no page was on disk when it filled up")
    findings.faults["full disks"] += 1
    while not server.warnings and clock() < end:
        server.fill_disk()
        await asyncio.sleep(0.05)


async def settle(server, findings):
    """Wait until nothing runs; gives the statistics of then."""
    for _ in range(300):
        stats = await server.stats()
        if not stats["active_tasks"] and not stats["waiting_queue"]:
            break
        await asyncio.sleep(0.1)
    finished, pages = stats["finished"], stats["pages"]
    findings.expect(not stats["active_tasks"], f"still busy after 30 s: {stats}")
    findings.expect(
        pages["in_use"] == 0 and pages["free"] + pages["cached"] == pages["total"],
        f"pages did not come back: {pages}",
    )
    findings.expect(
        stats["total_tasks"] == sum(finished.values()),
        f"{stats['total_tasks']} choices were submitted, but ended: {finished}",
    )
    findings.expect(finished["error"] == 0, f"choices failed: {finished}")
    noticed = [line for line in server.warnings if "No more pages are stored" in line]
    findings.expect(len(noticed) == 1, "the full disk was not told of exactly once")
    other = [line for line in server.warnings if line not in noticed]
    findings.expect(not other, f"the log has more: {other[:5]}")
    return stats


async def held_at_rest(server):
    """What the server holds when nothing runs; pools end their idle threads at the next call."""
    await asyncio.sleep(POOL_SECONDS)
    await ask(server.port, "POST", CHAT, KINDS[0].bodies[0])
    await asyncio.sleep(1)
    return server.holdings


async def look_at_rest(server, before, findings):
    """Threads, files and processor time of a server that has nothing to do."""
    after = await held_at_rest(server)
    findings.expect(after == before, f"{before} became {after}")
    used = server.cpu_seconds
    await asyncio.sleep(IDLE_SECONDS)
    idle = (server.cpu_seconds - used) / IDLE_SECONDS
    findings.expect(idle < MAX_IDLE_CPU, f"at rest it takes {idle:.1%} of a core")


async def drain(server, references, findings):
    """SIGTERM while answers are streamed: they end well, new requests are refused, status is 0."""
    kind = STREAMED_AT_THE_END
    started = asyncio.Semaphore(0)

    async def stream(number):
        request = encode("POST", kind.path, kind.bodies[number] | {"stream": True})
        async with connected(server.port) as (reader, writer):
            reply = await exchange(
                reader, writer, request, size=512, pause=lambda: started.release() or 0
            )
        return read_answer(kind.path, reply.body, stream=True)

    numbers = range(len(kind.bodies))
    streams = [asyncio.create_task(stream(number)) for number in numbers]
    for _ in numbers:
        await started.acquire()
    server.terminate()
    findings.faults["streams at SIGTERM"] += len(numbers)
    try:
        reply = await ask(server.port, "POST", CHAT, kind.bodies[0])
        findings.expect(reply.status == 503, f"while it drained, a request got {reply.status}")
    except (OSError, IncompleteReplyError):
        pass  # the port is closed by now
    for number, answer in enumerate(await asyncio.gather(*streams, return_exceptions=True)):
        right = references[kind.name, number]
        findings.expect(answer == right, f"at SIGTERM: {answer!r} instead of {right}")
    status = await asyncio.to_thread(server.wait)
    findings.expect(status == 0, f"the exit status is {status}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", action="store_true", help="write docs/reference/soak.md")
    parser.add_argument("--note", default="", help="a sentence for the report")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            server.wait_ready()
            findings, stats = asyncio.run(run(server, options))
        finally:
            server.end()
    write_report(findings, stats, options)
    for problem in findings.problems:
        print(f"PROBLEM {problem[:500]}")
    raise SystemExit(bool(findings.problems))


if __name__ == "__main__":
    main()
