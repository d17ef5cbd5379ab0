"""The risk of all loans of a sharing group: the GPUs that guests may keep beyond their windows.

A guest borrows GPUs until the end of its window. Until then it counts with its width times the
probability that it runs longer, which is the fraction of the latest guests of its pool and window
that did. After its window it counts with its whole width. Jobs of a pool that were submitted in the
same hour with the same width tend to run equally long, so they are one random event.

The risk is the mean of the sum plus `DEVIATIONS` standard deviations.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import floor, fsum, sqrt

from msgspec import Struct

from sia.contract.views import JobStateView

DEVIATIONS = 2.0
"""Number of standard deviations; the sum exceeds its mean by more than two in about one case of
forty."""

FIRST = 0.12
"""The probability assumed before any guest has ended. With the default forecast of run times, about
12 of 100 jobs run longer than their window."""

PRIOR = 10.0
"""Weight of `FIRST`, in guests."""

KEPT = 0.5 ** (1 / 150)
"""Factor on the weight of earlier guests at each new one: a weight halves after 150 guests."""

TOGETHER = 3600.0
"""Seconds of a log in which jobs of one pool and width count as a batch. On Philly the run times of
such jobs are correlated."""

_Batch = tuple[str, int, int, int]
"""Pool, window, width, hour of submission."""


class RiskSnapshot(Struct):
    """The memory of `LendingRisk`."""

    guests: list[tuple[int, float, int, bool]]
    """For each guest, in order of starts: its number of arrival, the end of its window in seconds,
    the index of the window, and whether the window is over."""
    shares: dict[str, list[tuple[float, float]]]
    """By pool, for each window: the sum of the weights of guests that ran longer than the window,
    and of all guests."""


class _Guest:
    __slots__ = ("batch", "due", "job", "window")

    def __init__(self, job: JobStateView, window: int, due: float) -> None:
        self.job, self.window, self.due = job, window, due
        submitted = floor(job.job.submit / TOGETHER)
        self.batch: _Batch | None = (job.pool.name, window, job.width, submitted)  # None: overdue


class LendingRisk:
    """The guests of a sharing group, and measurements of earlier guests.

    Attributes:
        overdue: GPUs of guests whose window is over.
    """

    def __init__(self, windows: tuple[float, ...]) -> None:
        """Take windows in seconds, ascending. Nothing is measured yet."""
        self.overdue = 0
        self._windows = windows
        self._guests: dict[int, _Guest] = {}
        self._due: list[tuple[float, int]] = []  # heap, with guests that have ended
        self._batches: dict[_Batch, int] = {}  # GPUs of guests in their window
        self._shares: dict[str, list[tuple[float, float]]] = {}

    def chance(self, pool: str, window: int) -> float:
        """Return the measured probability that a guest runs longer than its window. O(1)."""
        outlasted, all_ = self._shares[pool][window] if pool in self._shares else (0.0, 0.0)
        return (outlasted + PRIOR * FIRST) / (all_ + PRIOR)

    def add(self, job: JobStateView, window: int, now: float) -> None:
        """Record a guest that starts. O(log n)."""
        self._put(_Guest(job, window, now + self._windows[window]))

    def _put(self, guest: _Guest) -> None:
        self._guests[guest.job.arrival] = guest
        heappush(self._due, (guest.due, guest.job.arrival))
        assert guest.batch is not None, "a new guest is not overdue"
        self._batches[guest.batch] = self._batches.get(guest.batch, 0) + guest.job.width

    def drop(self, job: JobStateView, now: float) -> None:
        """Remove a guest that ends. O(log n)."""
        guest = self.returned(job, now)
        if guest is not None and guest.batch is not None:
            self._measure(guest, outlasted=False)

    def returned(self, job: JobStateView, now: float) -> _Guest | None:
        """Remove and return a guest, which may run on, but on no loan any more. O(log n)."""
        self.advance(now)
        guest = self._guests.pop(job.arrival, None)
        if guest is None:
            return None
        if guest.batch is None:
            self.overdue -= job.width
        else:
            self._leave(guest)
        return guest

    def advance(self, now: float) -> None:
        """Count the guests whose window is over. O(log n) for each."""
        while self._due and self._due[0][0] < now:
            due, number = heappop(self._due)
            guest = self._guests.get(number)
            if guest is not None and guest.batch is not None and guest.due == due:
                self._leave(guest)
                self._measure(guest, outlasted=True)
                guest.batch = None
                self.overdue += guest.job.width

    def _leave(self, guest: _Guest) -> None:
        assert guest.batch is not None, "it was in its window"
        self._batches[guest.batch] -= guest.job.width
        if not self._batches[guest.batch]:
            del self._batches[guest.batch]

    def _measure(self, guest: _Guest, *, outlasted: bool) -> None:
        shares = self._shares.setdefault(guest.job.pool.name, [(0.0, 0.0)] * len(self._windows))
        lasted, all_ = shares[guest.window]
        shares[guest.window] = lasted * KEPT + outlasted, all_ * KEPT + 1.0

    def gpus(self, job: JobStateView | None = None, window: int = 0) -> float:
        """Return the risk of all loans in GPUs, including one to `job`, if given. O(batches)."""
        batches = self._batches
        if job is not None:
            more = _Guest(job, window, 0.0)
            assert more.batch is not None, "a new guest is not overdue"
            batches = {**batches, more.batch: batches.get(more.batch, 0) + job.width}
        risks = [(gpus, self.chance(pool, of)) for (pool, of, *_), gpus in batches.items()]
        mean = fsum(gpus * chance for gpus, chance in risks)  # exact, whatever their order
        square = fsum(gpus * gpus * chance * (1.0 - chance) for gpus, chance in risks)
        return self.overdue + mean + DEVIATIONS * sqrt(square)

    def memory(self) -> RiskSnapshot:
        """Return what `resume` needs."""
        guests = [(n, g.due, g.window, g.batch is None) for n, g in self._guests.items()]
        return RiskSnapshot(guests, {pool: [*each] for pool, each in self._shares.items()})

    def resume(self, kept: RiskSnapshot, jobs: dict[int, JobStateView]) -> None:
        """Restore guests and measurements. Raises KeyError for an unknown job."""
        self._shares = {pool: [*each] for pool, each in kept.shares.items()}
        for number, due, window, over in kept.guests:
            guest = _Guest(jobs[number], window, due)
            self._put(guest)
            if over:
                self._leave(guest)
                guest.batch = None
                self.overdue += guest.job.width

    def check(self) -> None:
        """Assert that the sums agree with the guests."""
        batches: dict[_Batch, int] = {}
        for guest in self._guests.values():
            if guest.batch is not None:
                batches[guest.batch] = batches.get(guest.batch, 0) + guest.job.width
        assert batches == self._batches
        overdue = sum(g.job.width for g in self._guests.values() if g.batch is None)
        assert overdue == self.overdue
