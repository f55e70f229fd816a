"""Chromium, and pages in it that must leave no error in their console."""

import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
import uvicorn

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip


@pytest.fixture(scope="session")
def chromium():
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only in its own session

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Opens a page in a profile of its own; ``expected`` errors of the console are no fault."""
    contexts, errors, expected = [], [], []

    def visit(url, *, expect=(), **options):
        expected.extend(expect)
        context = chromium.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        return page

    yield visit
    for context in contexts:
        context.close()
    faults = [e for e in errors if not any(re.search(pattern, e) for pattern in expected)]
    assert faults == []


@pytest.fixture
def serve():
    """Serves an application of this process, so that a test can hold its gates."""
    servers = []

    def start(app):
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        servers.append((server, thread))
        while not server.started:
            time.sleep(0.01)
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"

    yield start
    for server, thread in servers:
        server.should_exit = server.force_exit = True
        thread.join(20)


SCRIPT = """
import sys, uvicorn
from collections import deque
from astrai_api import create_app
from astrai_api.testing import FakeEngine, Gate, Reply

replies = deque([Reply("Half of an", Gate())] if sys.argv[2] == "stuck" else [])
app = create_app(engine=FakeEngine(replies, default="A whole answer."))
uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
"""


@pytest.fixture
def fake_process():
    """Runs a server on a fake engine in a process that can be killed, on a port of choice."""

    @contextmanager
    def run(port, kind):
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(port), kind])
        try:
            while True:
                try:
                    httpx.get(f"http://127.0.0.1:{port}/health")
                    break
                except httpx.TransportError:
                    time.sleep(0.05)
            yield process
        finally:
            process.kill()
            process.wait()

    return run
