import os

import pytest

from astrai_engine.loading.identity import model_identity

BIG = bytes(range(256)) * 4096  # larger than all samples overlap


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(BIG)
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"")
    return tmp_path


def change(path, content):
    """Change a file so that nothing but its content tells."""
    status = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("at", [0, len(BIG) // 2, len(BIG) - 1])
def test_other_weights_are_another_model(folder, at):
    before = model_identity(folder)
    assert model_identity(folder) == before
    changed = bytearray(BIG)
    changed[at] ^= 1
    change(folder / "model-00001-of-00002.safetensors", bytes(changed))
    assert model_identity(folder) != before


def test_so_are_another_configuration_another_shard_and_a_file_written_anew(folder):
    seen = {model_identity(folder)}
    change(folder / "config.json", b"[]")
    seen.add(model_identity(folder))
    (folder / "model-00003-of-00003.safetensors").write_bytes(b"x")
    seen.add(model_identity(folder))
    os.utime(folder / "config.json", ns=(1, 1))
    seen.add(model_identity(folder))
    assert len(seen) == 4


def test_what_computes_nothing_does_not_matter(folder):
    before = model_identity(folder)
    (folder / "README.md").write_text("Hello.")
    assert model_identity(folder) == before


def test_a_single_file_and_one_in_parts(tmp_path):
    for name in ("a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    alone, parts = (model_identity(tmp_path / n) for n in ("a.gguf", "b-00001-of-00002.gguf"))
    change(tmp_path / "b-00002-of-00002.gguf", b"GGUX")
    assert model_identity(tmp_path / "a.gguf") == alone
    assert model_identity(tmp_path / "b-00001-of-00002.gguf") != parts
