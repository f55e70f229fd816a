import threading

import pytest

from astrai_engine.errors import GenerationError, InvalidRequestError, QueueFullError
from astrai_engine.events import Failed, Finished, FinishReason, TokenDelta, Usage
from astrai_engine.offline import request_digest, run_batch
from astrai_engine.request import GenerationRequest

USAGE = Usage(3, 0, 2)


class Worker:
    """Answers each request with its own prompt, on another thread, newest first."""

    def __init__(self, *, batch=3, full_every=0, fail=()):
        self.submitted, self.aborted, self.most_open = [], [], 0
        self._batch, self._full_every, self._fail = batch, full_every, fail
        self._open, self._attempts = [], 0
        self._lock = threading.Lock()

    def submit(self, request, sink):
        self._attempts += 1
        if self._full_every and self._attempts % self._full_every == 0:
            raise QueueFullError("full", retry_after=0.01)
        if request.prompt == "refuse me":
            raise InvalidRequestError("refused")
        with self._lock:
            self.submitted.append(request.prompt)
            self._open.append((request, sink))
            self.most_open = max(self.most_open, len(self._open))
        threading.Timer(0.01, self._answer).start()
        return request.prompt

    def _answer(self):
        with self._lock:
            request, sink = self._open.pop()
        for index in range(request.n):
            if request.prompt in self._fail:
                sink.deliver([Failed(GenerationError("broken"), index)])
            else:
                sink.deliver([TokenDelta(request.prompt.upper(), (1,), USAGE, index)])
                sink.deliver([Finished(FinishReason.STOP, USAGE, index)])

    def run(self, prompts, **options):
        requests = [GenerationRequest(prompt=p) if isinstance(p, str) else p for p in prompts]
        options = {"window": 4, "progress": False, **options}
        return run_batch(self.submit, self.aborted.append, requests, **options)


def test_results_come_in_the_order_of_the_requests():
    worker = Worker()
    prompts = [f"prompt {i}" for i in range(30)]
    results = worker.run(prompts)
    assert [r.texts for r in results] == [(p.upper(),) for p in prompts]
    assert [r.index for r in results] == list(range(30))
    assert all(r.finish_reasons == ("stop",) and r.error is None for r in results)
    assert worker.most_open <= 4


def test_choices_are_collected():
    (result,) = Worker().run([GenerationRequest(prompt="a", n=3)])
    assert result.texts == ("A",) * 3
    assert result.completion_tokens == 6


def test_a_refused_and_a_failed_request_stop_nobody_else():
    results = Worker(fail=("bad",)).run(["one", "refuse me", "bad", "two"])
    assert [r.error for r in results] == [None, "refused", "broken", None]


def test_a_full_queue_is_waited_for():
    results = Worker(full_every=3).run([str(i) for i in range(12)])
    assert [r.texts[0] for r in results] == [str(i) for i in range(12)]


def test_an_interrupted_batch_resumes_where_it_was(tmp_path):
    path = tmp_path / "results.jsonl"
    prompts = [f"p{i}" for i in range(6)]
    Worker().run(prompts[:3], results_path=path)
    with path.open("a") as file:
        file.write('{"digest": "cut in the mid')  # the process died while it wrote
    resumed = Worker()
    results = resumed.run(prompts, results_path=path)
    assert sorted(resumed.submitted) == ["p3", "p4", "p5"]
    assert [r.texts[0] for r in results] == [p.upper() for p in prompts]
    again = Worker()
    assert again.run(prompts, results_path=path) == results
    assert again.submitted == []
    assert len(path.read_text().splitlines()) == 7  # six results and the line that was cut


def test_a_changed_request_is_run_again(tmp_path):
    path = tmp_path / "results.jsonl"
    Worker().run(["a", "b"], results_path=path)
    worker = Worker()
    assert [r.texts[0] for r in worker.run(["a", "c"], results_path=path)] == ["A", "C"]
    assert worker.submitted == ["c"]


def test_failures_are_tried_again_on_resumption(tmp_path):
    path = tmp_path / "results.jsonl"
    Worker(fail=("a",)).run(["a"], results_path=path)
    (result,) = Worker().run(["a"], results_path=path)
    assert result.error is None


def test_requests_are_told_apart_by_everything_they_ask_for():
    base = GenerationRequest(prompt="a")
    assert request_digest(base) == request_digest(GenerationRequest(prompt="a"))
    for other in (
        GenerationRequest(prompt="b"),
        GenerationRequest(prompt="a", temperature=0.5),
        GenerationRequest(prompt="a", logit_bias={1: 2.0}),
        GenerationRequest(messages=[{"role": "user", "content": "a"}]),
    ):
        assert request_digest(other) != request_digest(base)


def test_stopping_early_aborts_what_runs():
    class Interrupted(Worker):
        def submit(self, request, sink):
            if request.prompt == "stop here":
                raise KeyboardInterrupt
            self.submitted.append(request.prompt)
            return request.prompt

    worker = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        worker.run(["a", "b", "stop here"])
    assert worker.aborted == ["a", "b"]


def test_a_progress_bar_is_shown(capsys):
    Worker().run(["a", "b"], progress=True)
    assert "2/2" in capsys.readouterr().err
