"""Fixtures that several modules' tests share."""

import functools
import json
from unittest import mock

import gguf
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from astrai_engine.loading.gguf_file import FastReader
from astrai_kernels import TorchNativeBackend
from astrai_kvcache import BindWorkspace, PagePool


class PagedRunner:
    """Runs a model over a small paged pool, step by step, without an engine."""

    def __init__(
        self,
        model,
        *,
        max_batch_size=8,
        max_seq_len=128,
        page_size=4,
        backend=None,
        kv_dtype=None,
        position_offset=0,
    ):
        config = model.config
        self.model = model
        self.position_offset = position_offset
        self.backend = backend or TorchNativeBackend()
        self.pool = PagePool(
            config.num_layers,
            config.num_kv_heads,
            config.head_dim,
            max_batch_size,
            max_seq_len,
            model.device,
            kv_dtype or model.dtype,
            page_size=page_size,
            n_tokens=max_batch_size * (max_seq_len + page_size),
        )
        self.workspace = BindWorkspace(max_batch_size, max_batch_size * max_seq_len, model.device)
        self.lengths = {}

    @torch.inference_mode()
    def step(self, new_ids, *, logit_rows=None):
        """Compute the given new tokens of each task in one packed pass; gives all logits."""
        for task_id, ids in new_ids.items():
            start = self.lengths.get(task_id, 0)
            self.lengths[task_id] = start + len(ids)
            if start:
                assert self.pool.task_extend(task_id, start + len(ids) - 1)
            else:
                assert self.pool.task_alloc(task_id, ids)
        q_lens = [len(ids) for ids in new_ids.values()]
        cache = self.pool.bind_tasks(list(new_ids), self.workspace, q_lens=q_lens)
        positions = [
            range(
                self.position_offset + self.lengths[task_id] - len(ids),
                self.position_offset + self.lengths[task_id],
            )
            for task_id, ids in new_ids.items()
        ]
        return self.model.forward(
            torch.tensor([i for ids in new_ids.values() for i in ids]),
            torch.tensor([p for some in positions for p in some]),
            cache,
            self.backend,
            logit_rows=logit_rows,
        )


@pytest.fixture
def paged():
    """Builds a ``PagedRunner`` for a model."""
    return PagedRunner


@pytest.fixture(scope="module")
def quick_transformers():
    """Spares transformers most of the time it takes to read a GGUF file.

    Its two slowest parts are replaced by ones that give the same: parsing the vocabulary, and
    building an equal table of names for each module of a model.
    """
    names = functools.cache(gguf.get_tensor_name_map)
    with (
        mock.patch.object(gguf, "GGUFReader", FastReader),
        mock.patch.object(gguf, "get_tensor_name_map", names),
    ):
        yield


CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory):
    """A random two-layer Llama over bytes, as Hugging Face would save it."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>", "<|user|>", "<|assistant|>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|end|>", "chat_template": CHAT_TEMPLATE})
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=backend.get_vocab_size(),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.4,
        eos_token_id=256,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
