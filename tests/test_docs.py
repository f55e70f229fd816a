"""Documents agree with the code: links lead somewhere, snippets run, tables are complete."""

import ast
import re
from pathlib import Path

import pytest

from astrai_api.settings import Settings, load_settings
from astrai_engine.errors import ConfigurationError

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", ".github/*.md", "docs/**/*.md", "packages/*/*.md")
    for path in ROOT.glob(pattern)
)
RUNNABLE = [
    "README.md",
    *(d for d in DOCUMENTS if d.startswith("docs/") or d.endswith("README.md")),
]
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
RUN = "pip install uv && uv run uvicorn astrai_api:app"
TEST = "pip install uv && uv run nox"


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def without_code(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    headings = re.findall(r"^#+ (.*)$", without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def definitions(path):
    """Every function, class and method of a file, as ``name`` and ``Class::name``."""
    names = set()

    def visit(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(prefix + child.name)
                visit(child, f"{prefix}{child.name}::")

    visit(ast.parse(path.read_text(encoding="utf-8")), "")
    return names


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for field in Settings.model_fields:
        monkeypatch.delenv(f"ASTRAI_{field.upper()}", raising=False)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    for target in LINK.findall(without_code(read(document))):
        if re.match(r"https?://|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / document).parent / name if name else ROOT / document
        assert path.exists(), target
        assert path.resolve().is_relative_to(ROOT), target
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("document", sorted(set(RUNNABLE)))
def test_python_snippets_run(document, code_blocks, run_block):
    for block in code_blocks(document, "python"):
        if "localhost:8000" not in block.code:  # those run against a server: tests/e2e
            run_block(block)


def test_the_two_commands_are_printed_as_they_are(code_blocks):
    lines = [line for block in code_blocks("README.md", "bash") for line in block.code.splitlines()]
    assert RUN in lines
    assert TEST in lines
    assert TEST in read(".ci/run").splitlines()
    assert RUN in read("CONTRIBUTING.md")
    assert TEST in read("CONTRIBUTING.md")


def test_readme_is_one_screen_and_lists_the_packages():
    text = read("README.md")
    assert len(text.splitlines()) <= 100
    rows = re.findall(r"^\| \[(astrai-\w+)\]\(packages/\1/README\.md\)", text, re.MULTILINE)
    assert sorted(rows) == sorted(p.name for p in (ROOT / "packages").iterdir())


def test_every_document_can_be_reached_from_the_readme():
    seen, waiting = set(), ["README.md"]
    while waiting:
        document = waiting.pop()
        if document not in seen and document.endswith(".md"):
            seen.add(document)
            folder = (ROOT / document).parent
            targets = [t.partition("#")[0] for t in LINK.findall(without_code(read(document)))]
            paths = [(folder / t).resolve() for t in targets if "://" not in t and t]
            waiting += [str(p.relative_to(ROOT)) for p in paths if p.suffix == ".md"]
    expected = {d for d in DOCUMENTS if not d.startswith(".github/") and "CHANGELOG" not in d}
    assert expected - seen == set()


class TestArchitecture:
    PATH = (
        "POST", "route", "ProtocolHandler", "prepare", "submit", "inbox", "schedule", "bind",
        "forward", "sample", "commit", "emit", "detokenizer", "stop strings", "event", "format",
        "SSE",
    )  # fmt: skip

    def rows(self):
        section = read("docs/architecture.md").partition("## The path of a token")[2]
        section = section.partition("\n## ")[0]
        return re.findall(r"^\| ([\w ]+) \| \[(\w+)\]\(\.\./([^)]+)\) \|", section, re.MULTILINE)

    def test_is_short(self):
        assert len(read("docs/architecture.md").splitlines()) <= 200

    def test_path_of_a_token_has_its_words_in_order(self):
        assert tuple(word for word, _, _ in self.rows()) == self.PATH

    def test_each_word_links_to_the_file_that_does_it(self):
        for word, name, target in self.rows():
            names = {n.rpartition("::")[2] for n in definitions(ROOT / target)}
            assert name in names, f"{word}: {target} defines no {name}"

    def test_phases_are_the_ops_that_the_model_calls(self):
        section = read("docs/architecture.md").partition("A decoder layer is five phases")[2]
        phases = re.findall(r"^\| [^|]+ \| \[(\w+)\]", section.partition("\n## ")[0], re.MULTILINE)
        assert phases == [
            "norm_linear", "attend", "linear_residual", "norm_gate_up", "linear_residual",
        ]  # fmt: skip
        model = read("packages/astrai-engine/src/astrai_engine/models/llama.py")
        assert all(f"{phase}(" in model for phase in phases)


class TestEnvironment:
    def rows(self):
        table = read("docs/reference/environment.md")
        return re.findall(r"^\| `(ASTRAI_\w+)` \| (.+?) \| .+ \|$", table, re.MULTILINE)

    def test_is_what_the_code_gives(self, site_module):
        page = site_module("environment")
        assert page.PAGE.read_text(encoding="utf-8") == page.environment_page(), (
            "run `uv run python docs/.site/environment.py`"
        )

    def test_lists_exactly_what_is_read(self):
        documented = [name for name, _ in self.rows()]
        assert len(set(documented)) == len(documented)
        kernels = read("packages/astrai-kernels/src/astrai_kernels/_env.py")
        read_here = {f"ASTRAI_{field.upper()}" for field in Settings.model_fields}
        assert set(documented) == read_here | set(re.findall(r'"(ASTRAI_\w+)"', kernels))

    def test_defaults_are_the_settings_own(self, monkeypatch):
        for name, default in self.rows():
            literal = re.fullmatch(r"`(.*)`", default)
            if literal:
                with monkeypatch.context() as context:
                    context.setenv(name, literal[1])
                    assert load_settings() == Settings(), name
            field = Settings.model_fields[name.removeprefix("ASTRAI_").lower()]
            assert bool(literal) == (field.default not in (None, ())), name


class TestTroubleshooting:
    FOREIGN = (
        "externally-managed-environment", "does not match the project environment path",
        "No matching distribution found", "llama-cpp-python",
        "astrai: command not found", "address already in use", "Connection refused",
        "CUDA out of memory", "Not Found",
    )  # fmt: skip
    """What others print: pip, a shell, the system, torch, starlette."""

    def quoted(self):
        table = read("docs/guides/troubleshooting.md")
        cells = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \|$", table, re.MULTILINE)
        assert len(cells) == table.count("\n| ")
        return [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]

    def texts(self):
        """Every text of the code, with … for what varies in it."""
        for path in ROOT.glob("packages/*/src/**/*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [part for part in node.values if isinstance(part, ast.Constant)]
                    yield "…".join(part.value for part in parts)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value.replace("%s", "…")

    def test_every_message_is_one_that_is_printed(self):
        texts = set(self.texts())
        quoted = set(self.quoted())
        assert quoted > set(self.FOREIGN)
        for message in quoted - {*self.FOREIGN, "ASTRAI_… should be …"}:
            parts = [part for part in message.split("…") if part]
            pattern = re.compile(".*?".join(map(re.escape, parts)), re.DOTALL)
            said = [text for text in texts if parts[0] in text and pattern.search(text)]
            assert said, message

    def test_a_bad_variable_is_told_as_quoted(self, monkeypatch):
        assert "ASTRAI_… should be …" in self.quoted()
        monkeypatch.setenv("ASTRAI_MAX_QUEUE", "0")
        with pytest.raises(ConfigurationError, match=r"^ASTRAI_MAX_QUEUE should be .+"):
            load_settings()


class TestDecisions:
    def records(self):
        return sorted(p for p in (ROOT / "docs/decisions").glob("*.md") if p.name != "README.md")

    def test_index_lists_every_record_in_order(self):
        listed = re.findall(
            r"^\| \[(\d{4})\]\(((\d{4})-[\w-]+\.md)\)",
            read("docs/decisions/README.md"),
            re.MULTILINE,
        )
        assert [target for _, target, _ in listed] == [p.name for p in self.records()]
        assert all(shown == number for shown, _, number in listed)

    def test_numbers_are_consecutive(self):
        numbers = [int(path.name[:4]) for path in self.records()]
        assert numbers == list(range(1, len(numbers) + 1))

    def test_each_is_about_half_a_page(self):
        for path in self.records():
            text = path.read_text(encoding="utf-8")
            assert text.startswith(f"# {path.name[:4]}: "), path.name
            assert len(text.split()) <= 350, path.name


class TestGlossary:
    def test_pages_are_never_called_blocks(self):
        """The word is CUDA's; a page is a page, in documents and in the names of the code."""
        cache = ROOT / "packages/astrai-kvcache/src"
        for path in cache.rglob("*.py"):
            assert not re.search(r"\bblocks?\b|block_", path.read_text(encoding="utf-8")), path
        for document in ("docs/architecture.md", "packages/astrai-kvcache/README.md"):
            assert not re.search(r"\bKV blocks?\b|\bblock table", read(document))

    def test_words_are_those_of_the_code(self):
        text = read("docs/glossary.md")
        sources = "".join(
            p.read_text(encoding="utf-8") for p in ROOT.glob("packages/*/src/**/*.py")
        )
        for name in re.findall(r"`([a-z_]+)`", text):
            assert re.search(rf"\b{name}\b", sources), name


def test_documents_do_not_promise_what_nobody_measured():
    claims = re.compile(
        r"\b(blazing|lightning|fastest|state-of-the-art|best-in-class|\d+x faster)\b", re.IGNORECASE
    )
    for document in DOCUMENTS:
        assert not claims.search(read(document)), document
