import pytest
import torch

from astrai_engine.errors import ConfigurationError
from astrai_engine.placement import rank_devices


def test_ranks_share_the_cpu():
    cpu = torch.device("cpu")
    assert rank_devices(cpu, 3) == [cpu] * 3


@pytest.mark.parametrize(
    ("first", "size", "expected"),
    [("cuda", 1, ["cuda"]), ("cuda", 2, ["cuda:0", "cuda:1"]), ("cuda:2", 2, ["cuda:2", "cuda:3"])],
)
def test_ranks_are_on_consecutive_gpus(first, size, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert rank_devices(torch.device(first), size) == [torch.device(name) for name in expected]


def test_too_few_gpus_are_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(ConfigurationError, match="tensor_parallel_size is 2 and device 'cuda:3'"):
        rank_devices(torch.device("cuda:3"), 2)
