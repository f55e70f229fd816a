"""The worker processes, as rank 0 has them: started, told of steps, watched and ended.

They are started as programs of their own, not forked and not by ``multiprocessing``, which would
import the user's main module once more in each of them. A pipe to each is its lifeline: when rank
0 ends, however it ends, the system closes the pipes and the workers end.
"""

import logging
import pickle
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

import torch

from astrai_engine.errors import ConfigurationError, EngineUnavailableError
from astrai_engine.parallel.frames import read_frame, write_frame
from astrai_engine.parallel.orders import LoadOrder, Refused, ServeOrder
from astrai_engine.parallel.ranks import ProcessRanks

_logger = logging.getLogger(__name__)

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; from astrai_engine.parallel.worker import main; main()"
)
_END_SECONDS = 10.0
"""How long a process may take to be gone once it has closed its output."""


class Crew:
    """All ranks but the first, each a process; they begin to load at once.

    Args:
        orders: what each is to load, from rank 1 on.
        group: rank 0's part of the group, not connected yet.

    Attributes:
        group: the same.
    """

    def __init__(self, orders: Iterable[LoadOrder], group: ProcessRanks) -> None:
        self.group = group
        self._workers: list[_Worker] = []
        self._closing = False
        self._watcher: threading.Thread | None = None
        try:
            for order in orders:
                self._workers.append(_Worker(order.rank))
                self._workers[-1].tell(order)
        except BaseException:
            self.close()
            raise

    def wait_loaded(self) -> int:
        """Wait until all have loaded; gives the memory that is left where least is left.

        Raises:
            ConfigurationError: one of them cannot load its share.
        """
        return min(worker.wait_loaded() for worker in self._workers)

    def connect(self, order: ServeOrder, device: torch.device) -> None:
        """Tell all of the engine around them, and connect the group.

        Args:
            order: what they need to know.
            device: rank 0's.
        """
        with tempfile.TemporaryDirectory(prefix="astrai-ranks-") as folder:
            path = Path(folder) / "store"
            for worker in self._workers:
                worker.tell(order)
                worker.tell(path)
            self.group.connect(path, device)

    def announce(self, step: memoryview) -> None:
        """Have all run a step, as `astrai_engine.parallel.step.encode` wrote it.

        Raises:
            OSError: one of them is gone.
        """
        for worker in self._workers:
            write_frame(worker.inbox, step)

    def watch(self, on_lost: Callable[[EngineUnavailableError], None]) -> None:
        """From now on, notice when one ends by itself.

        Args:
            on_lost: told once, on a thread of its own.
        """
        self._watcher = threading.Thread(
            target=self._watch, args=(on_lost,), name="astrai-ranks", daemon=True
        )
        self._watcher.start()

    def lost(self, reason: str) -> EngineUnavailableError:
        """End what is left of the crew, which cannot go on; gives the error that says so."""
        self.close()
        return EngineUnavailableError(
            f"The processes that run the model together are lost: {reason} "
            "The server has to be restarted."
        )

    def close(self) -> None:
        """End all workers; returns when they are gone. Calling it again does nothing."""
        self._closing = True
        for worker in self._workers:
            worker.end()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
        for worker in self._workers:
            worker.close_pipes()

    def _watch(self, on_lost: Callable[[EngineUnavailableError], None]) -> None:
        """A worker that has loaded writes nothing, so its output is readable when it has ended."""
        with selectors.DefaultSelector() as selector:
            for each in self._workers:
                selector.register(each.outbox, selectors.EVENT_READ, each)
            worker: _Worker = selector.select()[0][0].data
        if self._closing:
            return
        error = self.lost(f"rank {worker.rank} {worker.ending()}.")
        _logger.error("%s", error)
        on_lost(error)
        self.group.abort()


class _Worker:
    """One process.

    Args:
        rank: which it is.

    Attributes:
        rank: the same.
        inbox: what it reads.
        outbox: what it writes.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.inbox = cast(IO[bytes], self._process.stdin)
        self.outbox = cast(IO[bytes], self._process.stdout)

    def tell(self, order: Any) -> None:
        """Send an order, once for each worker and start: steps are not sent so."""
        with suppress(OSError):  # it has ended, as is noticed when it has to answer
            write_frame(self.inbox, pickle.dumps(order))

    def wait_loaded(self) -> int:
        """Wait until it has loaded; gives the memory that is left.

        Raises:
            ConfigurationError: it cannot load its share.
        """
        try:
            answer = pickle.loads(read_frame(self.outbox))
        except EOFError:
            answer = Refused(reason=f"It {self.ending()}; see what it wrote above.")
        if isinstance(answer, Refused):
            raise ConfigurationError(f"Rank {self.rank} did not start. {answer.reason}")
        return int(answer.free_bytes)

    def ending(self) -> str:
        """How it ended, as the end of a sentence."""
        try:
            status = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "does not answer"
        return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"

    def end(self) -> None:
        """Kill it, as it has nothing to lose; returns when it is gone."""
        self._process.kill()
        self._process.wait()

    def close_pipes(self) -> None:
        """Close what led to it."""
        with suppress(OSError):  # a step that it has not read is of no use to anybody
            self.inbox.close()
        self.outbox.close()
