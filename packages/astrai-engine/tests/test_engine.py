"""The engine as programs use it, on a tiny random model."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from contextlib import aclosing
from itertools import pairwise

import pytest

from astrai_engine import EngineConfig, GenerateResult, GenerationRequest, InferenceEngine
from astrai_engine.errors import (
    EngineUnavailableError,
    InvalidRequestError,
    ModelNotFoundError,
    PromptTooLongError,
    QueueFullError,
)
from astrai_engine.events import Failed, Finished, FinishReason, PromptLogprobs, TokenDelta
from astrai_engine.grammar import Grammar
from astrai_kernels import ATTN_BACKEND, BackendUnavailableError, attn_backend
from astrai_kvcache.testing import check_invariants

GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint):
    return tiny_checkpoint


def open_engine(checkpoint, **settings):
    return InferenceEngine(config=EngineConfig(model=str(checkpoint), page_size=4, **settings))


@pytest.fixture(scope="module")
def engine(checkpoint):
    with open_engine(checkpoint) as engine:
        yield engine
        check_invariants(engine._parts.pool)
        assert engine.get_stats()["pages"]["in_use"] == 0


def test_every_form_of_generate_gives_the_same_text(engine):
    """B066: streamed or not, to the last token."""
    alone = engine.generate("hello", max_tokens=8, **GREEDY)
    other = engine.generate("other", max_tokens=8, **GREEDY)
    assert isinstance(alone, str)
    assert engine.generate(["hello", "other"], max_tokens=8, **GREEDY) == [alone, other]
    assert "".join(engine.generate("hello", stream=True, max_tokens=8, **GREEDY)) == alone
    texts = ["", ""]
    for index, piece in engine.generate(["hello", "other"], stream=True, max_tokens=8, **GREEDY):
        texts[index] += piece
    assert texts == [alone, other]
    request = GenerationRequest(prompt="hello", max_tokens=8, **GREEDY)
    assert engine.generate_with_request(request) == alone
    streaming = GenerationRequest(prompt="hello", max_tokens=8, stream=True, **GREEDY)
    assert "".join(engine.generate_with_request(streaming)) == alone


async def test_generate_async_gives_the_same_text(engine):
    alone = engine.generate("hello", max_tokens=8, **GREEDY)
    assert "".join([p async for p in engine.generate_async("hello", max_tokens=8, **GREEDY)]) == (
        alone
    )


def test_messages_are_rendered_with_the_models_template(engine):
    request = GenerationRequest(
        messages=[{"role": "user", "content": "hi"}], max_tokens=6, **GREEDY
    )
    ids = [257, *engine.tokenizer.encode("hi", add_special_tokens=False), 258]
    same = GenerationRequest(prompt_token_ids=ids, max_tokens=6, **GREEDY)
    assert engine.encode_prompt(request) == ids
    assert engine.count_prompt_tokens(request) == len(ids)
    assert engine.generate_with_request(request) == engine.generate_with_request(same)


def test_choices_share_a_prompt_and_differ(engine):
    texts = engine.generate("hello", n=3, max_tokens=12, seed=5, top_k=0)
    assert len(set(texts)) == 3
    assert texts == engine.generate("hello", n=3, max_tokens=12, seed=5, top_k=0)


def test_a_seed_gives_the_same_text_alone_and_in_a_batch(engine):
    parameters = {"max_tokens": 12, "top_k": 20, "top_p": 0.9}
    alone = engine.generate("hello", seed=3, **parameters)
    results = {}

    def run(name, seed):
        results[name] = engine.generate("hello", seed=seed, **parameters)

    threads = [threading.Thread(target=run, args=(i, 3 if i == 4 else i)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[4] == alone


def test_a_repeated_prompt_hits_the_cache_and_gives_the_same_text(engine):
    """B019, B020: page-aligned and not; and prefixes of every length."""
    prompt = "the quick brown fox jumps over the lazy dog"
    for length in (3, 4, 5, 8, 15, 16, 17, len(prompt)):
        first, second = (
            list(engine.submit(GenerationRequest(prompt=prompt[:length], max_tokens=6, **GREEDY)))
            for _ in range(2)
        )
        texts = ["".join(e.text for e in es if isinstance(e, TokenDelta)) for es in (first, second)]
        assert texts[0] == texts[1]
        assert second[-1].usage.cached_tokens == (length - 2) // 4 * 4


def test_a_prefix_hit_gives_the_logits_of_a_full_computation(engine):
    """B018: the new rows attend to the cached ones."""
    request = GenerationRequest(
        prompt="cached pages, then a suffix", max_tokens=6, logprobs=True, top_logprobs=5, **GREEDY
    )
    cold, warm = (list(engine.submit(request)) for _ in range(2))
    assert (cold[-1].usage.cached_tokens, warm[-1].usage.cached_tokens) == (0, 24)
    values = [
        [top.logprob for e in events[:-1] for entry in e.logprobs for top in entry.top]
        for events in (cold, warm)
    ]
    assert len(values[0]) == 30
    assert values[1] == pytest.approx(values[0], abs=1e-4)


def test_counters_only_grow(engine):
    """B208: an abort before the first token and a whole prompt in the cache."""
    keys = ("total_tasks", "total_tokens", "prompt_tokens", "cached_tokens", "steps")
    seen = [engine.get_stats()]
    request = GenerationRequest(prompt="sixteen letters.", max_tokens=1, **GREEDY)
    for _ in range(2):
        list(engine.submit(request))
        seen.append(engine.get_stats())
    handle = engine.submit(request)
    handle.abort()
    list(handle)
    seen.append(engine.get_stats())
    for before, after in pairwise(seen):
        assert all(after[key] >= before[key] >= 0 for key in keys)


async def test_watching(engine):
    """Frames come while a request runs, and one when it has ended; its pages are on the map."""
    prompt = [5] * 21
    frames = []
    async with aclosing(engine.watch()) as watch:
        idle = await anext(watch)
        handle = await engine.submit_async(
            GenerationRequest(prompt_token_ids=prompt, max_tokens=12, request_id="mine", **GREEDY)
        )
        async for frame in watch:
            frames.append(frame)
            if frame.ended:
                break
        (first, *_, last) = [event async for event in handle]
    assert idle.requests == ()
    assert idle.num_pages == engine.get_stats()["pages"]["total"]
    assert sum(count for _, count in idle.page_states) == idle.num_pages
    steps = [step for frame in frames for step in frame.steps]
    assert sum(step.num_generated for step in steps) == last.usage.completion_tokens == 12
    chunks = [chunk for step in steps for chunk in step.chunks]
    assert sum(chunk.num_tokens for chunk in chunks) == 21 - first.usage.cached_tokens
    assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    (ended,) = frames[-1].ended
    assert (ended.request_id, ended.reason) == ("mine", FinishReason.LENGTH)
    for shown in (request for frame in frames for request in frame.requests):
        pages = [page for start, count in shown.page_runs for page in range(start, start + count)]
        assert len(pages) >= -(-shown.num_computed // 4)
    assert max(idle.page_states)[0] <= 1


async def test_watching_ends_with_the_engine(checkpoint):
    engine = open_engine(checkpoint)
    try:
        async with aclosing(engine.watch()) as watch:
            assert (await anext(watch)).number == 1
            engine.begin_drain()
            assert [frame async for frame in watch] == []
    finally:
        await asyncio.to_thread(engine.shutdown)
    with pytest.raises(EngineUnavailableError):
        await anext(engine.watch())


def test_the_next_turn_of_a_conversation_reuses_the_answer(engine):
    answer = engine.generate("a long enough question?", max_tokens=16, **GREEDY)
    ids = engine.tokenizer.encode("a long enough question?" + answer, add_special_tokens=False)
    events = list(
        engine.submit(GenerationRequest(prompt_token_ids=[*ids, 5, 6], max_tokens=2, **GREEDY))
    )
    assert events[-1].usage.cached_tokens >= 23


def test_events_of_a_submitted_request(engine):
    handle = engine.submit(GenerationRequest(prompt="hello", max_tokens=4, **GREEDY))
    assert handle.num_prompt_tokens == 5
    events = list(handle)
    assert isinstance(events[-1], Finished)
    assert events[-1].reason is FinishReason.LENGTH
    assert events[-1].usage.completion_tokens == 4


def test_max_tokens_is_clamped_to_the_context(engine):
    """B033, B035: huge or absent, the end of the context is the end."""
    for max_tokens in (10**9, None):
        events = list(
            engine.submit(GenerationRequest(prompt="a" * 250, max_tokens=max_tokens, **GREEDY))
        )
        assert events[-1].reason is FinishReason.LENGTH
        assert events[-1].usage.completion_tokens == 6


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(engine):
    """B032."""
    with pytest.raises(PromptTooLongError, match=r"300 tokens > 255 maximum.*length is 256"):
        engine.generate("a" * 300)
    assert engine.generate("a", max_tokens=1, **GREEDY) is not None


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"prompt_token_ids": [999_999_999]}, "prompt_token_ids"),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids"),
        ({"prompt_token_ids": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x", "logit_bias": {10**6: 1.0}}, "logit_bias"),
        ({"prompt": "x", "stop_token_ids": [10**6]}, "stop_token_ids"),
    ],
)
def test_impossible_requests_are_refused_and_the_next_one_works(engine, parameters, param):
    """B139."""
    before = engine.generate("next", max_tokens=4, **GREEDY)
    with pytest.raises(InvalidRequestError) as refused:
        engine.submit(GenerationRequest(**parameters))
    assert refused.value.param == param
    assert engine.generate("next", max_tokens=4, **GREEDY) == before


def test_a_forced_token_and_logprobs(engine):
    handle = engine.submit(
        GenerationRequest(
            prompt="x",
            max_tokens=3,
            logit_bias={70: 100.0},
            logprobs=True,
            top_logprobs=2,
            **GREEDY,
        )
    )
    events = list(handle)
    entries = [entry for e in events if isinstance(e, TokenDelta) for entry in e.logprobs]
    assert [entry.token_id for entry in entries] == [70] * 3
    assert all(len(entry.top) == 2 and entry.top[0].logprob >= entry.logprob for entry in entries)
    assert b"".join(e.token_bytes for e in entries) == engine.tokenizer.token_bytes(70) * 3


def test_logprobs_with_a_control_token_forced(engine):
    """B094: it has no text, and an entry; ending by itself or being one like the others."""
    request = GenerationRequest(
        prompt="x", logit_bias={256: 100.0}, logprobs=True, top_logprobs=3, max_tokens=5
    )
    (event,) = list(engine.submit(request))
    assert event.reason is FinishReason.STOP
    assert [(entry.token_id, entry.token_bytes) for entry in event.logprobs] == [(256, b"")]
    spelled = GenerationRequest(
        prompt="x", logit_bias={257: 100.0}, logprobs=True, top_logprobs=3, max_tokens=2
    )
    (event,) = list(engine.submit(spelled))
    assert event.reason is FinishReason.LENGTH
    assert [entry.token_id for entry in event.logprobs] == [257, 257]


def test_a_stop_token_has_an_entry_behind_the_text_and_a_stop_string_has_none(engine):
    ends = engine.tokenizer.token_bytes(70).decode()
    asked = {"prompt": "x", "logit_bias": {70: 100.0}, "logprobs": True, "max_tokens": 5}
    (event,) = list(engine.submit(GenerationRequest(**asked, stop_token_ids=[70], **GREEDY)))
    assert [entry.token_id for entry in event.logprobs] == [70]
    (event,) = list(engine.submit(GenerationRequest(**asked, stop=[ends], **GREEDY)))
    assert (event.stop, event.logprobs) == (ends, ())


def score(engine, prompt, **parameters):
    """The prompt's own log-probabilities, and the other events."""
    request = GenerationRequest(prompt=prompt, prompt_logprobs=2, **GREEDY, **parameters)
    first, *rest = list(engine.submit(request))
    assert isinstance(first, PromptLogprobs)
    return first.entries, rest


def test_prompt_logprobs_are_those_of_the_generated_tokens(engine):
    """What the model thought of its own answer is the same when the answer is the prompt."""
    prompt = "score me please"
    asked = GenerationRequest(prompt=prompt, max_tokens=8, logprobs=True, top_logprobs=2, **GREEDY)
    events = list(engine.submit(asked))
    generated = [entry for e in events if isinstance(e, TokenDelta) for entry in e.logprobs]
    ids = engine.tokenizer.encode(prompt, add_special_tokens=False)
    ids += [entry.token_id for entry in generated]
    request = GenerationRequest(prompt_token_ids=ids, prompt_logprobs=2, max_tokens=1, **GREEDY)
    scored = next(iter(engine.submit(request))).entries
    assert scored[0] is None
    assert [e.token_id for e in scored[-8:]] == [e.token_id for e in generated]
    assert [e.logprob for e in scored[-8:]] == pytest.approx(
        [e.logprob for e in generated], abs=1e-4
    )
    assert [[t.token_id for t in e.top] for e in scored[-8:]] == [
        [t.token_id for t in e.top] for e in generated
    ]


def test_prompt_logprobs_do_not_depend_on_the_cache_or_on_chunks(engine, checkpoint):
    """B022: the second time nothing is taken from the cache, and nothing is missing."""
    prompt = "a prompt that is longer than several pages of four tokens"
    entries, _ = score(engine, prompt, max_tokens=1)
    again, rest = score(engine, prompt, max_tokens=1)
    assert rest[-1].usage.cached_tokens == 0
    assert len(entries) == len(again) == rest[-1].usage.prompt_tokens
    with open_engine(checkpoint, max_step_tokens=32) as chunked:
        in_chunks, _ = score(chunked, prompt, max_tokens=1)
    for other in (again, in_chunks):
        assert [e.logprob for e in other[1:]] == pytest.approx(
            [e.logprob for e in entries[1:]], abs=1e-4
        )


def test_a_prompt_can_be_scored_without_generating(engine):
    """B047."""
    entries, rest = score(engine, "just score", max_tokens=0)
    assert len(entries) == len("just score")
    assert [type(event) for event in rest] == [Finished]
    assert rest[0].reason is FinishReason.LENGTH
    assert rest[0].usage.completion_tokens == 0


def test_a_step_trace_shows_what_ran(engine, tmp_path):
    engine.start_trace()
    engine.generate(["one prompt", "another prompt"], max_tokens=60, **GREEDY)
    trace = engine.stop_trace()
    records = trace.records
    assert sum(r.num_prompt_tokens for r in records) <= 24
    assert max(r.num_decoding for r in records) == 2
    assert {"schedule", "bind", "forward", "sample", "commit", "emit"} == set(records[0].phases)
    trace.save(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    engine.generate("untraced", max_tokens=1)
    assert trace.records == records
    assert engine.stop_trace().records == []


def test_a_batch_runs_in_order_and_survives_bad_requests(engine):
    requests = [GenerationRequest(prompt=f"p{i}", max_tokens=3, **GREEDY) for i in range(100)]
    requests.insert(50, GenerationRequest(prompt="x" * 500))
    results = engine.run_batch(requests, progress=False)
    assert [r.index for r in results] == list(range(101))
    assert "prompt is too long" in results[50].error
    good = [r for r in results if r.error is None]
    assert len(good) == 100
    assert good[0].texts[0] == engine.generate("p0", max_tokens=3, **GREEDY)


def test_closing_a_stream_frees_its_pages(engine):
    stream = engine.generate("hello", stream=True, max_tokens=200, **GREEDY)
    next(stream)
    stream.close()
    engine.generate("after", max_tokens=1)
    assert engine.get_stats()["active_tasks"] == 0


async def test_leaving_an_async_stream_aborts_it(engine):
    aborted = engine.get_stats()["finished"]["aborted"]
    stream = engine.generate_async("hello", max_tokens=200, **GREEDY)
    await anext(stream)
    await stream.aclose()
    await asyncio.to_thread(engine.generate, "after", max_tokens=1)
    assert engine.get_stats()["finished"]["aborted"] == aborted + 1


async def test_many_streams_at_once(engine):
    prompts = [f"prompt number {i}" for i in range(20)]
    alone = [engine.generate(p, max_tokens=10, **GREEDY) for p in prompts]

    async def read(prompt):
        return "".join([t async for t in engine.generate_async(prompt, max_tokens=10, **GREEDY)])

    assert await asyncio.gather(*[read(p) for p in prompts]) == alone


def test_a_callback_gets_the_pieces(engine):
    pieces = []
    text = engine.generate("hello", max_tokens=6, cb=pieces.append, **GREEDY)
    assert "".join(pieces) == text
    assert len(pieces) > 1


def test_a_callback_that_raises_ends_only_its_own_request(engine):
    def broken(piece):
        raise ValueError("not my day")

    with pytest.raises(EngineUnavailableError, match="aborted"):
        engine.generate("hello", max_tokens=200, cb=broken, **GREEDY)
    assert engine.is_healthy
    assert engine.generate("hello", max_tokens=2, **GREEDY)


def test_a_result_can_be_waited_for(engine):
    result = GenerateResult()
    assert not result.wait(0.0)
    sink = result.sink(0)
    assert not result.wait_completion(0.0)
    request = GenerationRequest(prompt="hello", max_tokens=4, **GREEDY)
    usage = list(engine.submit(request))[-1].usage
    sink.deliver([TokenDelta("a", (1,), usage), TokenDelta("b", (2,), usage)])
    assert result.wait(0.0)
    assert result.pop_all() == [(0, "a"), (0, "b")]
    sink.deliver([Finished(FinishReason.STOP, usage)])
    assert result.wait_completion(0.0)
    assert result.choices() == ["ab"]


def test_streaming_several_choices_as_plain_text_is_refused(engine):
    with pytest.raises(InvalidRequestError, match=r"submit\(\)"):
        next(engine.generate("x", stream=True, n=2))


def test_the_callers_backend_is_used_or_refused(engine):
    plain = engine.generate("hello", max_tokens=4, **GREEDY)
    with attn_backend(ATTN_BACKEND.TORCH_NATIVE):
        assert engine.generate("hello", max_tokens=4, **GREEDY) == plain
    with (
        attn_backend(ATTN_BACKEND.CUDA, strict=True),
        pytest.raises(BackendUnavailableError),
    ):
        engine.generate("hello", max_tokens=4, **GREEDY)


def test_stats_have_the_seeds_keys(engine):
    stats = engine.get_stats()
    for key in ("total_tasks", "total_tokens", "active_tasks", "waiting_queue"):
        assert isinstance(stats[key], int)
    assert stats["total_tasks"] > 0
    assert stats["total_tokens"] > 0


def test_a_full_queue_refuses_at_once(checkpoint):
    """B059: one runs, two wait, seven of ten are refused with a time to come back."""
    with open_engine(checkpoint, max_batch_size=1, max_queue=2) as engine:
        accepted, refused = [], []
        for i in range(10):
            try:
                accepted.append(
                    engine.submit(GenerationRequest(prompt=f"{i}", max_tokens=200, **GREEDY))
                )
            except QueueFullError as error:
                refused.append(error)
        assert len(refused) >= 7
        assert all(1.0 <= error.retry_after <= 60.0 for error in refused)
        for handle in accepted:
            assert list(handle)[-1].reason is FinishReason.LENGTH
        assert engine.generate("again", max_tokens=1)


def test_a_list_of_prompts_may_be_longer_than_the_queue(checkpoint):
    with open_engine(checkpoint, max_batch_size=2, max_queue=1) as engine:
        texts = engine.generate([f"prompt {i}" for i in range(12)], max_tokens=2, **GREEDY)
        assert len(texts) == 12


def test_a_small_pool_preempts_and_changes_no_text(checkpoint):
    """B015, B031: constant preemption, and every text is that of its solo run."""
    prompts = [f"request {i} " * (i % 3 + 1) for i in range(12)]
    with open_engine(checkpoint) as engine:
        alone = [engine.generate(p, max_tokens=40, **GREEDY) for p in prompts]
    with open_engine(checkpoint, n_tokens=120, max_step_tokens=16, max_batch_size=6) as engine:
        assert engine.generate(prompts, max_tokens=40, **GREEDY) == alone
        assert engine.get_stats()["preemptions"] > 0
        pages = engine.get_stats()["pages"]
        assert pages["free"] + pages["cached"] == pages["total"]
        check_invariants(engine._parts.pool)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_page_size_and_prefix_cache_change_no_text(engine, checkpoint, page_size, prefix_cache):
    prompts = ["same start, first end", "same start, second end"] * 2
    expected = [engine.generate(p, max_tokens=8, **GREEDY) for p in prompts]
    config = EngineConfig(model=str(checkpoint), page_size=page_size, prefix_cache=prefix_cache)
    with InferenceEngine(config=config) as other:
        assert [other.generate(p, max_tokens=8, **GREEDY) for p in prompts] == expected
        assert (other.get_stats()["cached_tokens"] > 0) is prefix_cache


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_precision_runs_on_a_cpu(checkpoint, dtype):
    """B187."""
    with open_engine(checkpoint, dtype=dtype) as engine:
        assert engine.info.dtype == dtype
        events = list(engine.submit(GenerationRequest(prompt="x", max_tokens=3, **GREEDY)))
        assert not any(isinstance(event, Failed) for event in events)


def test_shutdown_lets_running_requests_finish(checkpoint):
    engine = open_engine(checkpoint)
    handle = engine.submit(GenerationRequest(prompt="hello", max_tokens=30, **GREEDY))
    engine.shutdown(timeout=60)
    assert list(handle)[-1].reason is FinishReason.LENGTH
    with pytest.raises(EngineUnavailableError):
        engine.generate("late")
    assert not engine.is_healthy
    engine.shutdown()


def test_shutdown_without_time_aborts(checkpoint):
    before = set(threading.enumerate())
    engine = open_engine(checkpoint)
    handle = engine.submit(GenerationRequest(prompt="hello", max_tokens=240, **GREEDY))
    engine.shutdown()
    assert list(handle)[-1].reason in (FinishReason.ABORTED, FinishReason.LENGTH)
    assert set(threading.enumerate()) == before
    assert engine._parts.pool.num_in_use_pages == 0


def test_a_wrong_path_is_one_sentence():
    with pytest.raises(ModelNotFoundError, match="no/such/model"):
        InferenceEngine("/no/such/model")


def test_importing_the_package_brings_no_torch():
    code = (
        "import sys, astrai_engine, astrai_engine.scheduler, astrai_engine.request, "
        "astrai_engine.events, astrai_engine.config, astrai_engine.loading.source; "
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_idle_engine_costs_nothing(engine):
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


FEW = dict.fromkeys([65, 66, 67], 60.0)
"""A bias that leaves three tokens to choose from, so that guesses are right now and then."""


@pytest.fixture(scope="module")
def guessing(checkpoint):
    with open_engine(checkpoint, speculation="prompt-lookup") as engine:
        yield engine
        check_invariants(engine._parts.pool)


@pytest.fixture(scope="module")
def plain(checkpoint):
    with open_engine(checkpoint, speculation="off") as engine:
        yield engine


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 0.0},
        {"temperature": 0.6, "top_k": 4},
        {"temperature": 0.8, "top_k": 0, "top_p": 0.9, "frequency_penalty": 0.1},
        {"temperature": 0.0, "repetition_penalty": 1.01, "rep_window": 8},
        {"temperature": 0.7, "logprobs": True, "top_logprobs": 2, "min_tokens": 30},
        {"temperature": 0.0, "n": 2, "prompt_logprobs": 0},
    ],
)
def test_guesses_change_no_token(guessing, plain, parameters):
    """Alone or beside others, greedy or drawn, with penalties, log-probabilities and choices."""
    requests = [
        GenerationRequest(
            prompt=prompt, max_tokens=40, ignore_eos=True, seed=5, logit_bias=FEW, **parameters
        )
        for prompt in ("hello", "other", "la la li la la li lo" * 3)
    ]
    results = []
    for engine in (guessing, plain):
        handles = [engine.submit(request) for request in requests]
        events = [list(handle) for handle in handles]
        results.append([_tokens_and_scores(some) for some in events])
    assert results[0] == results[1]
    assert guessing.get_stats()["accepted_tokens"] > 0


def _tokens_and_scores(events):
    """What each choice got; log-probabilities as they are to a hundredth."""
    deltas = [e for e in events if isinstance(e, TokenDelta)]
    return [
        (
            [t for e in deltas if e.index == index for t in e.token_ids],
            [(x.token_id, round(x.logprob, 2)) for e in deltas for x in e.logprobs],
            [e.usage for e in events if isinstance(e, Finished) and e.index == index],
        )
        for index in (0, 1)
    ]


def test_guesses_are_counted_and_can_be_turned_off(guessing, plain):
    before = guessing.get_stats()
    for engine in (guessing, plain):
        engine.generate("hello", max_tokens=40, logit_bias=FEW, **GREEDY)
    assert guessing.info.speculation == "prompt-lookup"
    after = guessing.get_stats()
    drafted, accepted, steps = (
        after[name] - before[name] for name in ("drafted_tokens", "accepted_tokens", "steps")
    )
    assert drafted >= accepted == 40 - steps > 0
    assert plain.get_stats()["drafted_tokens"] == 0


def test_a_grammar_goes_without_guesses(guessing):
    before = guessing.get_stats()["drafted_tokens"]
    text = guessing.generate("ab" * 9, max_tokens=40, **GREEDY, grammar=Grammar.regex("(ab){30}"))
    assert text == "ab" * 20
    assert guessing.get_stats()["drafted_tokens"] == before


def test_an_end_tells_when_each_phase_was(engine):
    before = time.monotonic()
    *_, finished = engine.submit(GenerationRequest(prompt="when", max_tokens=3, **GREEDY))
    timing = finished.timing
    phases = [timing.submitted_at, timing.started_at, timing.first_token_at, timing.ended_at]
    assert before <= phases[0]
    assert phases == sorted(phases)
    assert phases[-1] <= time.monotonic()


def test_a_request_that_never_ran_has_no_phases(engine):
    request = GenerationRequest(prompt="never", deadline=time.monotonic() - 1)
    (failed,) = engine.submit(request)
    assert (failed.timing.started_at, failed.timing.first_token_at) == (None, None)
