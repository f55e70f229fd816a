"""What the tests of the repository share: its files, and the code blocks of its documents."""

import importlib.util
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("astrai-kvcache", "astrai-kernels", "astrai-engine", "astrai-api")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block of a document.

    Attributes:
        where: the document and the block's first line in it, for messages.
        code: its text.
        output: what the document says it prints: the ``text`` block that follows it directly.
    """

    where: str
    code: str
    output: str | None


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session", params=PACKAGES)
def package(request) -> Path:
    """The folder of each package."""
    return ROOT / "packages" / request.param


@pytest.fixture(scope="session")
def tracked_files() -> list[Path]:
    """Every file that is in git, or will be once it is added."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="session")
def site_module() -> Callable[[str], ModuleType]:
    """``site_module("environment")``: one of the scripts that make the documentation site."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/.site/{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def code_blocks() -> Callable[[str, str], list[CodeBlock]]:
    """``code_blocks("README.md", "python")``: a document's blocks of one language."""

    def blocks(path: str, language: str) -> list[CodeBlock]:
        text = (ROOT / path).read_text(encoding="utf-8")
        found = []
        for match in _FENCE.finditer(text):
            if match[1] == language:
                after = _FENCE.match(text, match.end() + 2)
                output = after[2] if after and after[1] == "text" else None
                line = text.count("\n", 0, match.start()) + 1
                found.append(CodeBlock(f"{path}:{line}", match[2], output))
        return found

    return blocks


@pytest.fixture
def run_block(capsys) -> Callable[[CodeBlock], None]:
    """Runs a Python block as a program, and compares its output with the document's."""

    def run(block: CodeBlock) -> None:
        capsys.readouterr()
        exec(compile(block.code, block.where, "exec"), {"__name__": "__main__"})
        printed = capsys.readouterr().out
        if block.output is not None:
            assert printed == block.output, block.where

    return run
