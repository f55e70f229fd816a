"""The native kernels are compiled once for a machine, or say why they cannot be."""

import os
import stat
import subprocess
import sys

import pytest

from astrai_kernels import NativeUnavailableError
from astrai_kernels.cpu import compiler, library

FAKE = """#!/bin/sh
case "$1" in --version) echo "g++ (fake) {version}"; exit 0;; esac
while [ $# -gt 0 ]; do case "$1" in -c) unit=$2;; -o) target=$2;; esac; shift; done
echo "$target" >> "{log}"
echo made > "$target"
{then}
"""


@pytest.fixture
def fake_compiler(tmp_path, monkeypatch):
    """Puts a compiler on the path that notes what it makes; gives the notes."""
    log = tmp_path / "log"

    def install(version="1.0", then="exit 0"):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        path = folder / "g++"
        path.write_text(FAKE.format(version=version, log=log, then=then))
        path.chmod(path.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("ASTRAI_CACHE_DIR", str(tmp_path / "cache"))

    def made():
        return log.read_text().splitlines() if log.exists() else []

    install.made = made
    return install


def test_a_library_is_built_once_and_kept(fake_compiler, tmp_path):
    fake_compiler()
    path = compiler.compiled_library()
    num_units = len(list(compiler.SOURCES.glob("*.cpp")))
    assert path.read_text() == "made\n"
    assert path.parent == tmp_path / "cache" / "kernels"
    assert len(fake_compiler.made()) == num_units + 1
    assert compiler.compiled_library() == path
    assert len(fake_compiler.made()) == num_units + 1
    assert {left.suffix for left in path.parent.iterdir()} == {".so", ".lock"}


def test_another_compiler_processor_or_variant_makes_another_library(fake_compiler, monkeypatch):
    fake_compiler()
    paths = {compiler.compiled_library(), compiler.compiled_library(portable=True)}
    fake_compiler(version="2.0")
    paths.add(compiler.compiled_library())
    monkeypatch.setattr(compiler, "_processor", lambda: "another")
    paths.add(compiler.compiled_library())
    assert len(paths) == 4


def test_another_source_makes_another_library(fake_compiler, monkeypatch, tmp_path):
    fake_compiler()
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "one.cpp").write_text("int one;")
    monkeypatch.setattr(compiler, "SOURCES", sources)
    first = compiler.compiled_library()
    (sources / "one.cpp").write_text("int two;")
    assert compiler.compiled_library() != first


def test_processes_at_once_build_once(fake_compiler):
    fake_compiler()
    code = "from astrai_kernels.cpu.compiler import compiled_library; print(compiled_library())"
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = {process.communicate(timeout=60)[0] for process in running}
    assert len(printed) == 1
    assert len(fake_compiler.made()) == len(list(compiler.SOURCES.glob("*.cpp"))) + 1


def test_a_failing_compiler_is_quoted_and_leaves_nothing(fake_compiler, tmp_path):
    fake_compiler(then="echo 'no space left' >&2; exit 1")
    with pytest.raises(NativeUnavailableError, match=r"cannot compile the kernels \(no space left"):
        compiler.compiled_library()
    assert [left.suffix for left in (tmp_path / "cache" / "kernels").iterdir()] == [".lock"]


def test_a_folder_that_cannot_be_written_is_named(fake_compiler, monkeypatch, tmp_path):
    fake_compiler()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASTRAI_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(NativeUnavailableError, match=r"file/kernels cannot be written"):
        compiler.compiled_library()


def test_clang_is_not_given_flags_of_gcc(monkeypatch):
    monkeypatch.setattr(compiler, "_run", lambda command: "clang version 19\n")
    assert "-fno-tree-reassoc" not in compiler.find_toolchain().flags
    assert "-march=native" in compiler.find_toolchain().flags
    assert "-march=native" not in compiler.find_toolchain(portable=True).flags


def test_windows_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(NativeUnavailableError, match="Linux and macOS only"):
        compiler.find_toolchain()


def test_a_compiler_that_cannot_be_run_is_named(tmp_path):
    with pytest.raises(NativeUnavailableError, match="nowhere cannot be run"):
        compiler._run([str(tmp_path / "nowhere")])


def test_what_is_no_library_is_refused(tmp_path):
    path = tmp_path / "broken.so"
    path.write_text("not a library")
    with pytest.raises(NativeUnavailableError, match=r"cannot be loaded .* delete .*broken\.so"):
        library.CpuLibrary(path)


def test_a_missing_compiler_is_remembered(monkeypatch):
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "no C++ compiler" in library.unavailable_reason()
    monkeypatch.undo()
    monkeypatch.setattr(library, "_loaded", NativeUnavailableError("gone."))
    with pytest.raises(NativeUnavailableError, match="gone"):
        library.load_library()


def test_the_number_of_threads_can_be_set(kernels):
    library.set_num_threads(3)
    assert kernels.num_threads() == 3
    library.set_num_threads(2)
    with pytest.raises(ValueError, match="at least 1 thread, not 0"):
        library.set_num_threads(0)
