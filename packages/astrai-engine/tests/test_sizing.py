import os
from types import SimpleNamespace

import pytest
import torch

from astrai_engine import sizing
from astrai_engine.config import EngineConfig
from astrai_engine.errors import ConfigurationError
from astrai_engine.placement import choose_device, choose_dtype
from astrai_engine.sizing import choose_sizes, free_memory, kv_bytes_per_token

CPU = torch.device("cpu")
MODEL = SimpleNamespace(
    num_layers=2, num_kv_heads=3, head_dim=8, default_seq_len=4096, max_seq_len=8192
)


def sizes(*, free_bytes=2**34, **settings):
    return choose_sizes(
        EngineConfig(**settings), MODEL, device=CPU, kv_dtype=torch.float32, free_bytes=free_bytes
    )


def test_bytes_of_a_token():
    assert kv_bytes_per_token(MODEL, torch.float32) == 2 * 2 * 3 * 8 * 4
    assert kv_bytes_per_token(MODEL, torch.float16) == 2 * 2 * 3 * 8 * 2


def test_the_pool_is_the_larger_of_one_context_and_a_thousand_tokens_a_request():
    assert sizes().n_tokens == 32 * 1024
    assert sizes(max_batch_size=2).n_tokens == 4096


def test_the_pool_takes_at_most_a_quarter_of_memory_and_the_context_fits_it():
    chosen = sizes(free_bytes=4 * 384 * 1000)
    assert chosen.n_tokens == 992  # 1,000 tokens in whole pages of 16
    assert chosen.max_seq_len == 992


def test_a_longer_context_than_the_default_can_be_asked_for():
    assert sizes().max_seq_len == 4096
    assert sizes(max_seq_len=8192).max_seq_len == 8192


def test_wishes_are_honoured():
    chosen = sizes(n_tokens=1000, max_seq_len=100, max_step_tokens=64, page_size=10)
    assert (chosen.n_tokens, chosen.max_seq_len, chosen.max_step_tokens) == (1000, 100, 64)


def test_a_step_has_room_for_every_running_request():
    assert sizes(max_step_tokens=1, max_batch_size=8).max_step_tokens == 8


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"max_seq_len": 9000}, "context ends at 8192"),
        ({"max_seq_len": 100, "n_tokens": 64}, "pool holds 64"),
        ({"n_tokens": 8}, "less than one page of 16"),
    ],
)
def test_wishes_that_contradict_each_other_are_refused(settings, match):
    with pytest.raises(ConfigurationError, match=match):
        sizes(**settings)


@pytest.mark.parametrize(
    "name", ["max_batch_size", "page_size", "max_queue", "max_seq_len", "n_tokens"]
)
def test_a_size_below_one_is_refused_by_name(name):
    with pytest.raises(ConfigurationError, match=name):
        EngineConfig(**{name: 0})


def test_memory_is_measured():
    assert free_memory(CPU) > 2**20


def test_memory_that_caches_files_is_free(tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 4096 kB\nMemFree: 1 kB\nMemAvailable:    2048 kB\n")
    monkeypatch.setattr(sizing, "_MEMINFO", meminfo)
    assert free_memory(CPU) == 2 << 20


def test_elsewhere_half_of_all_memory_is_taken_for_free(tmp_path, monkeypatch):
    monkeypatch.setattr(sizing, "_MEMINFO", tmp_path / "none")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert free_memory(CPU) == pages // 2


def test_devices():
    assert choose_device("cpu") == CPU
    assert choose_device("auto").type in ("cpu", "cuda")
    for name in ("tpu", "nonsense!", "meta"):
        with pytest.raises(ConfigurationError, match=name):
            choose_device(name)
    with pytest.raises(ConfigurationError, match="cuda:99"):
        choose_device("cuda:99")


def test_dtypes():
    assert choose_dtype("auto", CPU) is torch.float32
    assert choose_dtype("auto", torch.device("cuda")) is torch.bfloat16
    assert choose_dtype("float16", CPU) is torch.float16
    with pytest.raises(ConfigurationError, match="int3"):
        choose_dtype("int3", CPU)
