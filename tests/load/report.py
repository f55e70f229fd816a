"""What a load found, as text: printed, or as ``docs/reference/soak.md`` with a plot of memory."""

import os
import platform
from pathlib import Path

from findings import LEFT, QUEUE_FULL, REFUSED, RIGHT, percentile
from server import DISK_BYTES, MIB, SETTINGS

DOCS = Path(__file__).parents[2] / "docs"
PLOT = DOCS / "assets" / "soak-memory.svg"
OUTCOMES = (RIGHT, QUEUE_FULL, LEFT, REFUSED)

INTRODUCTION = """\
# Soak

{minutes:g} minutes of mixed load on a real server, with faults: what came of it.
`uv run nox -s load -- --minutes 30 --report` makes this page; without the options it is a check of
five minutes.

The server is `astrai serve` on the embedded model. {clients} clients ask requests of every protocol
and shape, at random and all at once, streamed and not. Now and then they read slowly, stall, leave
or send what is wrong, and there are bursts of more requests than may run and wait. Half way through
another file takes all room on the disk of the prefix cache. The run passes only if:

- every answer that was read to its end is the very one that the same request got alone, before;
- every other request ended as it should: 429 with `Retry-After`, or the error for what was wrong;
- none hung, and as many ended as began, counted by the clients and by the engine;
- `/health` never takes 5 s, which is what the probes of our Kubernetes example wait for;
- the log has one warning, of the full disk, and no request failed because of it;
- afterwards no page is in use, threads and open files are those of the start, memory grew by less
  than 30 MiB after the first third, and at rest the process takes less than 1 % of a core;
- on SIGTERM, answers that are being streamed end as they should, and the exit status is 0.
"""


def write_report(findings, stats, options):
    """Print the report; with ``--report``, also write the page and its plot."""
    sections = [
        *_result(findings),
        *_requests(findings),
        *_faults(findings),
        *_engine(stats),
    ]
    print("\n".join(sections))
    if options.report:
        introduction = INTRODUCTION.format(minutes=options.minutes, clients=options.clients)
        page = [introduction, *sections, *_memory(findings), *_machine(options)]
        (DOCS / "reference" / "soak.md").write_text("\n".join(page), encoding="utf-8")
        PLOT.write_text(_plot(findings.memory), encoding="utf-8")


def _result(findings):
    if findings.problems:
        return [
            "**It failed:**",
            "",
            *(f"- {problem[:500]}" for problem in findings.problems[:20]),
            "",
        ]
    return ["It passed.", ""]


def _requests(findings):
    head = "| requests | began | right | 429 | hung up | refused | first event, p50 | p99 |"
    lines = ["## Requests", "", head, "|---|---|---|---|---|---|---|---|"]
    for kind, began in sorted(findings.started.items()):
        counts = [findings.ended[kind, outcome] for outcome in OUTCOMES]
        times = findings.first_events[kind]
        lines.append(_row(kind, began, *counts, *_times(times)))
    everything = [sum(findings.ended[kind, o] for kind in findings.started) for o in OUTCOMES]
    times = [time for several in findings.first_events.values() for time in several]
    lines += [_row("all", findings.started.total(), *everything, *_times(times)), ""]
    told = "*Refused* are those with an error in them. The first event of a stream is its first "
    return [*lines, told + "token, after the time in the queue.", ""]


def _times(times):
    return [f"{percentile(times, p):.2f} s" if times else "" for p in (50, 99)]


def _row(*cells):
    return "| " + " | ".join(f"{c:,}" if isinstance(c, int) else str(c) for c in cells) + " |"


def _faults(findings):
    lines = ["## Faults", "", "| fault | times |", "|---|---|"]
    lines += [_row(name, times) for name, times in sorted(findings.faults.items())]
    lines += [_row("bad requests", findings.started["bad request"])]
    health = findings.health
    p50, p99 = percentile(health, 50), percentile(health, 99)
    return [
        *lines,
        "",
        f"Meanwhile `/health` answered {len(health):,} times, in {p50 * 1000:.0f} ms in the "
        f"median, {p99 * 1000:.0f} ms at the 99th percentile and {max(health) * 1000:.0f} ms at "
        "most.",
        "",
    ]


def _engine(stats):
    pages, finished = stats["pages"], stats["finished"]
    rows = {
        "choices submitted": stats["total_tasks"],
        "ended by themselves or by their limit": sum(
            finished[reason] for reason in ("stop", "length", "tool_calls")
        ),
        "aborted, their clients having left": finished["aborted"],
        "failed": finished["error"],
        "tokens generated": stats["total_tokens"],
        "prompt tokens": stats["prompt_tokens"],
        "of them found in the cache": stats["cached_tokens"],
        "pages evicted": pages["evictions"],
        "pages that came back from a tier": pages["restores"],
        "choices set back for lack of pages": stats["preemptions"],
        "guessed tokens, and right ones": f"{stats['drafted_tokens']:,}, "
        f"{stats['accepted_tokens']:,}",
        "pages on the full disk": stats["tiers"]["disk"]["pages"],
    }
    lines = ["## The engine's own counts", "", "| what | number |", "|---|---|"]
    return [*lines, *(_row(name, count) for name, count in rows.items()), ""]


def _memory(findings):
    sizes = [size for _, size in findings.memory]
    return [
        "## Memory",
        "",
        f"{sizes[0]:.0f} MiB at the start, {max(sizes):.0f} at most and {sizes[-1]:.0f} at the "
        f"end; {findings.growth:+.1f} MiB from after the first third to the end.",
        "",
        f"![memory of the process by minutes](../assets/{PLOT.name})",
        "",
    ]


def _machine(options):
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    settings = ", ".join(f"`{name}={value}`" for name, value in SETTINGS.items())
    machine = f"{os.cpu_count()} cores, {memory:.0f} GiB; {platform.system()}, Python "
    note = f" {options.note}" if options.note else ""
    return [
        "## How it ran",
        "",
        f"{machine}{platform.python_version()}.{note}",
        "",
        f"{settings}; a disk of {DISK_BYTES // MIB} MiB, which only the server sees.",
        "",
    ]


def _plot(memory, width=640, height=240, margin=44):
    """MiB over minutes, as SVG."""
    last = memory[-1][0]
    top = max(size for _, size in memory) * 1.1
    across, up = (width - 2 * margin) / last, (height - 2 * margin) / top
    every = max(len(memory) // 300, 1)
    points = " ".join(
        f"{margin + at * across:.1f},{height - margin - size * up:.1f}"
        for at, size in memory[::every]
    )
    bottom, right = height - margin, width - margin
    text = 'font-family="sans-serif" font-size="12" fill="#777"'
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<path d="M{margin} {margin}V{bottom}H{right}" fill="none" stroke="#777"/>
<polyline points="{points}" fill="none" stroke="#3f51b5" stroke-width="2"/>
<text x="{margin - 6}" y="{bottom}" text-anchor="end" {text}>0</text>
<text x="{margin - 6}" y="{margin + 4}" text-anchor="end" {text}>{top:.0f}</text>
<text x="{margin}" y="{margin - 12}" {text}>memory, MiB</text>
<text x="{right}" y="{bottom + 18}" text-anchor="end" {text}>{last / 60:.0f} minutes</text>
</svg>
"""
