"""The chat in a browser, on a scripted engine."""

import re
import socket

import pytest

from astrai_api import create_app
from astrai_api.settings import Settings
from astrai_api.testing import FakeEngine, FakeInfo, Gate, Reply
from astrai_engine.errors import QueueFullError

pytestmark = pytest.mark.browser

PHONE = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "has_touch": True,
    "is_mobile": True,
}


@pytest.fixture
def chat(serve, open_page):
    """The page on an engine with these replies, ready."""

    def start(*replies, settings=None, engine=None, expect=(), **options):
        engine = engine or FakeEngine.scripted(*replies)
        url = serve(create_app(engine=engine, settings=settings or Settings()))
        page = open_page(url, expect=expect, **options)
        if not (settings and settings.api_key):
            page.wait_for_selector("#status[data-state=ready]")
        return page, engine

    return start


def ask(page, text):
    page.fill("#prompt", text)
    page.keyboard.press("Enter")


def answer(page, number=0):
    """The text of an answer that is complete."""
    element = page.locator(".message.assistant:not(.writing)").nth(number)
    element.get_by_role("button", name=re.compile("Regenerate|Try again")).wait_for()
    return element.locator("> .prose").inner_text()


def test_an_answer_comes_word_by_word_and_stays_after_a_reload(chat):
    gate = Gate()
    page, _ = chat(Reply("Half **of", gate, " it**."))
    ask(page, "Hello")
    writing = page.locator(".message.assistant.writing")
    writing.get_by_text("Half **of").wait_for()
    assert page.inner_text("#send") == "Stop"
    gate.open()
    assert answer(page) == "Half of it."
    assert page.inner_text(".assistant .prose strong") == "of it"
    stats = page.inner_text(".assistant .stats")
    assert re.fullmatch(r"4 tokens · ([\d.,]+ a second · )?first after [\d.]+ \S+", stats), stats
    assert page.inner_text("#send") == "Send"
    page.reload()
    page.wait_for_selector("#status[data-state=ready]")
    assert answer(page) == "Half of it."
    assert page.inner_text(".user > .prose") == "Hello"


@pytest.mark.parametrize("by", ["button", "key"])
def test_stop(chat, by):
    page, engine = chat(Reply("Some words", Gate()), Reply("More."))
    ask(page, "Hello")
    page.locator(".writing").get_by_text("Some words").wait_for()
    if by == "button":
        page.click("#send")
    else:
        page.keyboard.press("Escape")
    assert answer(page) == "Some words"
    assert "stopped" in page.inner_text(".assistant .stats")
    ask(page, "Go on")
    assert answer(page, 1) == "More."
    assert engine.handles[0].aborted.is_open
    roles = [message["role"] for message in engine.requests[1].messages]
    assert roles == ["user", "assistant", "user"]


def test_regenerate(chat):
    page, engine = chat(Reply("One."), Reply("Two."))
    ask(page, "Hello")
    assert answer(page) == "One."
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_text("Two.").wait_for()
    assert page.locator(".message").count() == 2
    assert engine.requests[0].messages == engine.requests[1].messages


def test_edit(chat):
    page, engine = chat(Reply("One."), Reply("Two."), Reply("Three."))
    ask(page, "First")
    answer(page)
    ask(page, "Second")
    answer(page, 1)
    page.locator(".user").first.hover()
    page.locator(".user").first.get_by_text("Edit").click()
    page.keyboard.press("Escape")
    assert page.locator(".edit").count() == 0
    page.locator(".user").first.get_by_text("Edit").click()
    page.fill(".edit textarea", "Other")
    page.keyboard.press("Enter")
    page.get_by_text("Three.").wait_for()
    assert page.locator(".message").count() == 2
    assert [m["content"] for m in engine.requests[2].messages] == ["Other"]
    page.focus("#prompt")
    page.keyboard.press("ArrowUp")
    assert page.input_value(".edit textarea") == "Other"


def test_editing_while_an_answer_runs_stops_it(chat):
    page, engine = chat(Reply("Long", Gate()), Reply("Short."))
    ask(page, "First")
    page.locator(".writing").get_by_text("Long").wait_for()
    page.locator(".user").hover()
    page.click("text=Edit")
    page.fill(".edit textarea", "Other")
    page.keyboard.press("Enter")
    assert answer(page) == "Short."
    assert page.locator(".message").count() == 2
    assert [m["content"] for m in engine.requests[1].messages] == ["Other"]


def test_parameters_are_sent_and_kept(chat):
    page, engine = chat(Reply("One."), Reply("Two."))
    page.click("#toggle-parameters")
    page.fill("#parameter-system", "Be brief.")
    for name, value in {"temperature": "0.25", "top_k": "7", "max_tokens": "99"}.items():
        page.fill(f"#parameter-{name}", value)
        page.press(f"#parameter-{name}", "Tab")
    page.fill("#parameter-seed", "12x")
    page.fill("#parameter-stop", "END\nFIN")
    ask(page, "Hello")
    answer(page)
    page.reload()
    page.wait_for_selector("#status[data-state=ready]")
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_text("Two.").wait_for()
    for request in engine.requests:
        assert request.messages[0] == {"role": "system", "content": "Be brief."}
        assert (request.temperature, request.top_k, request.max_tokens) == (0.25, 7, 99)
        assert (request.seed, tuple(request.stop)) == (12, ("END", "FIN"))
    page.click("#toggle-parameters")
    page.click("text=Reset")
    assert page.input_value("#parameter-temperature") == ""
    assert page.input_value("#parameter-system") == ""


def test_thoughts_are_folded(chat):
    info = FakeInfo(chat_template="{{ '<think>' }}...{{ content.split('</think>') }}")
    engine = FakeEngine.scripted(Reply("<think>Hm, well.</think>Yes."), info=info)
    page, _ = chat(engine=engine)
    ask(page, "Is it?")
    assert answer(page) == "Yes."
    thought = page.locator(".reasoning .prose")
    assert not thought.is_visible()
    page.click(".reasoning summary")
    assert thought.inner_text() == "Hm, well."


ATTACK = """<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">
[a](javascript:window.hacked=3) ![b](https://example.com/x.png)
[c](data:text/html,<script>1</script>)
<svg onload=window.hacked=4>

- <iframe src="javascript:window.hacked=5"></iframe>

| <b onclick=1>x</b> | y |
|---|---|
| `<script>` | <style>body{display:none}</style> |

```html"><script>window.hacked=6</script>
</code></pre><script>window.hacked = 7</script>
```
"""


def test_what_looks_like_html_is_text(chat):
    page, _ = chat(Reply(ATTACK))
    ask(page, "Attack <b>me</b>")
    text = answer(page)
    assert "<script>window.hacked = 1</script>" in text
    assert "</code></pre><script>window.hacked = 7</script>" in text
    assert page.inner_text(".user > .prose") == "Attack <b>me</b>"
    tags = page.eval_on_selector_all(".message *", "all => [...new Set(all.map(e => e.tagName))]")
    assert not {"SCRIPT", "IMG", "SVG", "IFRAME", "STYLE", "B"} & {tag.upper() for tag in tags}
    links = page.eval_on_selector_all(".prose a", "all => all.map(a => a.href)")
    assert links == ["https://example.com/x.png"]
    assert page.evaluate("window.hacked") is None


def test_a_server_with_keys_asks_for_one(chat):
    page, engine = chat(
        Reply("In."), settings=Settings(api_key=("right",)), expect=("status of 401",)
    )
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    page.get_by_text("The API key is not one of this server's.").wait_for()
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "right")
    page.keyboard.press("Enter")
    page.wait_for_selector("#status[data-state=ready]")
    ask(page, "Hello")
    assert answer(page) == "In."
    page.click("#tab-engine")
    page.wait_for_selector(".figures .running .figure:has-text('0')")
    page.reload()
    page.wait_for_selector("#status[data-state=ready]")
    assert len(engine.requests) == 1


def test_a_refusal_is_shown_and_can_be_tried_again(chat):
    full = QueueFullError("Too many wait; try again in 2 seconds.", retry_after=2)
    page, _ = chat(Reply(refuse=full), Reply("Now."), expect=("status of 429",))
    ask(page, "Hello")
    page.get_by_text("Too many wait; try again in 2 seconds.").wait_for()
    page.get_by_role("button", name="Try again").click()
    assert answer(page) == "Now."


def test_a_server_that_dies_and_comes_back(open_page, fake_process):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with fake_process(port, "stuck") as process:
        page = open_page(f"http://127.0.0.1:{port}/", expect=("Failed to load resource",))
        page.wait_for_selector("#status[data-state=ready]")
        ask(page, "Hello")
        page.locator(".writing").get_by_text("Half of an").wait_for()
        process.kill()
        page.get_by_text("The connection was lost.").wait_for()
        page.wait_for_selector("#status[data-state=away]")
        assert "can't be reached" in page.inner_text("#status-text")
        assert page.inner_text(".assistant > .prose") == "Half of an"
        page.click("#tab-engine")
        page.wait_for_selector(".feed-notice:visible")
    with fake_process(port, "well"):
        page.wait_for_selector("#status[data-state=ready]")
        page.wait_for_selector(".feed-notice", state="hidden")
        page.wait_for_selector(".figures .running .figure:has-text('0')")
        page.click("#tab-chat")
        page.get_by_role("button", name="Try again").click()
        assert answer(page) == "A whole answer."


def test_everything_can_be_done_from_the_keyboard(chat):
    page, _ = chat(Reply("One."))
    page.keyboard.press("Tab")
    page.keyboard.press("?")
    page.wait_for_selector("#help-dialog[open]")
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    page.keyboard.type("Hi there")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("again")
    page.keyboard.press("Enter")
    assert answer(page) == "One."
    assert page.inner_text(".user > .prose") == "Hi there\nagain"
    page.keyboard.press("Alt+2")
    assert page.locator("#engine").is_visible()
    page.keyboard.press("Alt+1")
    assert page.locator("#chat").is_visible()
    page.focus("#tab-chat")
    page.keyboard.press("ArrowRight")
    assert page.locator("#engine").is_visible()
    assert page.evaluate("document.activeElement.id") == "tab-engine"


def test_a_new_chat_can_be_undone(chat):
    page, _ = chat(Reply("One."))
    ask(page, "Hello")
    answer(page)
    page.keyboard.press("Alt+n")
    assert page.locator(".message").count() == 0
    assert page.locator("#welcome").is_visible()
    page.click("text=Undo")
    assert answer(page) == "One."


def test_copy(chat):
    page, _ = chat(Reply("Here:\n\n```python\nprint(1)\n```\n"))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, "Code")
    answer(page)
    page.click(".code >> text=Copy")
    page.click(".code >> text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "print(1)"


LONG = f"""A word and `{"x" * 300}`

```
{"y" * 300}
```

| {"z" * 200} | b |
|---|---|
| 1 | 2 |
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(chat, scheme):
    page, _ = chat(Reply(LONG), color_scheme=scheme, **PHONE)
    ask(page, "Long words " + "w" * 200)
    answer(page)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    for selector in ("#send", "#toggle-parameters", "#tab-engine", "#status-text"):
        box = page.locator(selector).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        assert box["y"] + box["height"] <= 844
    for tab in ("chat", "engine"):
        page.click(f"#tab-{tab}")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        wide = f"document.querySelector('#{tab}').scrollWidth"
        assert page.evaluate(wide) <= 390
    page.click("#tab-chat")
    page.click("#toggle-parameters")
    page.fill("#parameter-system", "Be brief.")
    page.click(".parameters >> text=Close")
    assert page.locator("#prompt").is_visible()


def test_a_theme_that_was_chosen_stays(chat):
    page, _ = chat(color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.click("#theme")
    dark = page.evaluate(paper)
    assert light != dark
    page.reload()
    assert page.evaluate(paper) == dark
