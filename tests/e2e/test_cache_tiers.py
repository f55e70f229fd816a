"""The disk tier of a real server: what it computed before it was stopped, the next engine finds."""

import httpx

from astrai_api.settings import Settings
from astrai_engine import GenerationRequest, InferenceEngine
from astrai_kernels import cache_dir

MESSAGES = [{"role": "user", "content": "the quick brown fox jumps over the lazy dog"}]


def test_what_a_server_computed_outlives_it(start_server, tiny_checkpoint, tmp_path):
    (tmp_path / "kernels").symlink_to(cache_dir() / "kernels")  # compiled once is enough
    settings = {
        "model": str(tiny_checkpoint),
        "cache_dir": str(tmp_path),
        "disk_cache_bytes": 2**24,
    }
    variables = {f"ASTRAI_{name.upper()}": value for name, value in settings.items()}
    with start_server(**variables) as server:
        body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 4}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    with InferenceEngine(config=Settings(**settings).engine_config()) as engine:
        request = GenerationRequest(messages=MESSAGES, temperature=0, max_tokens=4)
        *deltas, finished = engine.submit(request)
    assert finished.usage.cached_tokens == 32
    text = "".join(delta.text for delta in deltas)
    assert text == answer["choices"][0]["message"]["content"]
