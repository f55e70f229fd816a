"""Guesses of the next tokens change how fast the embedded model answers, never what."""

import httpx

from astrai_engine import EngineConfig, GenerationRequest, InferenceEngine
from astrai_engine.events import TokenDelta

LINES = "".join(f'{{"id": {n}, "city": "{c}", "open": true}}\n' for n, c in enumerate("ABCDEFG"))
PROMPTS = [
    f"Before:\n{LINES}\nAfter, with all closed:\n" + '{"id": 0, "city": "A", "open": false}\n',
    "Tell me about the sea, the sea, the sea.",
    "1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3",
]
PARAMETERS = [
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 40, "seed": 3},
    {"temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.2, "seed": 4},
    {"temperature": 0.0, "repetition_penalty": 1.05, "stop": ["sea,"]},
]


def answers(mode):
    """The tokens of requests that run beside each other."""
    requests = [
        GenerationRequest(prompt=prompt, max_tokens=32, **parameters)
        for prompt in PROMPTS
        for parameters in PARAMETERS
    ]
    with InferenceEngine(config=EngineConfig(speculation=mode, max_batch_size=6)) as engine:
        handles = [engine.submit(request) for request in requests]
        texts = ["".join(e.text for e in handle if isinstance(e, TokenDelta)) for handle in handles]
        return texts, engine.get_stats()["accepted_tokens"]


def test_the_texts_are_those_without_guesses():
    """B066: to the last character, whatever runs beside a request."""
    plain, none = answers("off")
    guessed, accepted = answers("prompt-lookup")
    assert guessed == plain
    assert accepted > none == 0


def test_a_server_counts_them(start_server):
    with start_server(ASTRAI_SPECULATION="prompt-lookup") as server:
        body = {"prompt": PROMPTS[2], "max_tokens": 40, "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 40
        stats = server.wait_idle()
        assert stats["accepted_tokens"] > 0
        assert stats["steps"] == 40 - stats["accepted_tokens"]
        metrics = httpx.get(f"{server.url}/metrics").text
        assert "astrai:spec_decode_num_accepted_tokens_total" in metrics
