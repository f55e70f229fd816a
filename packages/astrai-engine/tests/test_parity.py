"""The embedded model generates what transformers generates from the same file."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from astrai_engine.loading import load_model, resolve_source
from astrai_engine.tokenizer import encode_chat, render_chat
from astrai_kernels import CpuBackend, native_unavailable_reason

NUM_NEW_TOKENS = 64
QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain photosynthesis to a child.",
    "List the first ten prime numbers.",
    "Write a Python function that reverses a string.",
    "Translate 'good morning' into German.",
    "Why is the sky blue?",
    "Tell me a story about a dragon who is afraid of fire, and how a small mouse helped it.",
]


@pytest.fixture(scope="module")
def loaded():
    source = resolve_source(None)
    return load_model(source, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def reference(quick_transformers):
    """What transformers makes of the same file."""
    path = Path(resolve_source(None).location)
    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()


def generate(runner, prompts):
    """Greedy tokens of all prompts, decoded together."""
    answers = {name: [] for name in prompts}
    last = torch.tensor([len(ids) for ids in prompts.values()]).cumsum(0) - 1
    logits = runner.step(prompts, logit_rows=last)
    for _ in range(NUM_NEW_TOKENS):
        for answer, token_id in zip(answers.values(), logits.argmax(-1).tolist(), strict=True):
            answer.append(token_id)
        logits = runner.step({name: answer[-1:] for name, answer in answers.items()})
    return answers


@pytest.fixture(scope="module")
def prompts(loaded):
    return {
        question: encode_chat(
            render_chat(
                loaded.chat_template, loaded.tokenizer, [{"role": "user", "content": question}]
            ),
            loaded.tokenizer,
        )
        for question in QUESTIONS
    }


def reference_logits(reference, prompt, answer):
    """What transformers makes of each position that an answer was drawn from."""
    with torch.inference_mode():
        ids = torch.tensor([prompt + answer])
        return reference(ids, logits_to_keep=NUM_NEW_TOKENS + 1).logits[0, :-1]


@pytest.mark.slow
def test_greedy_tokens_equal_transformers(loaded, reference, paged, prompts):
    """By induction: each token is the one transformers likes best after those before it."""
    answers = generate(paged(loaded.model, max_seq_len=256), prompts)
    for question, answer in answers.items():
        logits = reference_logits(reference, prompts[question], answer)
        assert logits.argmax(-1).tolist() == answer


@pytest.mark.slow
def test_greedy_tokens_of_the_native_path_equal_transformers(reference, paged, prompts):
    """The weights as the file has them, int16 activations and float16 K/V change no token."""
    if reason := native_unavailable_reason():
        pytest.skip(reason)
    quantised = load_model(
        resolve_source(None), device=torch.device("cpu"), dtype=torch.float32, precision="file"
    )
    runner = paged(
        quantised.model,
        max_seq_len=256,
        backend=CpuBackend(strict=True),
        kv_dtype=torch.float16,
    )
    answers = generate(runner, prompts)
    for question, answer in answers.items():
        logits = reference_logits(reference, prompts[question], answer)
        assert logits.argmax(-1).tolist() == answer


@pytest.mark.slow
def test_logits_equal_transformers(loaded, reference, paged):
    """Prefilled in two chunks."""
    ids = loaded.tokenizer.encode("The quick brown fox jumps over", add_special_tokens=True)
    runner = paged(loaded.model)
    logits = torch.cat([runner.step({"a": ids[:3]}), runner.step({"a": ids[3:]})])
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(logits, expected, rtol=0, atol=5e-4)
