import asyncio

import httpx
import pytest

from astrai_api.cli.batch_line import BatchLine
from astrai_api.cli.batch_runner import BatchRunner
from astrai_api.cli.exits import CommandError, ExitCode
from astrai_api.cli.target import Target

LINES = [BatchLine(str(number), f"c{number}", "/v1/x", {"n": number}) for number in range(9)]


def run(answer, lines=LINES, *, concurrency=3, retries=2):
    """Run lines against a function from request to response; gives results by custom_id."""

    async def work():
        async with httpx.AsyncClient(
            transport=httpx.MockTransport(answer), base_url="http://x"
        ) as client:
            target = Target(client, "m", "http://x", "m at http://x", None)
            runner = BatchRunner(target, concurrency=concurrency, retries=retries, wait_seconds=0)
            await runner.run(iter(lines), lambda line, result: results.update({line.key: result}))

    results = {}
    asyncio.run(work())
    return results


def test_every_line_gets_its_answer():
    results = run(lambda request: httpx.Response(200, json={"for": request.content.decode()}))
    assert len(results) == 9
    assert results["3"]["response"]["body"] == {"for": '{"model": "m", "n": 3}'}


def test_the_id_of_a_request_is_its_lines():
    seen = []

    def answer(request):
        seen.append(request.headers["x-request-id"])
        return httpx.Response(200, json={}, headers={"x-request-id": seen[-1]})

    results = run(answer, LINES[:1])
    assert seen == ["batch_req_0"]
    assert results["0"]["response"]["request_id"] == results["0"]["id"] == "batch_req_0"


def test_no_more_are_open_than_allowed():
    open_now, most = 0, 0

    async def answer(_):
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        for _ in range(5):
            await asyncio.sleep(0)
        open_now -= 1
        return httpx.Response(200, json={})

    run(answer)
    assert most == 3


def test_refusals_are_results():
    results = run(lambda _: httpx.Response(400, json={"error": {"message": "No."}}), LINES[:1])
    assert results["0"]["response"]["status_code"] == 400
    assert results["0"]["error"] is None


def test_wrong_lines_are_not_sent():
    results = run(lambda _: pytest.fail("sent"), [BatchLine("k", None, problem="Line 1: no.")])
    assert results["k"]["error"] == {"code": "invalid_line", "message": "Line 1: no."}


def test_a_full_server_is_waited_for_as_long_as_it_takes():
    attempts = []

    def answer(_):
        attempts.append(0)
        full = len(attempts) < 8
        return httpx.Response(429 if full else 200, json={}, headers={"retry-after": "0"})

    assert run(answer, LINES[:1])["0"]["response"]["status_code"] == 200
    assert len(attempts) == 8


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_failing_server_is_tried_again_a_few_times(failures):
    attempts = []

    def answer(_):
        attempts.append(0)
        return httpx.Response(500 if len(attempts) <= failures else 200, text="text")

    status = run(answer, LINES[:1])["0"]["response"]["status_code"]
    assert (status, len(attempts)) == ((200, failures + 1) if failures <= 2 else (500, 3))


def test_a_lost_server_ends_the_batch():
    attempts = []

    def answer(_):
        attempts.append(0)
        raise httpx.ReadError("gone")

    with pytest.raises(CommandError, match="run the same command again to go on") as caught:
        run(answer, LINES[:1])
    assert caught.value.code is ExitCode.UNREACHABLE
    assert len(attempts) == 3
