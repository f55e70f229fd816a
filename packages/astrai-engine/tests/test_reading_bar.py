"""The bar counts every byte of a model, whatever form its tensors are read in."""

from pathlib import Path

import pytest
import torch

from astrai_engine.loading import load_model, loader, resolve_source
from astrai_engine.loading.checkpoint import Checkpoint
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.loading.reading_bar import ReadingBar
from astrai_kernels import native_unavailable_reason


@pytest.fixture
def bars(monkeypatch):
    made = []

    class Kept(ReadingBar):
        def __init__(self):
            super().__init__()
            made.append(self)

        def expect(self, total):
            super().expect(total)
            self.expected = total

    monkeypatch.setattr(loader, "ReadingBar", Kept)
    return made


def load(model, precision):
    source = resolve_source(model)
    load_model(source, device=torch.device("cpu"), dtype=torch.float32, precision=precision)
    return source.location


@pytest.mark.parametrize("precision", ["none", "file"])
def test_a_gguf_file(bars, precision):
    if precision == "file" and (reason := native_unavailable_reason()):
        pytest.skip(reason)
    path = load(None, precision)
    assert bars[0].num_bytes == bars[0].expected == GGUFFile(Path(path)).num_bytes


@pytest.mark.parametrize("precision", ["none", "int8"])
def test_a_folder(bars, tiny_checkpoint, precision):
    if precision == "int8" and (reason := native_unavailable_reason()):
        pytest.skip(reason)
    load(str(tiny_checkpoint), precision)
    assert bars[0].expected == Checkpoint(tiny_checkpoint).num_bytes
    assert bars[0].num_bytes >= bars[0].expected - 256  # what is spare is not read


def test_nothing_is_drawn_where_there_is_no_terminal(capfd):
    with ReadingBar() as bar:
        bar.expect(10)
        bar.add(10)
    assert capfd.readouterr() == ("", "")
