"""Where a model's tensors are."""

from pathlib import Path

import pytest
import torch

from astrai_engine.models import ModelConfig, allocate

SMAPS = Path("/proc/self/smaps")
CONFIG = ModelConfig.from_hf(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "vocab_size": 96,
    }
)


def advice(address):
    """The flags of the mapping that an address lies in, as Linux tells them."""
    is_inside = False
    for line in SMAPS.read_text().splitlines():
        first, _, rest = line.partition(" ")
        if first == "VmFlags:" and is_inside:
            return rest.split()
        if not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            is_inside = begin <= address < end
    raise LookupError(address)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_on_the_cpu_ask_for_huge_pages(dtype):
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("the system has no huge pages to ask for")
    weights = allocate(CONFIG, device=torch.device("cpu"), dtype=dtype)
    matrices = [slot for slot in weights.slots.values() if slot.ndim == 2]
    assert {slot.dtype for slot in matrices} == {dtype}
    assert all("hg" in advice(slot.data_ptr()) for slot in matrices)
