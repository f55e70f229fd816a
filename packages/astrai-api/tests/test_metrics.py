"""The metrics page: what it counts, and that counters only grow."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from astrai_api.application import create_app
from astrai_api.histogram import Histogram
from astrai_api.metrics import ServerMetrics
from astrai_api.settings import Settings
from astrai_api.testing import FakeEngine, Gate, Reply
from astrai_engine.errors import GenerationError
from astrai_engine.events import Finished, FinishReason, Timing, TokenDelta, Usage

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hello"}]}


async def scrape(client):
    """Samples by name, with the labels besides the model's name."""
    response = await client.get("/metrics")
    assert response.status_code == 200
    samples = {}
    for family in text_string_to_metric_families(response.text):
        assert family.documentation
        if family.name.startswith("process_"):
            continue
        assert family.name.startswith("astrai:")
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "fake-model"
            samples[sample.name.removeprefix("astrai:"), *labels.values()] = sample.value
    return samples


async def test_names_dashboards_know(client):
    names = {name for name, *_ in await scrape(client)}
    assert names >= {
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "num_preemptions_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "request_success_total",
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "e2e_request_latency_seconds_bucket",
        "request_queue_time_seconds_bucket",
        "request_prefill_time_seconds_bucket",
        "request_decode_time_seconds_bucket",
        "request_prompt_tokens_bucket",
        "request_generation_tokens_bucket",
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_one_request(connect, stream):
    client = connect(FakeEngine.scripted(Reply("a b c", cached_tokens=1)))
    await client.post(CHAT, json={**BODY, "stream": stream})
    samples = await scrape(client)
    assert samples["prompt_tokens_total",] == samples["prefix_cache_queries_total",] == 2
    assert samples["prefix_cache_hits_total",] == 1
    assert samples["generation_tokens_total",] == 4
    assert samples["request_success_total", "stop"] == 1
    assert samples["time_to_first_token_seconds_count",] == 1
    assert samples["inter_token_latency_seconds_count",] == 2
    for name in ("e2e_request_latency", "request_queue_time", "request_decode_time"):
        assert samples[f"{name}_seconds_count",] == 1
    assert samples["request_prompt_tokens_sum",] == 2
    assert samples["request_generation_tokens_sum",] == 4
    assert samples["num_requests_running",] == 0
    assert samples["ready",] == 1
    assert samples["http_responses_total", CHAT, "200"] == 1


async def test_every_choice_counts(client):
    await client.post(CHAT, json={**BODY, "n": 3, "max_tokens": 1})
    samples = await scrape(client)
    assert samples["request_success_total", "length"] == 3
    assert samples["time_to_first_token_seconds_count",] == 3


async def test_aborts_are_counted_and_nothing_shrinks(call, connect):
    """B208 B209."""
    engine = FakeEngine.scripted(Reply(Gate()))
    request = call(engine, CHAT, {**BODY, "stream": True})
    client = connect(engine)
    while not engine.handles:
        await asyncio.sleep(0)
    before = await scrape(client)
    assert before["num_requests_running",] == 1
    request.hang_up()
    await request.rest()
    after = await scrape(client)
    assert after["request_success_total", "abort"] == 1
    assert after["num_requests_running",] == 0
    gauges = {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"}
    assert after["e2e_request_latency_seconds_count",] == 0
    assert all(after[key] >= before[key] for key in before if key[0] not in gauges)


async def test_failures_are_counted_and_not_timed(connect):
    client = connect(FakeEngine.scripted(Reply(GenerationError("no"))))
    await client.post(CHAT, json=BODY)
    samples = await scrape(client)
    assert samples["request_success_total", "error"] == 1
    assert samples["http_responses_total", CHAT, "500"] == 1
    assert samples["e2e_request_latency_seconds_count",] == 0


async def test_what_leads_nowhere_has_one_label(client):
    """A scan of made-up paths must not make a metric grow without end."""
    for path in ("/a", "/b", "/v1/models/x"):
        await client.get(path)
    samples = await scrape(client)
    assert samples["http_responses_total", "other", "404"] == 2
    assert samples["http_responses_total", "/v1/models/{name:path}", "404"] == 1


async def test_pages_and_tiers_have_a_label(client):
    samples = await scrape(client)
    assert samples["kv_cache_pages", "free"] == 512
    assert {key[1] for key in samples if key[0] == "cache_tier_bytes"} == {"host", "disk"}


async def test_a_choice_that_never_started_was_not_queued_for_a_time(connect):
    ended = Finished(FinishReason.LENGTH, Usage(2, 0, 0), timing=Timing(1.0, None, None, 3.0))
    client = connect(FakeEngine.scripted(Reply(ended)))
    await client.post(CHAT, json=BODY)
    samples = await scrape(client)
    assert samples["e2e_request_latency_seconds_count",] == 1
    assert samples["request_queue_time_seconds_count",] == 0


async def test_phases_are_those_that_the_engine_tells(connect):
    ended = Finished(FinishReason.STOP, Usage(2, 0, 9), timing=Timing(1.0, 1.25, 3.25, 7.25))
    client = connect(FakeEngine.scripted(Reply(ended)))
    await client.post(CHAT, json=BODY)
    samples = await scrape(client)
    phases = [f"request_{phase}_time_seconds_sum" for phase in ("queue", "prefill", "decode")]
    assert [samples[name,] for name in phases] == [0.25, 2.0, 4.0]


async def test_other_engines_may_count_less(connect, monkeypatch):
    engine = FakeEngine()
    monkeypatch.setattr(engine, "get_stats", lambda: {"active_tasks": 2, "total_tokens": 5})
    samples = await scrape(connect(engine))
    assert samples["num_requests_running",] == 2
    assert ("prompt_tokens_total",) not in samples


@pytest.mark.parametrize(
    "accept",
    [
        "*/*",
        "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "text/plain;version=1.0.0;escaping=underscores",
    ],
)
async def test_names_keep_their_colon_whatever_a_scraper_prefers(client, accept):
    response = await client.get("/metrics", headers={"accept": accept})
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert '\nastrai:num_requests_running{model_name="fake-model"} 0.0\n' in response.text


async def test_a_key_is_needed(connect):
    client = connect(api_key=("k",))
    assert (await client.get("/metrics")).status_code == 401
    headers = {"authorization": "Bearer k"}
    assert (await client.get("/metrics", headers=headers)).status_code == 200


async def test_a_draining_server_still_tells(connect):
    app = create_app(engine=FakeEngine(), settings=Settings())
    app.state.serving.host.drain()
    assert (await connect(app=app).get("/stats")).status_code == 503
    samples = await scrape(connect(app=app))
    assert (samples["num_requests_running",], samples["ready",]) == (0, 0)


async def test_a_server_that_loads_has_no_counters_yet(connect):
    response = await connect(app=create_app(settings=Settings())).get("/metrics")
    assert response.status_code == 200
    assert "# TYPE astrai:num_requests_running gauge" in response.text
    assert "astrai:num_requests_running{" not in response.text


def test_buckets_are_cumulative():
    histogram = Histogram("x", "X.", (1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    samples = histogram.collect({"model_name": "m"}).samples
    assert [(s.labels.get("le"), s.value) for s in samples] == [
        ("1.0", 2),
        ("2.0", 3),
        ("+Inf", 4),
        (None, 4),
        (None, 12.0),
    ]


def test_tokens_that_come_together_share_the_time(monkeypatch):
    clock = iter([0.0, 1.0, 4.0, 6.0])
    monkeypatch.setattr("astrai_api.metrics.monotonic", lambda: next(clock))
    metrics = ServerMetrics()
    observe = metrics.observer()
    observe(TokenDelta("a", (1,), Usage(1, 0, 1)))
    observe(TokenDelta("b c d", (1, 2, 3), Usage(1, 0, 4)))
    observe(Finished(FinishReason.STOP, Usage(1, 0, 4)))
    sums = [
        histogram.collect({}).samples[-1].value
        for histogram in (metrics.first_token, metrics.next_token, metrics.whole)
    ]
    assert sums == [1.0, 1.0, 6.0]
