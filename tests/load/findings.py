"""What a load found, counted; and what of it should not be so."""

import statistics
from collections import Counter, defaultdict

RIGHT = "right"
QUEUE_FULL = "429"
LEFT = "hung up"
REFUSED = "refused"

MAX_HEALTH_SECONDS = 5.0  # what the probes in docs/deploy wait for
MAX_GROWTH_MIB = 30
MIN_MEMORY_SECONDS = 300  # before that, caches are still filling up
MAX_IDLE_CPU = 0.01


class Findings:
    """Attempts by kind and outcome, times, memory, and whatever went wrong.

    Attributes:
        started: attempts, by kind.
        ended: how they ended, by kind and outcome.
        first_events: seconds to the first event of each stream that was right, by kind.
        faults: what was done to the server, by name.
        wrong: sentences on attempts that ended in any other way.
        health: seconds that each ``/health`` took.
        memory: pairs of seconds since the load began and MiB.
        problems: what should not be so afterwards.
    """

    def __init__(self):
        self.started = Counter()
        self.ended = Counter()
        self.first_events = defaultdict(list)
        self.faults = Counter()
        self.wrong = []
        self.health = []
        self.memory = []
        self.problems = []

    def check(self):
        """Add to the problems what the counts and times show."""
        self.problems += self.wrong[:10]
        num_started, num_ended = self.started.total(), self.ended.total() + len(self.wrong)
        self.expect(num_started == num_ended, f"{num_started} began, but {num_ended} ended")
        for kind in self.started:
            if kind != "bad request":
                self.expect(self.ended[kind, RIGHT] > 0, f"no answer to {kind} was read whole")
        slowest = max(self.health)
        self.expect(slowest < MAX_HEALTH_SECONDS, f"/health took {slowest:.2f} s")
        if self.memory[-1][0] >= MIN_MEMORY_SECONDS:
            growth = self.growth
            self.expect(growth < MAX_GROWTH_MIB, f"memory grew by {growth:.1f} MiB")

    def expect(self, is_so, otherwise):
        """Add a problem unless something is so."""
        if not is_so:
            self.problems.append(otherwise)

    @property
    def growth(self):
        """MiB from the first minute after the first third to the last minute, by their medians."""
        third, end = self.memory[-1][0] / 3, self.memory[-1][0]
        early = [size for at, size in self.memory if third <= at <= third + 60]
        late = [size for at, size in self.memory if at >= end - 60]
        return statistics.median(late) - statistics.median(early)


def percentile(values, percent):
    """The value that ``percent`` of the values do not exceed; 0 if there are none."""
    return sorted(values)[min(len(values) * percent // 100, len(values) - 1)] if values else 0.0
