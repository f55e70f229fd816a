"""``astrai run-batch``: a file of requests, answered into a file of results."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from astrai_api.cli.batch_journal import BatchJournal
from astrai_api.cli.batch_line import BatchLine, has_failed, read_lines
from astrai_api.cli.batch_runner import BatchRunner
from astrai_api.cli.console import Quiet, Remarks
from astrai_api.cli.exits import CommandError, ExitCode, usage_error
from astrai_api.cli.target import ApiKey, Model, Target, Url, open_target

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command(
    "run-batch",
    epilog='A line of the input: [bold]{"custom_id": "a", "method": "POST", "url": '
    '"/v1/chat/completions", "body": {"messages": '
    '\\[{"role": "user", "content": "Hello"}]}}[/bold]',
)
def run_batch(
    file: Annotated[
        Path,
        typer.Argument(
            help="Requests in OpenAI's batch format, one JSON object a line.",
            exists=True,
            dir_okay=False,
            metavar="INPUT",
        ),
    ],
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Where results go: one line for each request, in their order."
        ),
    ],
    url: Url = None,
    model: Model = None,
    api_key: ApiKey = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=4096, help="Requests open at the same time.")
    ] = 64,
    retries: Annotated[
        int,
        typer.Option(min=0, help="How often a request is sent again when the server fails."),
    ] = 5,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start again, whatever there is already.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run a file of requests; it resumes where it was stopped.

    Results are kept in OUTPUT.partial as they come: after a crash, Ctrl-C or a power cut, the same
    command goes on with what is missing. A request that is refused gets a result that says why,
    and the others go on; the exit status is then 5.
    """
    partial = output.with_name(f"{output.name}.partial")
    if overwrite:
        partial.unlink(missing_ok=True)
    elif output.exists() and not partial.exists():
        raise usage_error(f"{output} exists already; use --overwrite to replace it.")
    if not output.parent.is_dir():
        raise usage_error(f"There is no folder {output.parent} for the output.")
    remarks = Remarks(quiet=quiet)
    with (
        open_target(url, model, api_key, remarks) as target,
        BatchJournal(partial, target.title) as journal,
    ):
        runner = BatchRunner(target, concurrency=concurrency, retries=retries)
        _run(file, journal, runner, target, remarks)
        failed = _count_failed(file, journal)
        journal.finish((line.key for line in read_lines(file)), output)
    if failed:
        raise CommandError(
            f"{failed} of the requests failed; their lines in {output} say why.", ExitCode.PARTIAL
        )


def _run(
    file: Path, journal: BatchJournal, runner: BatchRunner, target: Target, remarks: Remarks
) -> None:
    total = sum(1 for _ in read_lines(file))
    done = sum(line.key in journal for line in read_lines(file))
    if done:
        remarks.say(f"{done} of {total} requests are done already.")
    failures = tokens = 0
    start = time.perf_counter()
    with remarks.progress("requests") as progress:
        task = progress.add_task("", total=total, completed=done, remark="")

        def on_result(line: BatchLine, result: dict[str, Any]) -> None:
            nonlocal failures, tokens
            journal.append(line.key, result)
            failures += has_failed(result)
            tokens += _completion_tokens(result)
            remark = f"{failures} failed" if failures else ""
            progress.update(task, advance=1, remark=remark)

        target.run(runner.run(_missing(file, journal), on_result))
    seconds = time.perf_counter() - start
    rate = tokens / max(seconds, 1e-9)
    remarks.say(f"{total - done} requests in {seconds:.1f} s, {rate:,.0f} tokens/s.")


def _missing(file: Path, journal: BatchJournal) -> Iterator[BatchLine]:
    return (line for line in read_lines(file) if line.key not in journal)


def _count_failed(file: Path, journal: BatchJournal) -> int:
    return sum(has_failed(journal.result(line.key)) for line in read_lines(file))


def _completion_tokens(result: dict[str, Any]) -> int:
    body = (result["response"] or {}).get("body")
    usage = body.get("usage") if isinstance(body, dict) else None
    usage = usage or {}
    return int(usage.get("completion_tokens") or usage.get("output_tokens") or 0)
