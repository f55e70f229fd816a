"""Where the time of a decode step goes: the model's forward pass, and everything around it.

    python packages/astrai-engine/benchmarks/step_overhead.py [--streams 32] [--steps 60]

Prints medians over steps that only decode, greedy and with the default sampling (top-k 50).
"""

import argparse
import statistics

from astrai_engine import EngineConfig, GenerationRequest, InferenceEngine
from astrai_engine.trace import StepRecord

PHASES = ("schedule", "bind", "forward", "sample", "commit", "emit")


def decode_steps(engine: InferenceEngine, num_streams: int, num_steps: int, **sampling: float):
    """Run streams side by side; gives the steps in which all of them decode."""
    requests = [
        GenerationRequest(
            prompt=f"Story number {i}: once upon a time",
            max_tokens=num_steps,
            ignore_eos=True,
            seed=i,
            **sampling,
        )
        for i in range(num_streams)
    ]
    engine.start_trace()
    for handle in [engine.submit(request) for request in requests]:
        for _ in handle:
            pass
    records = engine.stop_trace().records
    return [r for r in records if r.num_decoding == num_streams and not r.num_prompt_tokens]


def report(name: str, records: list[StepRecord]) -> None:
    medians = {p: statistics.median(r.phases[p] for r in records) * 1e3 for p in PHASES}
    around = statistics.median(sum(r.phases.values()) - r.phases["forward"] for r in records) * 1e3
    total = statistics.median(sum(r.phases.values()) for r in records) * 1e3
    print(f"{name}: {len(records)} steps, median {total:.2f} ms")
    print("   " + "  ".join(f"{phase} {ms:.3f}" for phase, ms in medians.items()))
    print(f"   outside the forward pass {around:.2f} ms")
    print(f"   sampling is {100 * medians['sample'] / total:.1f} % of the step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    config = EngineConfig(model=arguments.model, max_batch_size=arguments.streams)
    with InferenceEngine(config=config) as engine:
        for name, sampling in (("greedy", {"temperature": 0.0}), ("top-k 50", {})):
            report(name, decode_steps(engine, arguments.streams, arguments.steps, **sampling))


if __name__ == "__main__":
    main()
