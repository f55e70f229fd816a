"""Shares of a model: what each rank has, together everything, and the same parts of every file."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from astrai_engine.errors import ConfigurationError
from astrai_engine.loading import resolve_source
from astrai_engine.loading.gguf import GGUFTensors
from astrai_engine.loading.gguf_config import read_config
from astrai_engine.loading.gguf_file import GGUFFile
from astrai_engine.loading.shard import Shard
from astrai_engine.models import ModelConfig
from astrai_engine.models.share import Cut, Share, Span


@dataclass(frozen=True)
class Ranks:
    """Ranks that never talk to each other."""

    rank: int
    size: int


def config(**changes):
    return ModelConfig.from_hf(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 100,
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 1,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5,
        }
        | changes
    )


def shares(model, size):
    return [Share(model, Ranks(rank, size)) for rank in range(size)]


@given(total=st.integers(1, 500), size=st.integers(1, 16))
def test_spans_follow_each_other_and_are_nearly_equal(total, size):
    spans = [Span.of(total, rank, size) for rank in range(size)]
    assert (spans[0].start, spans[-1].stop) == (0, total)
    assert all(left.stop == right.start for left, right in pairwise(spans))
    lengths = [len(span) for span in spans]
    assert lengths[0] == max(lengths) <= min(lengths) + 1


@given(data=st.data())
def test_every_query_is_where_its_keys_are(data):
    num_kv_heads = data.draw(st.integers(1, 8))
    group = data.draw(st.integers(1, 6))
    size = data.draw(
        st.integers(1, num_kv_heads)
        | st.integers(1, group).map(lambda sharers: sharers * num_kv_heads)
    )
    heads = num_kv_heads * group
    model = config(num_attention_heads=heads, num_key_value_heads=num_kv_heads, head_dim=8)
    seen = []
    for share in shares(model, size):
        queries, keys, local = share.heads, share.kv_heads, share.config
        assert (local.num_heads, local.num_kv_heads) == (len(queries), len(keys))
        assert local.num_heads % local.num_kv_heads == 0
        for number, head in enumerate(range(queries.start, queries.stop)):
            own = number // (local.num_heads // local.num_kv_heads)
            assert head // group == keys.start + own
            seen.append(head)
    assert seen == list(range(heads))


@pytest.mark.parametrize(("inner", "lengths"), [(128, [64, 64]), (96, [48, 48]), (97, [49, 48])])
def test_inner_dimensions_stay_in_blocks_where_they_can(inner, lengths):
    found = [len(share.inner) for share in shares(config(intermediate_size=inner), 2)]
    assert found == lengths


@pytest.mark.parametrize(
    ("changes", "size", "told"),
    [
        ({}, 3, "2 K/V heads"),
        ({"num_key_value_heads": 6}, 12, "6 heads"),
        ({"architectures": ["Olmo2ForCausalLM"]}, 2, "norms all heads"),
        (
            {
                "architectures": ["MixtralForCausalLM"],
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
            },
            2,
            "mixtures",
        ),
    ],
)
def test_what_cannot_be_shared_out_is_refused(changes, size, told):
    with pytest.raises(ConfigurationError, match=f"tensor_parallel_size is {size}, but .*{told}"):
        Share(config(**changes), Ranks(0, size))


@pytest.mark.parametrize("name", ["q_proj", "o_proj", "gate_up_proj", "embed_tokens", "qkv_proj"])
def test_shares_of_a_tensor_are_all_of_it(name):
    model = config()
    rows = {"gate_up_proj": 192, "embed_tokens": 100, "qkv_proj": 80}.get(name, 48)
    whole = torch.arange(rows * 48.0).view(rows, 48)
    parts = [share.cut(f"model.layers.0.{name}.weight").of(whole) for share in shares(model, 2)]
    assert torch.equal(torch.cat(parts).unique(), whole.unique())
    assert sum(part.numel() for part in parts) == whole.numel()


def test_norms_and_biases_of_sums_are_whole():
    (share, _) = shares(config(), 2)
    assert share.cut("model.norm.weight") is None
    assert share.cut("model.layers.0.self_attn.o_proj.bias") is None
    assert share.cut("model.layers.0.self_attn.q_proj.bias").shape((48,)) == (24,)


def test_a_tensor_of_another_size_is_not_cut():
    cut = Cut.along(0, [Span(0, 4, 8)])
    assert cut.shape((8, 3)) == (4, 3)
    assert cut.shape((9, 3)) == (9, 3)
    assert Cut.along(1, [Span(0, 4, 8)]).shape((8,)) == (8,)


CUTS = [
    Cut.along(0, [Span(2, 5, 7)]),
    Cut.along(0, [Span(0, 2, 3), Span(1, 2, 2), Span(1, 2, 2)]),
    Cut.along(1, [Span(3, 8, 11)]),
]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_only_the_share_is_read_from_safetensors(cut, wanted, tmp_path, monkeypatch):
    whole = torch.randn(7, 11)
    save_file({"x": whole}, tmp_path / "m.safetensors")
    file = Shard(tmp_path / "m.safetensors")
    read, num_bytes = Shard._read_bytes, []

    def counted(self, target, start):
        num_bytes.append(target.numel() * target.itemsize)
        read(self, target, start)

    monkeypatch.setattr(Shard, "_read_bytes", counted)
    expected = cut.of(whole)
    slot = torch.empty(expected.shape, dtype=wanted)
    for fill in file.fillings("x", slot, cut):
        fill()
    assert torch.equal(slot, expected.to(wanted))
    assert sum(num_bytes) == expected.numel() * 4
    assert torch.equal(file.read("x", cut), expected)


NAMES = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"]


@pytest.fixture(scope="module")
def embedded():
    file = GGUFFile(resolve_source(None).location)
    return file, read_config(file)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [2, 3])
def test_a_gguf_file_gives_the_share_of_what_it_gives(embedded, name, size):
    """Reordered heads, values and blocks: of three K/V heads, two ranks have unequal shares."""
    file, model = embedded
    name = f"model.layers.3.{name}.weight"
    alone = GGUFTensors(file, model)
    for share in shares(model, size):
        tensors, cut = GGUFTensors(file, model, share), share.cut(name)
        expected = cut.of(alone.read(name))
        assert tensors.shape(name) == tuple(expected.shape)
        assert torch.equal(tensors.read(name), expected)
        values = np.empty(expected.shape, np.float32)
        tensors.read_into(name, values)
        np.testing.assert_array_equal(values, expected.numpy())
        width = alone.blocks(name).shape[1] / alone.shape(name)[1]
        assert tensors.blocks(name).shape == (len(expected), width * expected.shape[1])


def test_a_share_that_ends_inside_a_block_has_no_blocks(embedded):
    file, model = embedded
    (share, _) = shares(replace(model, intermediate_size=1536 - 32), 2)
    cut = Cut.along(1, [Span(16, 48, 1536)])
    assert file.rows_cut("blk.0.ffn_down.weight", cut) is None
    whole = torch.from_numpy(file.read("blk.0.ffn_down.weight"))
    found = file.read_cut("blk.0.ffn_down.weight", cut)
    np.testing.assert_array_equal(found, cut.of(whole).numpy())
    assert len(share.inner) == 752
