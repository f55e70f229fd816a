"""What checking guesses gains where a text repeats its prompt, and costs where it does not.

    python packages/astrai-engine/benchmarks/speculation.py [--workload edit] [--streams 1 4 16]

Two engines with the same model take turns: one that guesses as it sees fit, and one that does
not. Each serves two requests a stream, and they have to give the same tokens. Prints the medians
over rounds of the tokens per second of each, and of their ratio within a round.
"""

import argparse
import statistics
import time
from collections.abc import Iterator

from astrai_engine import EngineConfig, GenerationRequest, InferenceEngine
from astrai_engine.events import TokenDelta

STORY = (
    "Maria opened the small bakery on Mill Street in the spring of 1998. Every morning she arrived "
    "at four, lit the old brick oven, and kneaded forty loaves of rye bread before the first "
    "customers came. The postman always bought two rolls with poppy seeds, and the teacher from "
    "the school across the road took a slice of apple cake. In winter the windows were white with "
    "frost, and children drew faces on the glass. When the river flooded the street in 2004, "
    "neighbours carried the flour sacks upstairs and saved the shop. Today her son Daniel runs the "
    "bakery, but Maria still comes in on Saturdays to make the walnut bread that made them famous."
)
CODE = '''def total_price(items, tax_rate):
    """Sum the prices of all items and add tax."""
    total = 0.0
    for item in items:
        if item.quantity < 0:
            raise ValueError("quantity must not be negative")
        total += item.price * item.quantity
    return total * (1.0 + tax_rate)


def cheapest(items):
    """The item with the lowest price."""
    best = None
    for item in items:
        if best is None or item.price < best.price:
            best = item
    return best
'''
RECORDS = "\n".join(
    f'{{"id": {number}, "name": "{name}", "city": "{city}", "active": true}}'
    for number, (name, city) in enumerate(
        [
            ("Ada", "London"),
            ("Alan", "Manchester"),
            ("Grace", "New York"),
            ("Edsger", "Rotterdam"),
            ("Barbara", "Los Angeles"),
            ("Donald", "Milwaukee"),
        ],
        1,
    )
)
EDITS = [
    f"{STORY}\n\nHere is the same text again, with Maria changed to Anna:\n\nAnna opened the small "
    "bakery on Mill Street in the spring of 1998.",
    f"{CODE}\n\n# The same code, with tax_rate renamed to vat_rate:\n\n",
    f"Before:\n{RECORDS}\n\nAfter, with active set to false:\n"
    '{"id": 1, "name": "Ada", "city": "London", "active": false}\n',
    f"{STORY}\n\nThe most important sentences of this text are:\n\n1. Maria opened",
]
QUESTIONS = [
    "Tell me a story about a fox who learns to sing.",
    "Explain how a bicycle stays upright.",
    "Write a short letter to a friend about the sea.",
    "How do I cook rice?",
    "Describe the city of Paris in autumn.",
    "Why is the sky blue?",
    "Give me ideas for a birthday party.",
    "What should I know before I adopt a dog?",
]


REQUESTS_PER_STREAM = 2
STEP_TOKENS = 256
"""A budget of its own for both engines: sized by time, prompts would be cut at other places."""


def edits(num_requests: int, num_tokens: int) -> Iterator[GenerationRequest]:
    """Continuations that repeat the prompt's own text with small changes, greedy."""
    for number in range(num_requests):
        yield GenerationRequest(
            prompt=EDITS[number % len(EDITS)],
            max_tokens=num_tokens,
            temperature=0.0,
            ignore_eos=True,
        )


def chats(num_requests: int, num_tokens: int) -> Iterator[GenerationRequest]:
    """Questions with nothing to repeat, answered as a chat client asks."""
    for number in range(num_requests):
        yield GenerationRequest(
            messages=[{"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}],
            max_tokens=num_tokens,
            temperature=0.8,
            top_p=0.95,
            seed=number,
            ignore_eos=True,
        )


def run(
    engine: InferenceEngine, requests: list[GenerationRequest]
) -> tuple[float, list[tuple[int, ...]]]:
    """Run requests, as many at once as may; gives tokens per second and the tokens of each."""
    started = time.perf_counter()
    handles = [engine.submit(request) for request in requests]
    outputs = [
        tuple(t for e in handle if isinstance(e, TokenDelta) for t in e.token_ids)
        for handle in handles
    ]
    seconds = time.perf_counter() - started
    return sum(map(len, outputs)) / seconds, outputs


def compare(
    with_guesses: InferenceEngine,
    without: InferenceEngine,
    requests: list[GenerationRequest],
    num_rounds: int,
) -> str:
    """One row of the report."""
    for engine in (with_guesses, without):
        run(engine, requests)  # the prompts are cached from now on
    before = with_guesses.get_stats()
    rates = []
    for number in range(num_rounds):
        order = (with_guesses, without) if number % 2 else (without, with_guesses)
        results = {engine: run(engine, requests) for engine in order}
        assert results[with_guesses][1] == results[without][1], "guesses changed a text"
        rates.append((results[with_guesses][0], results[without][0]))
    stats = with_guesses.get_stats()
    drafted, accepted = (
        stats[name] - before[name] for name in ("drafted_tokens", "accepted_tokens")
    )
    fast, plain = (statistics.median(column) for column in zip(*rates, strict=True))
    ratio = statistics.median(a / b for a, b in rates)
    right = f"{accepted / drafted:4.0%}" if drafted else "none"
    return (
        f"{plain:8.1f}  {fast:8.1f} tokens/s  {ratio:5.2f}x   "
        f"{drafted // num_rounds:5} guesses a round, {right} of them right"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--speculation", default="auto", choices=["auto", "prompt-lookup"])
    parser.add_argument("--workload", nargs="+", default=["edit", "chat"])
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    workloads = {"edit": edits, "chat": chats}
    print(f"workload  streams       off  {arguments.speculation:>8}")
    for num_streams in arguments.streams:
        engines = [
            InferenceEngine(
                config=EngineConfig(
                    model=arguments.model,
                    speculation=mode,
                    max_batch_size=num_streams,
                    max_step_tokens=STEP_TOKENS,
                )
            )
            for mode in (arguments.speculation, "off")
        ]
        for name in arguments.workload:
            requests = workloads[name](REQUESTS_PER_STREAM * num_streams, arguments.tokens)
            row = compare(*engines, list(requests), arguments.rounds)
            print(f"{name:8}  {num_streams:7}  {row}", flush=True)
        for engine in engines:
            engine.shutdown()


if __name__ == "__main__":
    main()
