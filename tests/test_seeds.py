"""The names the project started from: each exists, with its parameters, order and defaults.

``docs/reference/seeds.md`` lists them for readers, with the tests of what they do; it is checked
here against the same list.
"""

import ast
import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

from astrai_api.anthropic.builder import AnthropicResponseBuilder
from astrai_api.anthropic.schemas import MessagesRequest
from astrai_api.openai.builder import OpenAIResponseBuilder
from astrai_api.openai.schemas import ChatCompletionRequest
from astrai_api.testing import FakeEngine

ROOT = Path(__file__).parents[1]
DOCUMENT = "docs/reference/seeds.md"
NO_DEFAULT = inspect.Parameter.empty

SIGNATURES = {
    "astrai_kvcache.page_hash": "token_ids, page_idx, page_size",
    "astrai_kvcache.Allocator": "n_pages",
    "astrai_kvcache.Allocator.alloc": "",
    "astrai_kvcache.Allocator.free": "idx, keep_cached=False",
    "astrai_kvcache.Allocator.inc_ref": "idx",
    "astrai_kvcache.Allocator.ref_count": "idx",
    "astrai_kvcache.Allocator.touch": "idx",
    "astrai_kvcache.PrefixCache": "page_size",
    "astrai_kvcache.PrefixCache.evict": "idx",
    "astrai_kvcache.PrefixCache.has_page": "idx",
    "astrai_kvcache.PrefixCache.lookup": "token_ids",
    "astrai_kvcache.PrefixCache.record": "page_idx, token_ids, logical_page_idx",
    "astrai_kvcache.ReqToTokenPool": "size, max_context_len, device",
    "astrai_kvcache.ReqToTokenPool.alloc": "num_reqs",
    "astrai_kvcache.ReqToTokenPool.free": "req_indices",
    "astrai_kvcache.ReqToTokenPool.write": "indices, values",
    "astrai_kvcache.KVStorage": "size, n_layers, n_kv_heads, head_dim, device, dtype",
    "astrai_kvcache.KVStorage.get_key_buffer": "layer_id",
    "astrai_kvcache.KVStorage.get_value_buffer": "layer_id",
    "astrai_kvcache.KVStorage.set_kv_buffer": "layer_id, loc, k, v",
    "astrai_kvcache.KVCache": (
        "k_buffer, v_buffer, req_to_token, req_pool_indices, seq_lens, out_cache_loc, "
        "max_len=0, kv_indptr=None, qo_indptr=None"
    ),
    "astrai_kvcache.PagePool": (
        "n_layers, n_kv_heads, head_dim, max_batch_size, max_seq_len, device, dtype, "
        "page_size=1, n_tokens=None"
    ),
    "astrai_kvcache.PagePool.task_alloc": "task_id, prompt_ids",
    "astrai_kvcache.PagePool.task_free": "task_id",
    "astrai_kvcache.PagePool.task_extend": "task_id, pos",
    "astrai_kvcache.PagePool.task_cached": "task_id",
    "astrai_kvcache.PagePool.task_record_hashes": "task_id, prompt_ids, start_logical_page=0",
    "astrai_kvcache.PagePool.bind_tasks": "task_ids, workspace, device=None, start_pos=None",
    "astrai_kernels.attn_backend": "backend",
    "astrai_kernels.apply_rotary_emb": "x, freqs_cis",
    "astrai_kernels.RotaryEmbedding": "dim, max_len",
    "astrai_kernels.RotaryEmbedding.forward": "position_ids",
    "astrai_engine.sampling.TemperatureStrategy": "temperature",
    "astrai_engine.sampling.TopKStrategy": "top_k",
    "astrai_engine.sampling.TopPStrategy": "top_p",
    "astrai_engine.InferenceEngine.generate": "prompt, stream=False",
    "astrai_engine.InferenceEngine.generate_async": "prompt",
    "astrai_engine.InferenceEngine.generate_with_request": "request",
    "astrai_engine.InferenceEngine.get_stats": "",
    "astrai_engine.InferenceEngine.shutdown": "",
    "astrai_engine.GenerateResult.wait": "",
    "astrai_engine.GenerateResult.wait_completion": "",
    "astrai_api.ProtocolHandler": "request, engine, builder",
    "astrai_api.ProtocolHandler.handle": "",
    "astrai_api.ResponseBuilder.prepare": "request, engine",
    "astrai_api.ResponseBuilder.format_stream_start": "",
    "astrai_api.ResponseBuilder.format_chunk": "",
    "astrai_api.ResponseBuilder.format_stream_end": "",
    "astrai_api.ResponseBuilder.format_response": "",
}
"""Positional parameters, in order. Ours may go on after them."""

FIRST_IS_OURS = ("format_stream_start", "format_chunk", "format_stream_end", "format_response")
"""The seed names these methods and not their parameters."""

SUBCLASSES = {
    "astrai_kernels.TorchNativeBackend": "astrai_kernels.AttentionBackend",
    "astrai_kernels.CudaBackend": "astrai_kernels.AttentionBackend",
    "astrai_engine.sampling.TemperatureStrategy": "astrai_engine.sampling.BaseSamplingStrategy",
    "astrai_engine.sampling.TopKStrategy": "astrai_engine.sampling.BaseSamplingStrategy",
    "astrai_engine.sampling.TopPStrategy": "astrai_engine.sampling.BaseSamplingStrategy",
    "astrai_engine.SamplingPipeline": "astrai_engine.sampling.BaseSamplingStrategy",
    "astrai_api.openai.builder.OpenAIResponseBuilder": "astrai_api.ResponseBuilder",
    "astrai_api.anthropic.builder.AnthropicResponseBuilder": "astrai_api.ResponseBuilder",
}

CHAT = {
    "model": "astrai",
    "messages": NO_DEFAULT,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 50,
    "max_tokens": 2048,
    "stream": False,
    "stop": None,
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": None,
    "user": None,
    "tools": None,
    "tool_choice": "auto",
}

MESSAGES = {
    "model": "astrai",
    "messages": NO_DEFAULT,
    "system": None,
    "max_tokens": 1024,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 50,
    "stream": False,
    "stop_sequences": None,
}

ENGINE = {
    "messages": NO_DEFAULT,
    "top_k": 50,
    "top_p": 1.0,
    "temperature": 1.0,
    "max_tokens": None,
    "frequency_penalty": 0.0,
    "rep_window": 64,
    "stream": False,
}

OTHER_NAMES = (
    "on_evict", "free_slots", "max_context_len", "contiguous", "InferenceWorkspace",
    "input_ids", "position_ids", "inc", "ATTN_BACKEND", "attn_paged_decode",
    "attn_paged_prefill", "rotary_emb.cu", "freqs_cis", "InferenceScheduler", "Cleanup",
    "Refill", "Prefill", "Decode", "sample()", "SamplingPipeline", "GenerateResult",
    "GenerationRequest", "ChatCompletionRequest", "MessagesRequest", "ToolDef",
    "AnthropicMessage", "cb(token)",
)  # fmt: skip

ROUTES = ("/v1/chat/completions", "/v1/messages", "/health", "/stats")

WIRE = (
    "id", "object", "created", "model", "choices", "index", "message", "role", "content",
    "finish_reason", "usage", "prompt_tokens", "completion_tokens", "total_tokens",
    "chat.completion", "chat.completion.chunk", "delta", "[DONE]", "type", "message_start",
    "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
    "message_stop", "content_block", "text_delta", "stop_reason", "stop_sequence",
    "input_tokens", "end_turn", "status", "model_loaded", "detail", "total_tasks",
    "total_tokens", "active_tasks", "waiting_queue",
)  # fmt: skip

QUESTION = [{"role": "user", "content": "Hello"}]


def resolve(name):
    module, _, rest = name.partition(".")
    found = importlib.import_module(module)
    path = module
    for part in rest.split("."):
        path += f".{part}"
        if not hasattr(found, part):
            importlib.import_module(path)
        found = getattr(found, part)
    return found


def positional(function):
    """``name=default`` of each parameter that can be given by position, without ``self``."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    shown = [
        p.name if p.default is NO_DEFAULT else f"{p.name}={p.default!r}"
        for p in parameters
        if p.kind in kinds
    ]
    return [name for name in shown if name != "self"]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_begin_as_the_seeds_do(name):
    expected = [part for part in SIGNATURES[name].split(", ") if part]
    given = positional(resolve(name))
    assert given[: len(expected)] == expected
    if not name.endswith(FIRST_IS_OURS):
        assert all("=" in further for further in given[len(expected) :]), "callers would break"


@pytest.mark.parametrize("name", SUBCLASSES)
def test_classes_have_the_bases_of_the_seeds(name):
    assert issubclass(resolve(name), resolve(SUBCLASSES[name]))


def test_attributes_of_the_seeds():
    module = importlib.import_module("astrai_kvcache")
    device, dtype = "cpu", importlib.import_module("torch").float32
    pool = module.PagePool(1, 2, 4, 3, 8, device, dtype)
    assert (pool.contiguous, pool.n_tokens, pool.page_size) == (True, 24, 1)
    assert (pool.n_layers, pool.n_kv_heads, pool.head_dim) == (1, 2, 4)
    assert (pool.max_batch_size, pool.max_seq_len, pool.dtype) == (3, 8, dtype)
    table = module.ReqToTokenPool(3, 8, device)
    assert (table.size, table.max_context_len, list(table.free_slots)) == (3, 8, [0, 1, 2])
    assert module.Allocator(4).on_evict is None


def test_the_backends_can_be_named():
    kernels = importlib.import_module("astrai_kernels")
    assert {member.name for member in kernels.ATTN_BACKEND} >= {"TORCH_NATIVE", "CUDA"}


def test_the_workspace_has_the_buffers_of_the_seed():
    torch = importlib.import_module("torch")
    workspace = resolve("astrai_engine.InferenceWorkspace")(2, 4, 8, torch.device("cpu"))
    for name in ("input_ids", "position_ids", "req_pool_indices", "seq_lens", "kv_indptr"):
        assert isinstance(getattr(workspace, name), torch.Tensor)
    assert workspace.inc.tolist() == [0, 1, 2]
    assert workspace.out_cache_loc.numel() >= 2
    assert workspace.decode_mask(2).shape == (2, 8)


def test_defaults_of_the_engine_request():
    request = resolve("astrai_engine.GenerationRequest")
    fields = {field.name: field.default for field in dataclasses.fields(request)}
    assert set(ENGINE) <= set(fields)
    for name, default in ENGINE.items():
        if default is not NO_DEFAULT:
            assert fields[name] == default, name


@pytest.mark.parametrize(
    ("request_type", "builder", "fields"),
    [
        (ChatCompletionRequest, OpenAIResponseBuilder, CHAT),
        (MessagesRequest, AnthropicResponseBuilder, MESSAGES),
    ],
    ids=["openai", "anthropic"],
)
class TestWireDefaults:
    def prepared(self, request_type, builder, **body):
        return builder().prepare(request_type(messages=QUESTION, **body), FakeEngine())

    def test_each_field_is_declared_with_its_default(self, request_type, builder, fields):
        for name, default in fields.items():
            declared = request_type.model_fields[name]
            assert declared.is_required() is (default is NO_DEFAULT), name
            if isinstance(default, bool | int | float) or name == "model":
                assert declared.get_default() == default, name

    def test_sending_the_default_changes_nothing(self, request_type, builder, fields):
        absent = self.prepared(request_type, builder)
        for name, default in fields.items():
            if default is not NO_DEFAULT:
                assert self.prepared(request_type, builder, **{name: default}) == absent, name

    def test_the_engine_gets_them(self, request_type, builder, fields):
        prepared = self.prepared(request_type, builder)
        same = set(fields) & set(ENGINE) - {"messages"}
        assert len(same) >= 5
        for name in same:
            assert getattr(prepared, name) == fields[name], name


def test_routes_of_the_seed_exist():
    app = resolve("astrai_api.create_app")(engine=FakeEngine())
    paths = app.openapi()["paths"]
    assert [path for path in ROUTES if path not in paths] == []


class TestDocument:
    @pytest.fixture
    def text(self):
        return (ROOT / DOCUMENT).read_text(encoding="utf-8")

    def test_every_name_and_default_is_listed(self, text):
        entries = [e for e in re.findall(r"`([^`\n]+)`", text) if "::" not in e]

        def is_listed(name):
            whole_word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
            return any(whole_word.search(entry) for entry in entries)

        for name, parameters in SIGNATURES.items():
            assert is_listed(name.rpartition(".")[2]), name
            for parameter in filter(None, parameters.split(", ")):
                assert is_listed(parameter), f"{name}: {parameter}"
        for name in (*OTHER_NAMES, *WIRE, *ROUTES):
            assert is_listed(name), name
        for base in {*SUBCLASSES.values(), *SUBCLASSES}:
            assert is_listed(base.rpartition(".")[2]), base

    @pytest.mark.parametrize(
        ("heading", "fields"),
        [
            ("ChatCompletionRequest", CHAT),
            ("MessagesRequest", MESSAGES),
            ("GenerationRequest", ENGINE),
        ],
    )
    def test_every_field_is_listed_with_its_default(self, text, heading, fields):
        section = re.search(
            rf"^## [^\n]*`{heading}`.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
        )[0]
        rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", section, re.MULTILINE))
        for name, default in fields.items():
            expected = "required" if default is NO_DEFAULT else f"`{default!r}`".replace("'", '"')
            assert rows[name] == expected, name
        assert set(rows) == set(fields)

    def test_every_row_names_a_test_or_the_reason_it_has_none(self, text):
        rows = [
            line
            for line in text.splitlines()
            if line.startswith("| ") and not re.match(r"\| (name|field|wire|---)", line)
        ]
        assert len(rows) > 100
        for row in rows:
            last = row.strip("| ").rpartition(" | ")[2]
            assert "::" in last or last.startswith("changed: "), row

    def test_every_test_it_names_exists(self, text):
        references = re.findall(r"`((?:packages|tests)/[\w/-]+\.py)::([\w:]+)`", text)
        assert len(references) > 60
        for path, name in references:
            assert name in definitions(ROOT / path), f"{path}::{name}"


def definitions(path):
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}::{item.name}"
                for item in node.body
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names
