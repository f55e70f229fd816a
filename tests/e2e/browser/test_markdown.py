"""Markdown as the page shows it."""

import pytest

from astrai_api import create_app
from astrai_api.settings import Settings
from astrai_api.testing import FakeEngine

pytestmark = pytest.mark.browser

RENDER = """async (text) => {
  const { renderMarkdown } = await import("/page/markdown.js");
  const element = document.createElement("div");
  renderMarkdown(element, text);
  return element.innerHTML;
}"""
LINK = 'target="_blank" rel="noopener noreferrer nofollow"'
CASES = {
    "plain": "<p>plain</p>",
    "two\nlines": "<p>two<br>lines</p>",
    "one\n\ntwo": "<p>one</p><p>two</p>",
    "a **b** *c* ~~d~~ __e__ _f_": (
        "<p>a <strong>b</strong> <em>c</em> <del>d</del> <strong>e</strong> <em>f</em></p>"
    ),
    "**a *b* c**": "<p><strong>a <em>b</em> c</strong></p>",
    "snake_case_name and 2 * 3 * 4": "<p>snake_case_name and 2 * 3 * 4</p>",
    "**never closed": "<p>**never closed</p>",
    r"\*not\* `a\*b`": r"<p>*not* <code>a\*b</code></p>",
    "``a`b``": "<p><code>a`b</code></p>",
    "# One\n## Two": "<h3>One</h3><h4>Two</h4>",
    "---": "<hr>",
    "> a\n> b\n\nc": "<blockquote><p>a<br>b</p></blockquote><p>c</p>",
    "- a\n- b\n  - c\n- d": "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "text:\n- a\n- b\n\nend": "<p>text:</p><ul><li>a</li><li>b</li></ul><p>end</p>",
    "- a\n\n- b": "<ul><li><p>a</p></li><li><p>b</p></li></ul>",
    "[x](https://a.b/c_(d))": f'<p><a href="https://a.b/c_(d)" {LINK}>x</a></p>',
    "see https://a.b/c.": f'<p>see <a href="https://a.b/c" {LINK}>https://a.b/c</a>.</p>',
    "[x](javascript:alert(1))": "<p>[x](javascript:alert(1))</p>",
    "a < b & c > d": "<p>a &lt; b &amp; c &gt; d</p>",
    "<script>x</script>": "<p>&lt;script&gt;x&lt;/script&gt;</p>",
    "": "",
}


@pytest.fixture
def run(serve, open_page):
    """Runs a function of JavaScript in the page."""
    page = open_page(serve(create_app(engine=FakeEngine(), settings=Settings())))
    return page.evaluate


def test_cases(run):
    assert {text: run(RENDER, text) for text in CASES} == CASES


def test_code(run):
    html = run(RENDER, "```py\n<b>\n  x\n```\nafter")
    assert '<figcaption><span>py</span><button type="button" class="link">Copy</button>' in html
    assert "<code>&lt;b&gt;\n  x</code>" in html
    assert html.endswith("<p>after</p>")
    assert "<code>open</code>" in run(RENDER, "```\nopen")
    nested = run(RENDER, "1. a\n   ```\n   x\n\n   y\n   ```\n2. b")
    assert nested.count("<li>") == 2
    assert "<code>x\n\ny</code>" in nested


def test_a_table(run):
    html = run(RENDER, "| a | b |\n|:--|--:|\n| 1 | **2** |\n| 3 |")
    assert '<th class="to-left">a</th><th class="to-right">b</th>' in html
    assert '<td class="to-right"><strong>2</strong></td>' in html
    assert "<tr><td" in html.split("</tr>")[2]


def test_a_growing_text_ends_as_the_whole_one(run):
    text = "\n\n".join(text for text in CASES if text)
    script = """async (text) => {
      const { renderMarkdown } = await import("/page/markdown.js");
      const [grown, whole] = [document.createElement("div"), document.createElement("div")];
      for (let end = 0; end <= text.length; end += 1) renderMarkdown(grown, text.slice(0, end));
      renderMarkdown(whole, text);
      return grown.innerHTML === whole.innerHTML;
    }"""
    assert run(script, text)


def test_hostile_text_is_shown_too(run):
    for piece in ("*", "[", "> ", "`", "- ", "_a", "**a", "|"):
        assert run(RENDER, piece * 5_000)
