import importlib
import logging
import os
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import astrai_kvcache.disk_tier
from astrai_kvcache import PageKV
from astrai_kvcache.disk_tier import DiskTier
from astrai_kvcache.prefix_cache import token_bytes
from astrai_kvcache.tiers import Prefixes


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "pages"


def prefix(*tokens, salt=None, fingerprint="m"):
    prefixes = Prefixes(fingerprint)
    key = prefixes.root(salt)
    for token in tokens:
        key = prefixes.child(key, token_bytes([token]))
    return key


def page(value, dtype=torch.float32):
    keys = torch.full((2, 1, 1, 8), value, dtype=torch.float32).to(dtype)
    return PageKV(keys, -keys)


def equal(found, stored):
    return torch.equal(found.keys, stored.keys) and torch.equal(found.values, stored.values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_page_outlives_the_process(folder, dtype):
    DiskTier(folder, 10_000).put(prefix(1, 2), page(3, dtype))
    tier = DiskTier(folder, 10_000)
    assert prefix(1, 2) in tier
    assert equal(tier.get(prefix(1, 2)), page(3, dtype))
    assert tier.get(prefix(1, 2)).keys.dtype == dtype
    assert len(tier) == 1
    assert tier.num_bytes == sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.parametrize(
    "other",
    [
        prefix(1, 2, salt="b"),
        prefix(1, 2),
        prefix(1, 2, salt=("a",)),
        prefix(1, 2, salt="a", fingerprint="another model"),
        prefix(9, 2, salt="a"),
        prefix(1, 3, salt="a"),
        prefix(2, salt="a"),
    ],
)
def test_only_equal_content_is_found(folder, other):
    """B007: put with salt "a", get with salt "b"; so with models and prefixes."""
    DiskTier(folder, 10_000).put(prefix(1, 2, salt="a"), page(3))
    tier = DiskTier(folder, 10_000)
    assert other not in tier
    assert not tier.touch(other)
    assert tier.get(other) is None
    assert prefix(1, 2, salt="a") in tier


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (prefix(1, 2, salt="b"), "another model or salt"),
        (prefix(1, 2, salt="a", fingerprint="another model"), "another model or salt"),
        (prefix(9, 2, salt="a"), "other tokens"),
        (prefix(1, 3, salt="a"), "other tokens"),
        (prefix(2, salt="a"), "other tokens"),
    ],
)
def test_a_name_alone_is_never_believed(folder, monkeypatch, caplog, other, reason):
    """B004, B029: with one name for all pages, everything they were computed from decides."""
    monkeypatch.setattr(astrai_kvcache.disk_tier, "_name", lambda _: f"{'0' * 64}.safetensors")
    tier = DiskTier(folder, 10_000)
    tier.put(prefix(1, 2, salt="a"), page(3))
    assert equal(tier.get(prefix(1, 2, salt="a")), page(3))
    assert tier.get(other) is None
    assert reason in caplog.text


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-1])


def cut_to_nothing(path):
    path.write_bytes(b"")


def cut_within_the_header(path):
    path.write_bytes(path.read_bytes()[:20])


def flip_a_bit_of_the_values(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def replace_by_another_format(path):
    path.write_bytes(b"GGUF" * 100)


def replace_by_other_tensors(path):
    save_file({"weight": torch.zeros(3)}, path)


def reshape(path):
    tensors = load_file(path)
    save_file({**tensors, "keys": tensors["keys"].view(1, 2, 1, 8).clone()}, path)


def drop_the_metadata(path):
    save_file(load_file(path), path)


def put_another_page_there(path):
    other = path.parent.parent / "other"
    DiskTier(other, 10_000).put(prefix(7), page(7))
    (file,) = other.iterdir()
    file.replace(path)


@pytest.mark.parametrize(
    "damage",
    [
        cut_off,
        cut_to_nothing,
        cut_within_the_header,
        flip_a_bit_of_the_values,
        replace_by_another_format,
        replace_by_other_tensors,
        reshape,
        drop_the_metadata,
        put_another_page_there,
    ],
)
def test_a_damaged_or_foreign_file_is_ignored_and_can_be_replaced(folder, caplog, damage):
    DiskTier(folder, 10_000).put(prefix(1), page(1))
    (path,) = folder.iterdir()
    damage(path)
    tier = DiskTier(folder, 10_000)
    assert tier.get(prefix(1)) is None
    assert f"The stored page {path} is ignored" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING
    assert (len(tier), tier.num_bytes, list(folder.iterdir())) == (0, 0, [])
    tier.put(prefix(1), page(1))
    assert equal(tier.get(prefix(1)), page(1))


def test_a_file_that_somebody_removed_is_ignored(folder, caplog):
    tier = DiskTier(folder, 10_000)
    tier.put(prefix(1), page(1))
    next(folder.iterdir()).unlink()
    assert tier.touch(prefix(1))
    assert tier.get(prefix(1)) is None
    assert "is ignored" in caplog.text
    assert len(tier) == 0


def test_files_that_are_no_pages_are_left_alone(folder, caplog):
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "model.safetensors").write_bytes(b"")
    assert len(DiskTier(folder, 10_000)) == 0
    assert "notes.txt is ignored: it is not a stored page" in caplog.text
    assert {path.name for path in folder.iterdir()} == {"notes.txt", "model.safetensors"}


def test_a_file_appears_whole_or_not_at_all(folder, monkeypatch, caplog):
    """The process may end at any moment: what was being written is not a page, and is removed."""
    tier = DiskTier(folder, 10_000)
    seen = []
    original = type(folder).replace
    monkeypatch.setattr(
        type(folder), "replace", lambda old, new: seen.append(old) or original(old, new)
    )
    tier.put(prefix(1), page(1))
    (partial,) = seen
    partial.write_bytes(b"half of a page")
    assert len(DiskTier(folder, 10_000)) == 1
    assert not partial.exists()
    assert caplog.text == ""


@pytest.mark.parametrize("method", ["write_bytes", "replace"])
def test_a_full_disk_is_no_error(folder, monkeypatch, caplog, method):
    tier = DiskTier(folder, 10_000)

    def fail(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(type(folder), method, fail)
    tier.put(prefix(1), page(1))
    assert f"No more pages are stored in {folder}: No space left on device" in caplog.text
    assert prefix(1) not in tier
    assert (tier.num_bytes, list(folder.iterdir())) == (0, [])


def test_after_a_full_disk_what_is_there_is_served_and_nothing_is_tried_again(
    folder, monkeypatch, caplog
):
    tier = DiskTier(folder, 10_000)
    tier.put(prefix(1), page(1))
    assert tier.is_writable

    def fail(*_):
        raise OSError("No space left on device")

    with monkeypatch.context() as context:
        context.setattr(type(folder), "write_bytes", fail)
        tier.put(prefix(2), page(2))
    tier.put(prefix(3), page(3))
    assert not tier.is_writable
    assert len(caplog.records) == 1
    assert equal(tier.get(prefix(1)), page(1))
    assert prefix(3) not in tier


def test_a_file_that_cannot_be_removed_is_no_error(folder, monkeypatch, caplog):
    tier = DiskTier(folder, 10_000)
    tier.put(prefix(1), page(1))

    def fail(*_, **__):
        raise PermissionError("Read-only file system")

    monkeypatch.setattr(type(folder), "unlink", fail)
    tier.clear()
    assert "A stored page cannot be removed: Read-only file system" in caplog.text
    assert prefix(1) not in tier


def size_of_one(folder):
    DiskTier(folder, 10_000).put(prefix(1), page(1))
    (path,) = folder.iterdir()
    return path.stat().st_size


def test_the_folder_never_grows_beyond_its_bound(folder):
    size = size_of_one(folder)
    tier = DiskTier(folder, 3 * size)
    for i in range(2, 8):
        tier.put(prefix(i), page(i))
        assert sum(path.stat().st_size for path in folder.iterdir()) == tier.num_bytes
        assert tier.num_bytes == min(i, 3) * size
    assert [prefix(i) in tier for i in range(1, 8)] == [False] * 4 + [True] * 3


def test_a_page_that_can_never_fit_pushes_nothing_out(folder):
    tier = DiskTier(folder, size_of_one(folder))
    tier.put(prefix(2), PageKV(torch.zeros(2, 1, 1, 80), torch.zeros(2, 1, 1, 80)))
    assert (prefix(1) in tier, prefix(2) in tier) == (True, False)


def test_the_order_outlives_the_process(folder):
    tier = DiskTier(folder, 10_000)
    for i in (1, 2, 3):
        tier.put(prefix(i), page(i))
        os.utime(folder / astrai_kvcache.disk_tier._name(prefix(i)), (i, i))
    assert tier.touch(prefix(1))
    size = tier.num_bytes // 3
    tier = DiskTier(folder, 2 * size)
    assert [prefix(i) in tier for i in (1, 2, 3)] == [True, False, True]
    assert len(list(folder.iterdir())) == 2
    tier.put(prefix(4), page(4))
    assert [prefix(i) in tier for i in (1, 3, 4)] == [True, False, True]


def test_a_smaller_bound_removes_what_is_too_large(folder):
    size = size_of_one(folder)
    assert len(DiskTier(folder, size)) == 1
    assert len(DiskTier(folder, size - 1)) == 0
    assert list(folder.iterdir()) == []


def test_putting_again_keeps_the_file(folder):
    tier = DiskTier(folder, 10_000)
    tier.put(prefix(1), page(1))
    tier.put(prefix(1), page(9))
    assert equal(tier.get(prefix(1)), page(1))
    assert len(tier) == 1


def test_clearing_removes_the_files(folder):
    tier = DiskTier(folder, 10_000)
    tier.put(prefix(1), page(1))
    tier.clear()
    assert (len(tier), tier.num_bytes, list(folder.iterdir())) == (0, 0, [])


@pytest.mark.parametrize("missing", ["safetensors", "numpy"])
def test_without_what_it_needs_the_error_says_what_to_install(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "astrai_kvcache.disk_tier")
    with pytest.raises(ImportError, match=r"install astrai-kvcache\[disk\]"):
        importlib.import_module("astrai_kvcache.disk_tier")
