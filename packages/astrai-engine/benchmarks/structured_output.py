"""What structured output costs a batch: the same streams with a grammar and without.

    python packages/astrai-engine/benchmarks/structured_output.py [--streams 16] [--rounds 5]

Rounds with and without take turns; prints tokens per second of each and the median of the ratios.
Answers are random, so both sample in the same way and run to the same length.
"""

import argparse
import statistics
import time

from astrai_engine import EngineConfig, GenerationRequest, Grammar, InferenceEngine

SCHEMA = {
    "type": "array",
    "minItems": 500,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "kind": {"enum": ["red", "green", "blue"]},
            "amount": {"type": "number"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}},
        },
        "required": ["name", "kind", "amount", "tags"],
        "additionalProperties": False,
    },
}


def tokens_per_second(
    engine: InferenceEngine, streams: int, tokens: int, grammar: Grammar | None
) -> float:
    """Run the streams side by side."""
    requests = [
        GenerationRequest(
            prompt=f"A list of {i} things:",
            max_tokens=tokens,
            ignore_eos=True,
            seed=i,
            grammar=grammar,
        )
        for i in range(streams)
    ]
    started = time.perf_counter()
    num_generated = 0
    for handle in [engine.submit(request) for request in requests]:
        *_, finished = handle
        num_generated += finished.usage.completion_tokens
    return num_generated / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    grammar = Grammar.json_schema(SCHEMA)
    config = EngineConfig(
        model=arguments.model, max_batch_size=arguments.streams, speculation="off"
    )
    ratios = []
    with InferenceEngine(config=config) as engine:
        tokens_per_second(engine, arguments.streams, 4, grammar)  # compiles it
        for _ in range(arguments.rounds):
            free, bound = (
                tokens_per_second(engine, arguments.streams, arguments.tokens, given)
                for given in (None, grammar)
            )
            ratios.append(bound / free)
            print(f"free {free:.0f} tokens/s, with a grammar {bound:.0f}: {bound / free:.3f}")
    print(f"median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
