"""Two processes that run one model together, against one process that runs it alone."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, Qwen2Config

from astrai_engine import EngineConfig, Failed, GenerationRequest, InferenceEngine, TokenDelta
from astrai_engine.errors import ConfigurationError, EngineUnavailableError, InvalidRequestError
from astrai_engine.events import Finished, PromptLogprobs
from astrai_kernels import ATTN_BACKEND, attn_backend

pytestmark = pytest.mark.scale

TINY = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.4,
    "eos_token_id": 256,
    "bos_token_id": None,
}
SHARED = "You are a helpful assistant. "
WORDS = ["red", "fox", "jumps", "over", "lazy", "dogs", "while", "many", "birds", "sing"]


def save(config_type, folder, **settings):
    """A random model over bytes, as Hugging Face would save it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    torch.manual_seed(0)
    config = config_type(vocab_size=backend.get_vocab_size(), **TINY | settings)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save(LlamaConfig, tmp_path_factory.mktemp("llama"))


def engine(model, size=2, **settings):
    settings = {"dtype": "float32", "quantization": "none", "max_batch_size": 4} | settings
    return InferenceEngine(model, config=EngineConfig(tensor_parallel_size=size, **settings))


@pytest.fixture(scope="module")
def alone(checkpoint):
    with engine(checkpoint, size=1) as running:
        yield running


@pytest.fixture(scope="module")
def two(checkpoint):
    """Two processes with a pool that is too small for what they are given."""
    small = {"n_tokens": 160, "max_step_tokens": 32, "page_size": 4}
    with engine(checkpoint, speculation="prompt-lookup", **small) as running:
        yield running


def workers(running):
    """The process ids of an engine's workers."""
    return [worker._process.pid for worker in running._parts.crew._workers]


def exists(pid):
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=20.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def answer(running, request):
    """The tokens of a request, and how it ended."""
    tokens, ending = [], None
    for event in running.submit(request):
        if isinstance(event, TokenDelta):
            tokens += event.token_ids
        elif isinstance(event, (Finished, Failed)):
            ending = event
    return tokens, ending


def greedy(prompt, max_tokens=24, **more):
    return GenerationRequest(
        prompt=prompt, max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **more
    )


def scores(running):
    """Log-probabilities of all positions of a prompt and of what follows it."""
    request = greedy(SHARED, 6, prompt_logprobs=5, logprobs=True, top_logprobs=5)
    found = []
    for event in running.submit(request):
        entries = event.entries if isinstance(event, PromptLogprobs) else ()
        entries = event.logprobs or () if isinstance(event, TokenDelta) else entries
        found += [top.logprob for entry in entries if entry is not None for top in entry.top]
    return torch.tensor(found)


def assert_equal_scores(running, alone):
    expected = scores(alone)
    assert len(expected) > 100
    torch.testing.assert_close(scores(running), expected, atol=1e-5, rtol=0.0)


def test_scores_are_those_of_one_process(two, alone):
    assert two.info.tensor_parallel_size == 2
    assert_equal_scores(two, alone)


@pytest.mark.parametrize(
    ("config_type", "settings"),
    [
        (LlamaConfig, {"tie_word_embeddings": True}),
        (Qwen2Config, {"num_key_value_heads": 3}),
    ],
    ids=["llama, tied", "qwen2, biased, unequal shares"],
)
def test_other_models_and_their_end(config_type, settings, tmp_path):
    model = save(config_type, tmp_path, **settings)
    with engine(model, size=1) as one, engine(model) as running:
        pids = workers(running)
        assert all(map(exists, pids))
        assert_equal_scores(running, one)
    assert not any(map(exists, pids))
    running.shutdown()


def test_a_small_pool_under_load(two, alone):
    """Continuous batching, chunks, prefix hits and preemption change no text."""
    prompts = [SHARED * (n % 3) + " ".join(WORDS[: 2 + n % 8]) for n in range(24)]
    requests = [greedy(prompt, 12 + n % 20) for n, prompt in enumerate(prompts)]
    expected = [answer(alone, request)[0] for request in requests]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda request: answer(two, request), requests))
    stats = two.get_stats()
    assert [tokens for tokens, _ in answers] == expected
    assert stats["cached_tokens"] > 0
    assert stats["preemptions"] > 0


def test_guesses_are_checked_by_all_ranks(two, alone):
    known = two.get_stats()["accepted_tokens"]
    request = greedy("ABABABAB", 40, logit_bias={65: 60.0, 66: 60.0})
    assert answer(two, request)[0] == answer(alone, request)[0]
    assert two.get_stats()["accepted_tokens"] > known


def test_a_chosen_backend_runs_on_all_ranks(two, alone):
    with attn_backend(ATTN_BACKEND.TORCH_NATIVE):
        assert answer(two, greedy("red"))[0] == answer(alone, greedy("red"))[0]
    with (
        attn_backend(ATTN_BACKEND.TORCH_NATIVE, strict=True),
        pytest.raises(InvalidRequestError, match="tensor_parallel_size 1"),
    ):
        two.submit(greedy("red"))
    assert two.is_healthy


def test_the_embedded_model():
    prompt = "The capital of France is"
    with engine(None, size=1, max_seq_len=512) as one:
        expected = one.generate(prompt, max_tokens=12, temperature=0.0)
    with engine(None, max_seq_len=512) as running:
        assert running.generate(prompt, max_tokens=12, temperature=0.0) == expected


def test_the_embedded_model_in_its_own_precision():
    prompt = "The capital of France is"
    with engine(None, max_seq_len=512, quantization="auto") as running:
        assert running.info.quantization == "file"
        assert "Paris" in running.generate(prompt, max_tokens=8, temperature=0.0)


def test_an_idle_worker_costs_nothing(two):
    two.generate("red", max_tokens=2)
    (pid,) = workers(two)

    def ticks():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(1.0)
    assert ticks() - before <= 2  # of 100


def test_a_killed_worker_fails_what_runs(checkpoint):
    running = engine(checkpoint)
    try:
        handle = running.submit(greedy("red fox", 200))
        events = iter(handle)
        assert isinstance(next(events), TokenDelta)
        (pid,) = workers(running)
        os.kill(pid, signal.SIGKILL)
        *_, last = events
        assert isinstance(last, Failed)
        assert isinstance(last.error, EngineUnavailableError)
        wait_until(lambda: not running.is_healthy)
        with pytest.raises(EngineUnavailableError, match="restarted"):
            running.submit(greedy("red"))
    finally:
        running.shutdown()
    assert not exists(pid)


def test_a_worker_killed_at_rest_is_noticed(checkpoint):
    running = engine(checkpoint)
    try:
        (pid,) = workers(running)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not running.is_healthy)
        with pytest.raises(EngineUnavailableError, match="rank 1 was ended by signal 9"):
            running.submit(greedy("red"))
    finally:
        running.shutdown()


def test_signals_to_the_whole_group_do_not_end_workers(two):
    for pid in workers(two):
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    assert two.generate("red", max_tokens=4, ignore_eos=True)


PROGRAM = """
import sys
from astrai_engine import EngineConfig, InferenceEngine

config = EngineConfig(tensor_parallel_size=2, dtype="float32", max_batch_size=2)
engine = InferenceEngine(sys.argv[1], config=config)
print(*[worker._process.pid for worker in engine._parts.crew._workers], flush=True)
engine.generate("red", max_tokens=20, ignore_eos=True)
if sys.argv[2] == "exits":
    sys.exit()
while True:
    for _ in engine.generate("red", max_tokens=200, ignore_eos=True, stream=True):
        pass
"""
"""It has no guard of its main module, and starts an engine where it is imported."""


@pytest.mark.parametrize("how", ["killed", "exits"])
def test_a_rank_0_that_ends_takes_its_workers_along(how, checkpoint, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    first = subprocess.Popen(
        [sys.executable, program, checkpoint, how], stdout=subprocess.PIPE, text=True
    )
    with first:
        pids = [int(pid) for pid in first.stdout.readline().split()]
        assert len(pids) == 1
        if how == "killed":
            first.kill()
        else:
            assert first.wait(20) == 0
        wait_until(lambda: not any(map(exists, pids)))


def test_what_cannot_be_shared_out_is_refused(tmp_path):
    model = save(LlamaConfig, tmp_path, num_key_value_heads=2)
    with pytest.raises(ConfigurationError, match="tensor_parallel_size is 3, but the model has 2"):
        engine(model, size=3)


def test_a_worker_that_cannot_start(checkpoint, monkeypatch):
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    with pytest.raises(ConfigurationError, match=r"Rank 1 did not start\. It ended with status 1"):
        engine(checkpoint)
