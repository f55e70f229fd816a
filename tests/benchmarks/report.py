"""Build ``docs/performance.md`` and its plots from what the benchmarks found.

``python tests/benchmarks/report.py performance.jsonl``; needs matplotlib.
"""

import argparse
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

from records import Record, read

ROOT = Path(__file__).parents[2]
NOTES = Path(__file__).with_name("notes.md")
PEERS = {"Q4_1": "llama.cpp Q4_1", "Q4_0": "llama.cpp Q4_0"}

# What each ratio should be, against Q4_1 and Q4_0.
TARGETS = {
    "decode 1": (1.6, 1.3),
    "decode 8": (2.4, 1.5),
    "decode 16": (2.4, 1.5),
    "decode 32": (2.4, 1.5),
    "prefill 512": (2.8, 1.6),
    "prefill 4096": (2.8, 1.6),
    "context 2048": (2.5, 2.0),
    "http 16": (2.5, 1.4),
}
WORK = {
    "decode": "decode, streams: {}",
    "prefill": "prefill, {} tokens",
    "context": "decode, 1 stream at {} tokens",
    "http": "HTTP, {} clients, 128 in, 128 out",
}
FACTS = {
    "ready beyond torch": "ready after the start, beyond torch's own import",
    "first token, cold": "time to first token, 2,000-token prompt, cold",
    "first token, cached": "the same with its prefix cached",
    "memory beyond torch": "memory while serving 8,192 slots, beyond `import torch`",
}
PERCENTILES = (50, 90, 99)
LATENCIES = {
    "http 16 first token": "first token of 16 clients at once",
    "http 16 gap": "from one piece of their text to the next",
}
ACCURACY = {"mean KL": "mean KL divergence", "greedy agreement": "same likeliest token"}


class Results:
    """Measurements, by what did what.

    Args:
        records: of any number of rounds, in the order they were found; ours come first in a round.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self._values: dict[tuple[str, str], list[float]] = {}
        self._ratios: dict[tuple[str, str], list[float]] = {}
        self._units: dict[str, str] = {}
        own: dict[str, float] = {}
        for record in records:
            key = record.system, record.work
            self._values.setdefault(key, []).append(record.value)
            self._units[record.work] = record.unit
            if record.system == "astrai":
                own[record.work] = record.value
            elif record.work in own:
                self._ratios.setdefault(key, []).append(own[record.work] / record.value)

    def ratio(self, peer: str, work: str) -> str:
        """Ours by a peer's in the same round, the median of all rounds; empty without any.

        A machine that others share is slower in one round than in the next, for both.
        """
        ratios = self._ratios.get((peer, work))
        return "" if ratios is None else f"{statistics.median(ratios):.2f}x"

    def median(self, system: str, work: str) -> float | None:
        """The median of all rounds; None where there were none."""
        values = self._values.get((system, work))
        return None if values is None else statistics.median(values)

    def cell(self, system: str, work: str) -> str:
        """Median, lowest and highest as text."""
        values = self._values.get((system, work))
        if values is None:
            return "not measured"
        return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"

    def fact(self, system: str, work: str) -> str:
        """A median with its unit as text."""
        value = self.median(system, work)
        return "not measured" if value is None else f"{value:.4g} {self._units[work]}"

    def unit(self, work: str) -> str:
        """What a measurement is counted in; empty where there is none."""
        return self._units.get(work, "")

    def works(self, kind: str) -> list[int]:
        """The sizes that were measured of a kind of work."""
        sizes = {int(work.split()[1]) for _, work in self._values if work.split()[0] == kind}
        return sorted(sizes)

    def rounds(self, work: str) -> int:
        """How often we measured ourselves."""
        return len(self._values.get(("astrai", work), ()))


def comparison(results: Results) -> list[str]:
    """The table of ratios."""
    lines = [
        "| work, tokens/s | AstrAI | llama.cpp Q4_1 | ratio | target "
        "| llama.cpp Q4_0 | ratio | target | rounds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for work, targets in TARGETS.items():
        kind, size = work.split()
        cells = [WORK[kind].format(size), results.cell("astrai", work)]
        for peer, target in zip(PEERS.values(), targets, strict=True):
            cells.append(results.cell(peer, work))
            cells += [results.ratio(peer, work), f"{target}x"]
        lines.append("| " + " | ".join([*cells, str(results.rounds(work))]) + " |")
    return lines


def others(results: Results) -> list[str]:
    """The int8 mode and transformers."""
    lines = ["| work, tokens/s | AstrAI | AstrAI, int8 activations | transformers, fp32 | ratio |"]
    lines += ["|---|---|---|---|---|"]
    for work in TARGETS:
        kind, size = work.split()
        if kind == "http":
            continue
        cells = [
            WORK[kind].format(size),
            *(results.cell(name, work) for name in ("astrai", "astrai int8", "transformers fp32")),
            results.ratio("transformers fp32", work),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def facts(results: Results) -> list[str]:
    """Latency, memory, start and accuracy."""
    lines = ["| what | median |", "|---|---|"]
    lines += [f"| {text} | {results.fact('astrai', work)} |" for work, text in FACTS.items()]
    for work, text in ACCURACY.items():
        for system, mode in (("astrai", "default"), ("astrai int8", "int8 activations")):
            lines.append(f"| {text}, {mode} | {results.fact(system, work)} |")
    for system in ("astrai", *PEERS.values()):
        for work, text in LATENCIES.items():
            found = [results.fact(system, f"{work} p{number}") for number in PERCENTILES]
            lines.append(f"| {text} (p50, p90, p99), {system} | {', '.join(found)} |")
    return lines


def machine() -> list[str]:
    """What it ran on."""
    listed = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    fields = {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in listed.splitlines())
    }
    wanted = ("Model name", "CPU(s)", "Thread(s) per core", "L2 cache", "L3 cache")
    flags = [flag for flag in ("avx2", "fma", "avx512f", "avx512_vnni", "amx_tile")
             if flag in fields.get("Flags", "").split()]  # fmt: skip
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        *(f"- {name}: {fields.get(name, 'unknown')}" for name in wanted),
        f"- vector instructions: {', '.join(flags) or 'none'}",
        f"- memory: {memory:.0f} GiB",
        f"- {platform.system()}, Python {platform.python_version()}",
    ]


def plot(results: Results, folder: Path) -> None:
    """Throughput by streams, and latencies, as SVG."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - only for the plots

    plt.rcParams["svg.hashsalt"] = "astrai"
    folder.mkdir(parents=True, exist_ok=True)
    systems = ("astrai", "astrai int8", *PEERS.values(), "transformers fp32")
    figure, axes = plt.subplots(figsize=(7, 4))
    for system in systems:
        points = [
            (size, results.median(system, f"decode {size}")) for size in results.works("decode")
        ]
        known = [(size, value) for size, value in points if value is not None]
        if known:
            axes.plot(*zip(*known, strict=True), marker="o", label=system)
    axes.set(xlabel="streams", ylabel="tokens/s", ylim=(0, None), title="Decoding")
    axes.legend()
    figure.savefig(folder / "decoding.svg", metadata={"Date": None})
    _plot_latencies(results, folder / "latency.svg")


def _plot_latencies(results: Results, path: Path) -> None:
    """Percentiles of what the clients wait for, a panel each."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - only for the plots

    figure, panels = plt.subplots(1, len(LATENCIES), figsize=(9, 3.5))
    for panel, (work, text) in zip(panels, LATENCIES.items(), strict=True):
        for system in ("astrai", *PEERS.values()):
            values = [results.median(system, f"{work} p{number}") for number in PERCENTILES]
            if None not in values:
                panel.plot([f"p{number}" for number in PERCENTILES], values, "o-", label=system)
        panel.set(title=text, ylabel=results.unit(f"{work} p50"), ylim=(0, None))
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Write the document."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    arguments = parser.parse_args()
    results = Results(read(arguments.results))
    plot(results, arguments.docs / "assets")
    before, after = NOTES.read_text(encoding="utf-8").split("<!-- results -->\n")
    lines = [
        *comparison(results), "",
        "![tokens per second by streams](assets/decoding.svg)", "",
        "![percentiles of latency, 16 clients](assets/latency.svg)", "",
        "## The int8 mode and transformers", "", *others(results), "",
        "## Latency, memory, accuracy", "", *facts(results), "",
        "## The machine", "", *machine(), "", "",
    ]  # fmt: skip
    document = before + "\n".join(lines) + after
    (arguments.docs / "performance.md").write_text(document, encoding="utf-8")


if __name__ == "__main__":
    main()
