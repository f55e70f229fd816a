"""Random load in a pool too small for it: every text is right and nothing is left behind."""

import gc
import random
import resource
import sys
import threading
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import pytest

from astrai_engine import EngineConfig, GenerationRequest, InferenceEngine
from astrai_engine.events import Failed, Finished, FinishReason, PromptLogprobs, TokenDelta
from astrai_kvcache.testing import check_invariants

WORDS = ["red", "fox", "jumps", "over", "lazy", "dogs", "while", "many", "birds", "sing", "rain"]
TIE = 1e-3


@dataclass
class Run:
    """One request of the load and what came of it."""

    request: GenerationRequest
    tokens: list = field(default_factory=list)
    ending: object = None


def random_request(rng, max_words, max_tokens):
    shared = rng.choice(["", "You are a helpful assistant. ", "Once upon a time, long ago, "])
    prompt = shared + " ".join(rng.choices(WORDS, k=rng.randint(1, max_words)))
    common = {"prompt": prompt, "max_tokens": rng.randint(1, max_tokens)}
    kind = rng.random()
    if kind < 0.15:  # few tokens to choose from: the text repeats itself
        bias = dict.fromkeys(rng.sample(range(200), rng.randint(1, 3)), 60.0)
        return GenerationRequest(temperature=0.0, ignore_eos=True, logit_bias=bias, **common)
    if kind < 0.6:
        return GenerationRequest(temperature=0.0, ignore_eos=True, **common)
    if kind < 0.8:
        return GenerationRequest(
            temperature=rng.choice([0.5, 1.0, 1.5]),
            top_k=rng.choice([0, 5, 50]),
            top_p=rng.choice([1.0, 0.9]),
            min_p=rng.choice([0.0, 0.05]),
            n=rng.choice([1, 1, 2]),
            seed=rng.randint(0, 2**32),
            **common,
        )
    return GenerationRequest(
        stop=[rng.choice(["e", "th", "zz"])],
        frequency_penalty=rng.choice([0.0, 1.0]),
        repetition_penalty=rng.choice([1.0, 1.2]),
        logit_bias={rng.randint(0, 200): 2.0},
        logprobs=True,
        priority=rng.randint(0, 2),
        cache_salt=rng.choice([None, "tenant"]),
        **common,
    )


def drive(engine, rng, count, *, max_words, max_tokens, num_threads=12):
    """Submit ``count`` requests from several threads, aborting some at random moments."""
    runs = [Run(random_request(rng, max_words, max_tokens)) for _ in range(count)]
    todo, lock = list(enumerate(runs)), threading.Lock()
    abort_after = {i: rng.randint(0, 6) for i in range(count) if rng.random() < 0.15}

    def work():
        while True:
            with lock:
                if not todo:
                    return
                number, run = todo.pop()
            handle = engine.submit(run.request)
            for seen, event in enumerate(handle):
                if abort_after.get(number) == seen:
                    handle.abort()
                if isinstance(event, TokenDelta):
                    run.tokens += event.token_ids
                elif event.index == 0:
                    run.ending = event

    threads = [threading.Thread(target=work) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return runs


def alone(engine, request):
    """The tokens that a request gets with the engine to itself."""
    return [t for e in engine.submit(request) if isinstance(e, TokenDelta) for t in e.token_ids]


def is_tie(engine, request, tokens):
    """Whether the two likeliest tokens after ``tokens`` are closer than a tie."""
    ids = engine.tokenizer.encode(request.prompt, add_special_tokens=True) + tokens
    asked = GenerationRequest(prompt_token_ids=ids, prompt_logprobs=2, max_tokens=0)
    scores = next(e for e in engine.submit(asked) if isinstance(e, PromptLogprobs))
    first, second = scores.entries[-1].top
    return first.logprob - second.logprob < TIE


def check_texts(engine, runs):
    """Every completed greedy answer is that of its solo run, up to ties."""
    ties = 0
    for run in runs:
        assert not isinstance(run.ending, Failed), run.ending
        complete = isinstance(run.ending, Finished) and run.ending.reason is FinishReason.LENGTH
        if run.request.temperature > 0 or not complete:
            continue
        expected = alone(engine, run.request)
        if run.tokens != expected:
            same = takewhile(
                lambda pair: pair[0] == pair[1], zip(run.tokens, expected, strict=False)
            )
            assert is_tie(engine, run.request, expected[: len(list(same)) + 1])
            ties += 1
    return ties


def check_nothing_is_left(engine):
    parts = engine._parts
    stats = engine.get_stats()
    assert (stats["active_tasks"], stats["waiting_queue"]) == (0, 0)
    assert stats["pages"]["in_use"] == 0
    assert stats["pages"]["free"] + stats["pages"]["cached"] == stats["pages"]["total"]
    assert not parts.scheduler.running
    assert not parts.scheduler.waiting
    assert not engine._loop._generations
    check_invariants(parts.pool)


def resident_megabytes():
    """The memory of this process; where only Linux would tell, the most it has had so far."""
    gc.collect()
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def stress(model, count, *, n_tokens, max_words, max_tokens, seed=0, speculation="prompt-lookup"):
    rng = random.Random(seed)
    config = EngineConfig(
        model=model,
        page_size=4,
        n_tokens=n_tokens,
        max_batch_size=8,
        max_step_tokens=48,
        speculation=speculation,
    )
    with InferenceEngine(config=config) as engine:
        drive(engine, rng, 40, max_words=max_words, max_tokens=max_tokens)
        before = resident_megabytes()
        runs = drive(engine, rng, count, max_words=max_words, max_tokens=max_tokens)
        growth = resident_megabytes() - before
        stats = engine.get_stats()
        assert stats["preemptions"] > 0, "the pool was not small enough"
        assert (stats["accepted_tokens"] > 0) == (speculation != "off")
        check_nothing_is_left(engine)
        ties = check_texts(engine, runs)
        check_nothing_is_left(engine)
    assert growth < 30, f"memory grew by {growth:.0f} MB"
    assert ties <= count // 100
    return growth, ties


@pytest.mark.parametrize("speculation", ["off", "prompt-lookup"])
def test_a_random_load_leaves_nothing_behind(tiny_checkpoint, speculation):
    """B015, B016, B025, B037, B041, B213."""
    stress(
        str(tiny_checkpoint),
        150,
        n_tokens=320,
        max_words=12,
        max_tokens=24,
        speculation=speculation,
    )


@pytest.mark.soak
def test_two_thousand_requests(tiny_checkpoint):
    growth, ties = stress(str(tiny_checkpoint), 2000, n_tokens=320, max_words=12, max_tokens=24)
    print(f"2,000 requests: memory grew by {growth:.1f} MB, {ties} ties")  # noqa: T201


@pytest.mark.soak
def test_a_hundred_requests_on_the_embedded_model():
    growth, ties = stress(None, 100, n_tokens=120, max_words=30, max_tokens=24)
    print(f"100 requests: memory grew by {growth:.1f} MB, {ties} ties")  # noqa: T201
