"""How much a long prompt delays the streams that are already running.

    python packages/astrai-engine/benchmarks/stream_gap.py [--prompt 4096] [--plot gap.svg]

Eight streams decode; a long prompt arrives. Prints the median and the longest gap between tokens
before it (what the machine does on its own), and while it runs, for the automatic budget and, as
the peer, for a fixed one that lets the prompt fill every step.
"""

import argparse
import statistics
import threading
import time

from astrai_engine import EngineConfig, GenerationRequest, InferenceEngine
from astrai_engine.events import TokenDelta

NUM_STREAMS = 8
LEAD_TOKENS = 150


class Stream:
    """Reads one request and notes when each piece of text came, and of how many tokens it is.

    A token whose text is not final yet, such as part of a character, comes with a later one.
    """

    def __init__(self, engine: InferenceEngine, number: int) -> None:
        request = GenerationRequest(
            prompt=f"A tale of number {number}:", temperature=0.0, ignore_eos=True
        )
        self.times: list[float] = []
        self.num_tokens: list[int] = []
        self.handle = engine.submit(request)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        for event in self.handle:
            if isinstance(event, TokenDelta):
                self.times.append(time.perf_counter())
                self.num_tokens.append(len(event.token_ids))

    def stop(self) -> None:
        self.handle.abort()
        self._thread.join()


def measure(max_step_tokens: int | None, num_prompt_tokens: int):
    """Gaps of all streams as (time since the prompt came, seconds); and when the prompt ended."""
    config = EngineConfig(
        max_step_tokens=max_step_tokens,
        max_batch_size=NUM_STREAMS + 1,
        n_tokens=num_prompt_tokens + NUM_STREAMS * 2048,  # room for all: nobody is preempted
    )
    with InferenceEngine(config=config) as engine:
        streams = [Stream(engine, i) for i in range(NUM_STREAMS)]
        while min(len(stream.times) for stream in streams) < LEAD_TOKENS:
            time.sleep(0.01)
        word = engine.tokenizer.encode(" fox", add_special_tokens=False)
        prompt = GenerationRequest(
            prompt_token_ids=word * num_prompt_tokens, max_tokens=1, temperature=0.0
        )
        started = time.perf_counter()
        for _ in engine.submit(prompt):
            pass
        ended = time.perf_counter()
        for stream in streams:
            stream.stop()
    gaps = [
        (after - started, (after - before) / num_tokens)
        for stream in streams
        for before, after, num_tokens in zip(
            stream.times[2:], stream.times[3:], stream.num_tokens[3:], strict=False
        )
    ]
    return gaps, ended - started


def report(name: str, gaps, seconds: float) -> None:
    before = [gap for at, gap in gaps if at < 0]
    during = [gap for at, gap in gaps if 0 <= at <= seconds]
    print(f"{name}: the prompt takes {seconds:.1f} s")
    for when, some in (("before", before), ("during", during)):
        late = sorted(some)[int(0.99 * len(some))]
        print(
            f"   gaps {when} it: median {statistics.median(some) * 1e3:.1f} ms, "
            f"99 % below {late * 1e3:.1f} ms, longest {max(some) * 1e3:.1f} ms"
        )
    alone, whole = statistics.median(before), statistics.median(before + during)
    print(
        f"   longest / median step: {max(during) / alone:.2f} of a stream before the prompt, "
        f"{max(during) / whole:.2f} of its life"
    )


def plot(path: str, results) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415 - only for the plot

    figure, axes = plt.subplots(len(results), sharex=True, figsize=(8, 5))
    for axis, (name, (gaps, seconds)) in zip(axes, results.items(), strict=True):
        axis.scatter([at for at, _ in gaps], [gap * 1e3 for _, gap in gaps], s=4, rasterized=True)
        axis.axvspan(0, seconds, alpha=0.12)
        axis.set(title=name, ylabel="gap, ms", ylim=(0, None))
    axes[-1].set_xlabel("seconds since the long prompt came (shaded while it is computed)")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--plot")
    arguments = parser.parse_args()
    results = {}
    for name, budget in (("automatic budget", None), ("fixed budget of 512", 512)):
        results[name] = measure(budget, arguments.prompt)
        report(name, *results[name])
    if arguments.plot:
        plot(arguments.plot, results)


if __name__ == "__main__":
    main()
