"""``astrai bench serve``: send a load to a server, and say how it was answered."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from astrai_api.cli.answer import CHAT, COMPLETIONS
from astrai_api.cli.bench import options
from astrai_api.cli.bench.load import Load
from astrai_api.cli.bench.prompts import PromptFile, SyntheticPrompts, as_chat, as_completion
from astrai_api.cli.bench.records import BenchRun, Limits, RequestRecord, write_text
from astrai_api.cli.bench.report import report
from astrai_api.cli.bench.summary import summarise
from astrai_api.cli.bench.tables import figures_table
from astrai_api.cli.console import Quiet, Remarks, output
from astrai_api.cli.exits import CommandError, ExitCode, usage_error
from astrai_api.cli.target import ApiKey, Target, open_target

_CLIENTS = 8


def serve(
    url: options.Server = "http://localhost:8000",
    *,
    model: options.ServedModel = None,
    api_key: ApiKey = None,
    requests: options.Requests = 64,
    concurrency: options.Concurrency = None,
    rate: options.Rate = None,
    arrival: options.ArrivalKind = "poisson",
    warmup: options.Warmup = 2,
    seed: options.Seed = 0,
    prompts: options.Prompts = None,
    prompt_tokens: options.PromptTokens = 128,
    shared_prefix_tokens: options.SharedTokens = 0,
    prefix_groups: options.PrefixGroups = 1,
    output_tokens: options.OutputTokens = 128,
    ignore_eos: options.IgnoreEos = True,
    endpoint: options.Endpoint = "chat",
    max_first_ms: options.MaxFirst = None,
    max_token_ms: options.MaxToken = None,
    max_total_ms: options.MaxTotal = None,
    require: options.Require = None,
    name: options.Name = None,
    json_file: options.JsonFile = None,
    html_file: options.HtmlFile = None,
    quiet: Quiet = False,
) -> None:
    """Send requests to a server and measure its answers.

    Time to first text, gaps between pieces of text and whole answers, in percentiles; tokens a
    second; and goodput: how many requests a second were answered within your limits.
    """
    limits = _limits(max_first_ms, max_token_ms, max_total_ms)
    if require is not None and not limits:
        raise usage_error("--require needs a limit, such as --max-first-ms.")
    if rate is None and concurrency is None:
        concurrency = _CLIENTS
    load = Load(requests, concurrency, rate, arrival, seed)
    synthetic = SyntheticPrompts(prompt_tokens, shared_prefix_tokens, prefix_groups, seed)
    source = synthetic if prompts is None else PromptFile(prompts)
    work = Work(source, endpoint, output_tokens, ignore_eos=ignore_eos)
    remarks = Remarks(quiet=quiet)
    with open_target(url, model, api_key, remarks) as target:
        records, seconds = _measure(load, work, target, warmup, remarks)
        place = {"place": target.place, "model": target.model}
    described = {**asdict(load), "description": f"{load.description}; {work.description}"}
    run = BenchRun(name or place["model"], place, described, limits, seconds, records)
    _publish(run, json_file, html_file, remarks)
    _judge(run, require)


@dataclass(frozen=True)
class Work:
    """What every request asks for.

    Attributes:
        source: of the prompts.
        endpoint: ``chat`` or ``completions``.
        output_tokens: length of the answers, unless a prompt says otherwise.
        ignore_eos: go on to that length.
    """

    source: SyntheticPrompts | PromptFile
    endpoint: str
    output_tokens: int
    ignore_eos: bool

    @property
    def path(self) -> str:
        """Where requests go."""
        return CHAT if self.endpoint == "chat" else COMPLETIONS

    @property
    def description(self) -> str:
        """In words."""
        return f"{self.source.description}, {self.output_tokens} tokens out, {self.endpoint}"

    def bodies(self) -> Iterator[dict[str, Any]]:
        """Requests, without end."""
        common: dict[str, Any] = {"temperature": 0, "max_tokens": self.output_tokens}
        common |= {"ignore_eos": True} if self.ignore_eos else {}
        convert = as_chat if self.endpoint == "chat" else as_completion
        return ({**common, **convert(prompt)} for prompt in self.source)


def _measure(
    load: Load, work: Work, target: Target, warmup: int, remarks: Remarks
) -> tuple[list[RequestRecord], float]:
    bodies = work.bodies()
    if warmup:
        with remarks.waiting("Warming up"):
            target.run(Load(warmup, warmup).run(target, work.path, bodies, lambda _: None))
    failures = 0
    with remarks.progress("requests") as progress:
        task = progress.add_task("", total=load.num_requests, remark="")

        def on_record(record: RequestRecord) -> None:
            nonlocal failures
            failures += record.error is not None
            progress.update(task, advance=1, remark=f"{failures} failed" if failures else "")

        start = time.perf_counter()
        records = target.run(load.run(target, work.path, bodies, on_record))
        return records, time.perf_counter() - start


def _limits(first: float | None, token: float | None, total: float | None) -> Limits:
    return Limits(*(None if limit is None else limit / 1000 for limit in (first, token, total)))


def _publish(
    run: BenchRun, json_file: Path | None, html_file: Path | None, remarks: Remarks
) -> None:
    output().print(figures_table([run]))
    if json_file is not None:
        run.save(json_file, asdict(summarise(run)))
        remarks.say(f"All records are in {json_file}.")
    if html_file is not None:
        write_text(html_file, report([run]))
        remarks.say(f"The report is in {html_file}.")


def _judge(run: BenchRun, require: float | None) -> None:
    failed = [record.error for record in run.requests if record.error is not None]
    if failed:
        raise CommandError(
            f"{len(failed)} of {len(run.requests)} requests failed; the first: {failed[0]}",
            ExitCode.PARTIAL,
        )
    share = summarise(run).good_share
    if require is not None and share < require:
        raise CommandError(
            f"{share:.1%} of the requests were answered within the limits, not {require:.1%}.",
            ExitCode.PARTIAL,
        )
