"""The live view in a browser, on the embedded model under load."""

import re
import threading

import httpx
import pytest

pytestmark = pytest.mark.browser

SYSTEM = "You answer at length and with care, and you give an example where one helps. " * 6
COLOURS = """() => {
  const canvas = document.querySelector(".pages canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) seen.add(data.slice(i, i + 3).join());
  return seen.size;
}"""  # noqa: E501


def generate(url, topic, max_tokens):
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": topic}]
    body = {"messages": messages, "max_tokens": max_tokens, "ignore_eos": True}
    headers = {"x-request-id": f"about-{topic}"}
    httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=100)


@pytest.fixture
def load(server):
    """Eight requests that share the beginning of their prompt."""
    topics = ["bees", "bread", "clocks", "glass", "rivers", "salt", "sails", "tides"]
    threads = [
        threading.Thread(target=generate, args=(server.url, topic, 150 + 40 * i))
        for i, topic in enumerate(topics)
    ]
    yield lambda: [thread.start() for thread in threads]
    for thread in threads:
        thread.join()


def figure(page, name):
    return page.inner_text(f".figures .{name} .figure")


@pytest.mark.parametrize("width", [1280, 390])
def test_under_load(server, open_page, load, width):
    page = open_page(f"{server.url}/#engine", viewport={"width": width, "height": 900})
    page.get_by_text("SmolLM2", exact=False).first.wait_for()
    page.wait_for_selector(".figures .running .figure:has-text('0')")
    assert "Nothing has run" in page.inner_text(".card.list")
    load()
    page.wait_for_selector(".requests li:not(.ended):has-text('decoding')")
    page.wait_for_selector(".legend li:has-text('shared') b:not(:text-is('0'))")
    page.wait_for_selector(".figures .running .figure:has-text('8')")
    assert figure(page, "waiting") == "0"
    assert float(figure(page, "tokens").replace(",", "")) > 0
    assert page.evaluate(COLOURS) >= 3  # free, in use, shared
    page.locator(".requests button").nth(1).click()
    words = page.locator(".timeline-words")
    words.get_by_text("First token").wait_for()
    assert "about-" in page.inner_text(".timeline h2")
    assert page.locator(".timeline-drawing .chunk").count() >= 1
    assert page.locator(".requests button").nth(1).get_attribute("aria-pressed") == "true"
    words.get_by_text("Cut at its limit after").wait_for(timeout=60_000)
    page.wait_for_selector(".figures .running .figure:has-text('0')", timeout=60_000)
    assert page.locator(".requests .ended").count() == 8
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.click(".timeline >> text=Close")
    assert not page.locator(".timeline").is_visible()


def test_an_answer_of_the_chat_is_found_in_the_engine(server, open_page):
    page = open_page(server.url)
    page.wait_for_selector("#status[data-state=ready]")
    page.click("#toggle-parameters")
    page.fill("#parameter-max_tokens", "1500")
    page.fill("#parameter-temperature", "0")
    page.fill("#prompt", "Write a long story about a fox who crosses the sea.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".writing .prose p")
    page.get_by_role("button", name="In the engine").click()
    page.locator(".timeline h2").get_by_text("page-").wait_for()
    page.locator(".timeline-words").get_by_text(re.compile("(Ended|Cut) .* after")).wait_for()
    page.keyboard.press("Escape")
    assert not page.locator(".timeline").is_visible()
    page.reload()
    page.click("#tab-chat")
    page.get_by_role("button", name="In the engine").click()
    page.get_by_text("it ended before you began to watch").wait_for()


def test_the_feed_is_open_only_while_it_is_looked_at(server, open_page):
    page = open_page(server.url)
    page.wait_for_selector("#status[data-state=ready]")
    with page.expect_request("**/engine/live"):
        page.click("#tab-engine")
    page.wait_for_selector(".figures .running .figure:has-text('0')")
    with page.expect_event("requestfailed") as closed:
        page.click("#tab-chat")
    assert closed.value.url.endswith("/engine/live")
    assert closed.value.failure == "net::ERR_ABORTED"
