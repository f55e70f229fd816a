"""How far the native kernels are from float32 on the dequantised weights.

Twenty prompts are answered greedily in float32 by torch, 64 tokens each; the kernels then decode
the same tokens, in one batch, and are asked what they would have said at each place.

``python tests/benchmarks/accuracy.py --results performance.jsonl``
"""

import argparse
from pathlib import Path

import torch
from records import Record, append
from runner import Runner

from astrai_engine.tokenizer import encode_chat, render_chat
from astrai_kernels import set_num_threads

NUM_TOKENS = 64
QUESTIONS = (
    "What is the capital of France?", "Write a haiku about the sea.",
    "Explain photosynthesis to a child.", "List the first ten prime numbers.",
    "Write a Python function that reverses a string.", "Why is the sky blue?",
    "Translate 'good morning' into German.", "Tell me a story about a dragon.",
    "How do I boil an egg?", "What causes the tides?", "Give me three names for a cat.",
    "Summarise the plot of Romeo and Juliet.", "What is 17 times 23?",
    "Write a short email to decline an invitation.", "Who was Marie Curie?",
    "What is the difference between weather and climate?", "Describe the taste of an orange.",
    "Name five rivers in Africa.", "How does a bicycle stay upright?", "What is a black hole?",
)  # fmt: skip


def decode(
    runner: Runner, prompts: list[list[int]], forced: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode all prompts together.

    Args:
        runner: computes the logits.
        prompts: token ids.
        forced: ``[prompts, NUM_TOKENS]`` tokens to follow; None follows the likeliest.

    Returns:
        The tokens followed, ``[prompts, NUM_TOKENS]``, and the log-probabilities at each place,
        ``[NUM_TOKENS, prompts, vocab]``.
    """
    tasks = {str(number): 0 for number in range(len(prompts))}
    logits = runner.logits(tasks, prompts)
    tokens, found = [], []
    for place in range(NUM_TOKENS):
        found.append(logits.log_softmax(-1))
        chosen = logits.argmax(-1) if forced is None else forced[:, place]
        tokens.append(chosen)
        logits = runner.logits(tasks, chosen.unsqueeze(-1).tolist())
    runner.free(tasks)
    return torch.stack(tokens, 1), torch.stack(found)


def compare(exact: torch.Tensor, found: torch.Tensor) -> tuple[float, float]:
    """Mean KL divergence in nats, and the share of places with the same likeliest token."""
    divergence = (exact.exp() * (exact - found)).sum(-1).mean()
    same = (exact.argmax(-1) == found.argmax(-1)).double().mean()
    return divergence.item(), same.item()


def main() -> None:
    """Compare both kinds of activations."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a model (default: the embedded one)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path("performance.jsonl"))
    arguments = parser.parse_args()
    set_num_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    reference = Runner(arguments.model, precision="none")
    chat, tokenizer = reference.loaded.chat_template, reference.loaded.tokenizer
    assert chat is not None, "accuracy is measured on chats"
    prompts = [
        encode_chat(
            render_chat(chat, tokenizer, [{"role": "user", "content": question}]), tokenizer
        )
        for question in QUESTIONS
    ]
    tokens, exact = decode(reference, prompts, None)
    torch.set_num_threads(1)
    for name, bits in (("astrai", 16), ("astrai int8", 8)):
        _, found = decode(Runner(arguments.model, activation_bits=bits), prompts, tokens)
        divergence, same = compare(exact, found)
        append(
            arguments.results,
            [
                Record(name, "mean KL", divergence * 1e6, "millionths of a nat"),
                Record(name, "greedy agreement", same * 100, "%"),
            ],
        )


if __name__ == "__main__":
    main()
