import asyncio
import json
from itertools import pairwise

import httpx
import pytest

from astrai_api.cli.bench.load import Load
from astrai_api.cli.target import Target


def answer(request, *, fail=False):
    if fail:
        return httpx.Response(400, json={"error": {"message": "No."}})
    word = json.loads(request.content)["prompt"]
    chunks = [{"choices": [{"text": word}]}] * 2
    chunks += [{"choices": [{"text": "", "finish_reason": "stop"}]}]
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    chunks += [{"choices": [], "usage": usage}]
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return httpx.Response(200, text=f"{text}data: [DONE]\n\n")


def run(load, handler=answer):
    async def work():
        async with httpx.AsyncClient(
            transport=httpx.MockTransport(handler), base_url="http://x"
        ) as client:
            target = Target(client, "m", "http://x", "m at http://x", None)
            bodies = ({"prompt": str(number)} for number in range(10**9))
            return await load.run(target, "/v1/completions", bodies, told.append)

    told = []
    records = asyncio.run(work())
    assert len(told) == len(records)
    return records


class Gauge:
    """Counts requests that are open, and what they ask."""

    def __init__(self):
        self.now = self.most = 0
        self.prompts = []

    async def __call__(self, request):
        self.now += 1
        self.most = max(self.most, self.now)
        self.prompts.append(json.loads(request.content)["prompt"])
        for _ in range(9):
            await asyncio.sleep(0)
        self.now -= 1
        return answer(request)


def test_a_closed_loop_keeps_its_clients_busy():
    gauge = Gauge()
    records = run(Load(12, concurrency=3), gauge)
    assert len(records) == 12
    assert gauge.most == 3
    assert sorted(gauge.prompts, key=int) == [str(n) for n in range(12)]


def test_a_record_has_the_servers_counts_and_our_times():
    (record,) = run(Load(1, concurrency=1))
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (7, 3, 5)
    assert record.error is None
    assert len(record.gaps) == 1
    assert 0 < record.first <= record.first + record.gaps[0] <= record.total


def test_a_refusal_is_a_record_too():
    (record,) = run(Load(1, concurrency=1), lambda request: answer(request, fail=True))
    assert record.error == "No."
    assert record.first is None
    assert record.output_tokens == 0


def test_an_open_loop_sends_when_it_is_due():
    gauge = Gauge()
    records = run(Load(20, rate=1000.0, seed=1), gauge)
    assert [record.due for record in records] == list(Load(20, rate=1000.0, seed=1).due_times())
    assert gauge.prompts == [str(number) for number in range(20)]


def test_an_open_loop_can_be_capped_and_waiting_counts():
    gauge = Gauge()
    records = run(Load(20, rate=1e6, concurrency=2), gauge)
    assert gauge.most == 2
    assert records[-1].total >= records[0].total


def test_even_arrivals():
    assert list(Load(3, rate=4.0, arrival="constant").due_times()) == [0, 0.25, 0.5]


def test_poisson_arrivals_have_the_rate_and_the_spread_of_it():
    times = list(Load(20_001, rate=5.0, seed=3).due_times())
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(0.2, rel=0.03)
    assert variance == pytest.approx(0.04, rel=0.06)


@pytest.mark.parametrize(
    ("load", "told"),
    [
        (Load(5, concurrency=2), "5 requests, 2 at a time"),
        (Load(5, rate=2.5), "5 requests, 2.5 a second (poisson)"),
        (Load(5, 3, 2.0, "constant"), "5 requests, 2 a second (constant), at most 3 open"),
    ],
)
def test_descriptions(load, told):
    assert load.description == told
