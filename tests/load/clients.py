"""Clients of all sorts: patient ones, and those that read slowly, stall, leave or send nonsense."""

import asyncio
import json
from contextlib import suppress

from answers import WrongAnswerError, read_answer
from findings import LEFT, QUEUE_FULL, REFUSED, RIGHT
from kinds import BAD_REQUESTS, CHAT, KINDS, WIDE
from wire import IncompleteReplyError, ask, connected, encode, exchange

PATIENCE = 240  # seconds after which a request counts as hung
TIE = 2e-3  # nats between two tokens that sums in another order may swap
BURST = 160  # requests at once, more than run and wait


class Clients:
    """All clients of a load.

    Args:
        port: of the server.
        references: the right answer to each body, by the name of its kind and its place there.
        findings: where to write what happens.
    """

    def __init__(self, port, references, findings):
        self._port = port
        self._references = references
        self._findings = findings
        self._acts = {
            self._ask: 60,
            self._read_slowly: 8,
            self._hang_up: 18,
            self._stall: 6,
            self._send_nonsense: 8,
        }

    async def one(self, rng, end):
        """A client that asks again and again until the loop's clock shows ``end``."""
        clock = asyncio.get_running_loop().time
        while clock() < end:
            (act,) = rng.choices([*self._acts], [*self._acts.values()])
            if await self._attempt(act, rng) == QUEUE_FULL:
                await asyncio.sleep(rng.uniform(0.5, 2))

    async def bursts(self, rng, end):
        """Now and then, more requests at once than the queue takes."""
        clock = asyncio.get_running_loop().time
        while (pause := rng.uniform(15, 45)) < end - clock():
            await asyncio.sleep(pause)
            self._findings.faults["bursts"] += 1
            await asyncio.gather(*(self._attempt(self._ask, rng) for _ in range(BURST)))

    async def _attempt(self, act, rng):
        """Do something once; its one outcome is counted, or told as wrong."""
        kind = rng.choices(KINDS, [kind.weight for kind in KINDS])[0]
        if act == self._send_nonsense:
            name = "bad request"
        else:
            kind = WIDE if act == self._read_slowly and rng.random() < 0.5 else kind
            name = kind.name
        self._findings.started[name] += 1
        try:
            async with asyncio.timeout(PATIENCE):
                outcome = await act(rng, kind)
        except TimeoutError:
            self._findings.wrong.append(f"{name}: no end after {PATIENCE} s")
        except (OSError, IncompleteReplyError, WrongAnswerError) as error:
            self._findings.wrong.append(f"{name}: {error!r}")
        else:
            self._findings.ended[name, outcome] += 1
            return outcome
        return None

    async def _ask(self, rng, kind):
        asked = _Asked(kind, rng)
        return self._judge(asked, await ask(self._port, "POST", kind.path, asked.body))

    async def _read_slowly(self, rng, kind):
        """Read in small pieces with pauses, through a buffer so small that the server must wait."""
        asked = _Asked(kind, rng)
        self._findings.faults["slow readers"] += 1
        async with connected(self._port, receive_buffer=4096) as (reader, writer):
            reply = await exchange(
                reader,
                writer,
                asked.request,
                size=1024,
                pause=lambda: rng.choice((0, 0, 0, 0.1, 0.3)),
            )
        return self._judge(asked, reply)

    async def _hang_up(self, rng, kind):
        """Leave at any moment: before the first byte, in the middle, or nearly at the end."""
        resets = rng.random() < 0.5
        patience = rng.choice((0, 0.1, 1, 5)) * rng.random()
        self._findings.faults["hang-ups, by reset" if resets else "hang-ups"] += 1
        async with connected(self._port, resets=resets) as (reader, writer):
            writer.write(_Asked(kind, rng).request)
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(patience):
                    while await reader.read(2**16):
                        pass
        return LEFT

    async def _stall(self, rng, kind):
        """Stop in the middle of the request, and go on later or not at all."""
        asked = _Asked(kind, rng)
        self._findings.faults["stalled requests"] += 1
        middle = rng.randrange(1, len(asked.request))
        async with connected(self._port) as (reader, writer):
            writer.write(asked.request[:middle])
            await asyncio.sleep(rng.uniform(0.2, 3))
            if rng.random() < 0.5:
                return LEFT
            reply = await exchange(reader, writer, asked.request[middle:])
        return self._judge(asked, reply)

    async def _send_nonsense(self, rng, _kind):
        bad = rng.choice(BAD_REQUESTS)
        reply = await ask(self._port, bad.method, bad.path, bad.body)
        if reply.status == 429:  # the queue is looked at before the prompt is
            return QUEUE_FULL
        if reply.status != bad.status or b'"message"' not in reply.body:
            raise WrongAnswerError(f"{bad}: {reply.status} {reply.body[:200]!r}")
        return REFUSED

    def _judge(self, asked, reply):
        """The outcome that an answer is.

        Raises:
            WrongAnswerError: neither the right answer nor a refusal for want of room.
        """
        kind = asked.kind
        if reply.status == 429 and int(reply.headers["retry-after"]) >= 1:
            return QUEUE_FULL
        if reply.status != 200:
            raise WrongAnswerError(f"{reply.status} {reply.body[:200]!r}")
        answer = read_answer(kind.path, reply.body, stream=asked.stream)
        right = self._references[kind.name, asked.number]
        if kind.is_exact and answer != right:
            raise WrongAnswerError(f"{answer} instead of {right} to {asked.body}")
        if len(answer.choices) != len(right.choices):
            raise WrongAnswerError(f"{len(answer.choices)} choices to {asked.body}")
        if asked.stream:
            self._findings.first_events[kind.name].append(reply.first_event)
        return RIGHT


class _Asked:
    """One request of a kind, chosen at random."""

    def __init__(self, kind, rng):
        self.kind = kind
        self.number = rng.randrange(len(kind.bodies))
        self.stream = rng.random() < 0.6
        self.body = kind.bodies[self.number] | {"stream": self.stream}
        if kind.is_salted and rng.random() < 0.5:
            self.body["cache_salt"] = str(rng.random())
        self.request = encode("POST", kind.path, self.body)


async def ask_alone(port):
    """The right answers: each body asked while nothing else runs, by kind and place.

    Raises:
        WrongAnswerError: a request is not answered.
    """
    references = {}
    for kind in KINDS:
        for number, body in enumerate(kind.bodies):
            await _check_ties(port, kind, body)
            reply = await ask(port, "POST", kind.path, body)
            if reply.status != 200:
                raise WrongAnswerError(f"{kind.name}: {reply.status} {reply.body[:300]!r}")
            references[kind.name, number] = read_answer(kind.path, reply.body, stream=False)
    return references


async def _check_ties(port, kind, body):
    """Refuse a chat in which rounding alone could choose another token.

    Raises:
        WrongAnswerError: the two likeliest tokens are as likely, somewhere in the answer.
    """
    if kind.path != CHAT or not kind.is_exact or {"tools", "response_format"} & body.keys():
        return
    reply = await ask(port, "POST", CHAT, body | {"n": 1, "logprobs": True, "top_logprobs": 2})
    for entry in json.loads(reply.body)["choices"][0]["logprobs"]["content"]:
        first, second = (each["logprob"] for each in entry["top_logprobs"])
        if first - second < TIE:
            raise WrongAnswerError(f"{entry['token']!r} is a tie in the answer to {body}")


async def ask_all_at_once(port):
    """Ask everything at the same time, so that all threads are started that stay."""
    requests = [(kind.path, body) for kind in KINDS for body in kind.bodies]
    await asyncio.gather(*(ask(port, "POST", path, body) for path, body in requests))
