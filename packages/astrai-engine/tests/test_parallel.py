"""Ranks that share a model's layers compute what one process computes; here they are threads."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import transformers
from transformers import Gemma2Config, LlamaConfig, Phi3Config, Qwen2Config, Qwen3Config

from astrai_engine.errors import ConfigurationError, UnsupportedArchitectureError
from astrai_engine.loading.loader import WeightFormat, load_part
from astrai_engine.parallel import ranks
from astrai_engine.parallel.ranks import ProcessRanks
from astrai_kernels import native_unavailable_reason

CPU = torch.device("cpu")
TINY = {
    "vocab_size": 97,  # one rank has a row less
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
CASES = {
    "llama": (LlamaConfig(**TINY), 2),
    "llama, tied, biased, own head_dim": (
        LlamaConfig(
            **TINY, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, head_dim=16
        ),
        2,
    ),
    "llama, more ranks than K/V heads": (LlamaConfig(**TINY), 4),
    "llama, unequal shares": (LlamaConfig(**TINY | {"num_key_value_heads": 3}), 2),
    "qwen2, biased": (Qwen2Config(**TINY), 2),
    "qwen3, normed heads": (Qwen3Config(**TINY, head_dim=16), 2),
    "phi3, fused": (Phi3Config(**TINY, sliding_window=6), 2),
    "gemma2": (Gemma2Config(**TINY, head_dim=16, final_logit_softcapping=5.0), 2),
}


def save(config, folder):
    """A random model whose norms and biases are not their trivial defaults."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch):
    """A rank that fails must not keep the others waiting for long."""
    monkeypatch.setattr(ranks, "_STEP_LIMIT", timedelta(seconds=5))


@pytest.fixture
def of_ranks(tmp_path):
    """``of_ranks(size, work)``: what ``work(group)`` gives on each rank, rank 0 first."""

    def run(size, work):
        def one(rank):
            group = ProcessRanks(rank, size)
            group.connect(tmp_path / "store", CPU)
            return work(group)

        with ThreadPoolExecutor(size) as threads:
            return list(threads.map(one, range(size)))

    return run


@pytest.fixture
def logits(paged):
    """The logits of three steps of a model loaded by a group, or alone."""

    def compute(path, group=None, precision="none"):
        form = WeightFormat(device=CPU, dtype=torch.float32, precision=precision, group=group)
        runner = paged(load_part(path, form), max_seq_len=32)
        some = runner.step({"a": [3, 1, 4, 1, 5, 9, 2]})
        none = runner.step(
            {"a": [6], "b": [5, 3, 5]}, logit_rows=torch.tensor([], dtype=torch.long)
        )
        last = runner.step({"a": [2], "b": [8, 90]}, logit_rows=torch.tensor([0, 2]))
        assert none.shape == (0, last.shape[-1])
        return torch.cat([some, last])

    return compute


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_one_process(case, logits, of_ranks, tmp_path):
    config, size = CASES[case]
    folder = save(config, tmp_path)
    alone = logits(folder)
    together = of_ranks(size, lambda group: logits(folder, group))
    torch.testing.assert_close(together[0], alone, atol=2e-5, rtol=1e-5)


@pytest.mark.skipif(native_unavailable_reason() is not None, reason="needs the native kernels")
def test_rounded_weights_are_the_same_ones(logits, of_ranks, tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "head_dim": 32}
    folder = save(LlamaConfig(**TINY | sizes), tmp_path)
    alone = logits(folder, precision="int8")
    together = of_ranks(2, lambda group: logits(folder, group, precision="int8"))
    torch.testing.assert_close(together[0], alone, atol=1e-3, rtol=1e-3)


def test_a_model_that_only_transformers_knows_is_refused(tmp_path):
    save(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9), tmp_path)
    form = WeightFormat(device=CPU, dtype=torch.float32, group=ProcessRanks(0, 2))
    with pytest.raises(UnsupportedArchitectureError, match="tensor_parallel_size 1"):
        load_part(tmp_path, form)


def test_a_torch_without_distributed_is_refused(monkeypatch):
    monkeypatch.setattr(dist, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match="tensor_parallel_size"):
        ProcessRanks(0, 2)
