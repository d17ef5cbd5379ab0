"""The chance that guests keep GPUs beyond their windows when new jobs of the pools need them.

A loan in a window rests on two forecasts: that new jobs of all pools need no more than the
reserved GPUs within the window, and that the guest ends in it. The second one is wrong for about
one guest of eight, and then it is the next longer window that counts. So for a loan in window b
this module asks for the probability that the guests of the group, together with the new one, hold
more GPUs after window b than the reservations of window b + 1 leave. With the chance that the
reservations themselves are too low this bounds the chance that a pool lacks GPUs (union bound).

How long guests run is measured: for each pool and run-time bin, of the jobs that ran longer than
one window, the share that ran longer than the next. Jobs of a pool and width that were submitted in
the same hour tend to run equally long, so they are one random event. The number of GPUs that
guests hold is a sum of such events, whose distribution is exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from math import exp, floor, inf, log

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sia.contract.views import JobStateView
from sia.policies.sia.risk import KEPT, PRIOR, TOGETHER

BEFORE, OWN, BEYOND = 0.97, 0.12, 0.7
"""Shares assumed before any job has run: of the jobs that outlast the previous window, those that
outlast this one. `BEFORE` is for windows shorter than the job's bin, `OWN` for its bin, and
`BEYOND` for longer windows. With the default forecast about 12 of 100 jobs outlast their bin."""

PRIOR_OF_ALL = 3.0
"""The number of jobs that these shares count as, in the shares of all pools. In the shares of each
pool those of all pools count as `PRIOR` jobs."""

SHORTEST = 15.0
"""Seconds for which no guest is expected to end. Survival from there to the first window, and
between windows, is interpolated in the logarithm of time."""

_Batch = tuple[str, int, int, int]
"""Pool, bin, width, hour of submission."""


class EndsSnapshot(Struct):
    """The memory of `GuestEnds`."""

    running: list[tuple[int, int, float, int, bool]]
    """For each running job, in order of starts: its number of arrival, its bin, its start in
    seconds, the index of the first window that it has not outlasted, and whether it is a guest."""
    shares: list[tuple[str, int, list[tuple[float, float]]]]
    """By pool, "" for all, and bin, for each window: the sum of the weights of jobs that ran longer
    than the window, and of all that reached it."""


class _Running:
    __slots__ = ("bin", "job", "outlasted", "start")

    def __init__(self, job: JobStateView, bin_: int, start: float) -> None:
        self.job, self.bin, self.start = job, bin_, start
        self.outlasted = 0

    @property
    def batch(self) -> _Batch:
        return _batch_of(self.job, self.bin)


def _batch_of(job: JobStateView, bin_: int) -> _Batch:
    return job.pool.name, bin_, job.width, floor(job.job.submit / TOGETHER)


class _Held:
    """The GPUs that guests hold after a window, by what is known at one time."""

    __slots__ = ("batch", "batches", "chances", "gpus", "lasting")

    def __init__(
        self, batch: _Batch | None, batches: set[_Batch], gpus: int, lasting: float
    ) -> None:
        self.batch, self.batches = batch, batches  # `chances` leave out `batch`
        self.gpus = gpus  # GPUs that this batch holds now
        self.lasting = lasting  # the mean number of GPUs that it holds after the window
        self.chances: NDArray[np.float64] = np.ones(1)  # that others hold 0, 1, 2, … GPUs

    def add(self, gpus: int, lasts: float) -> None:
        """Add a batch, with the chance that it runs after the window. O(GPUs that guests hold)."""
        more = np.zeros(len(self.chances) + gpus)
        more[: len(self.chances)] = self.chances * (1.0 - lasts)
        more[gpus:] += self.chances * lasts
        self.chances = more

    def above(self, gpus: int) -> float:
        """Return the chance that others hold more than this number. O(GPUs that guests hold)."""
        return float(self.chances[max(0, gpus + 1) :].sum())


class GuestEnds:
    """The running jobs of a sharing group, and how long earlier ones ran."""

    def __init__(self, windows: tuple[float, ...]) -> None:
        """Take windows in seconds, ascending. Nothing is measured yet."""
        self._windows = windows
        self._running: dict[int, _Running] = {}
        self._guests: dict[int, _Running] = {}  # of these
        self._next: list[tuple[float, int]] = []  # heap: end of a job's next window; also of ended
        self._shares: dict[tuple[str, int], list[tuple[float, float]]] = {}
        self._survivals: dict[tuple[str, int], list[float]] = {}  # cache
        self._held: dict[int, _Held] = {}  # by bin, at `_time`; a cache
        self._time = -inf

    def started(self, job: JobStateView, bin_: int, now: float, *, guest: bool) -> None:
        """Record that a job starts. O(log n)."""
        self.advance(now)
        found = self._running[job.arrival] = _Running(job, bin_, now)
        if guest:
            self._guests[job.arrival] = found
            if now == self._time:
                self._lent(found)
        heappush(self._next, (now + self._windows[0], job.arrival))

    def ended(self, job: JobStateView, now: float) -> None:
        """Record that a running job ends. O(log n + windows)."""
        self.advance(now)
        if self._guests.pop(job.arrival, None) is not None:
            self._held.clear()
        found = self._running.pop(job.arrival, None)
        if found is not None and found.outlasted < len(self._windows):
            self._measure(found, outlasted=False)

    def returned(self, job: JobStateView) -> None:
        """Record that a guest runs on in its own pool's quota. O(1)."""
        if self._guests.pop(job.arrival, None) is not None:
            self._held.clear()

    def advance(self, now: float) -> None:
        """Measure the jobs that have outlasted a window. O(log n + windows) for each."""
        while self._next and self._next[0][0] < now:
            due, number = heappop(self._next)
            found = self._running.get(number)
            if found is None or due != found.start + self._windows[found.outlasted]:
                continue  # an earlier run of the job
            self._measure(found, outlasted=True)
            found.outlasted += 1
            if found.outlasted < len(self._windows):
                heappush(self._next, (found.start + self._windows[found.outlasted], number))

    def _measure(self, job: _Running, *, outlasted: bool) -> None:
        for pool in (job.job.pool.name, ""):
            none = [(0.0, 0.0)] * len(self._windows)
            shares = self._shares.setdefault((pool, job.bin), none)
            lasted, all_ = shares[job.outlasted]
            shares[job.outlasted] = lasted * KEPT + outlasted, all_ * KEPT + 1.0
        self._survivals.clear()
        self._held.clear()

    def chance(self, job: JobStateView, bin_: int, now: float, room: int) -> float:
        """Return the probability that guests hold more than `room` GPUs after the window of a loan.

        The loan is one to `job`, in the window with the number of its bin. If guests hold g GPUs,
        O(g) if the last question of this time and bin was about the same batch, or both are about
        new batches; else O(guests + batches · g).
        """
        self.advance(now)
        if now != self._time:
            self._time = now
            self._held.clear()
        batch = _batch_of(job, bin_)
        held = self._held.get(bin_)
        if held is None or held.batch != (batch if batch in held.batches else None):
            held = self._held[bin_] = self._without(batch, bin_)
        lasts = self._lasts(job.pool.name, bin_, 0.0, self._windows[bin_])
        gpus = held.gpus + job.width
        together = (held.lasting + job.width * lasts) / gpus
        return held.above(room) * (1.0 - together) + held.above(room - gpus) * together

    def _without(self, batch: _Batch, bin_: int) -> _Held:
        """Return what guests of other batches hold after a window from now."""
        after, batches = self._windows[bin_], dict[_Batch, tuple[int, float]]()
        for guest in self._guests.values():
            gpus, lasting = batches.get(guest.batch, (0, 0.0))
            lasts = self._lasts(guest.job.pool.name, guest.bin, self._time - guest.start, after)
            batches[guest.batch] = gpus + guest.job.width, lasting + guest.job.width * lasts
        known = batch in batches
        held = _Held(batch if known else None, {*batches}, *batches.pop(batch, (0, 0.0)))
        for gpus, lasting in batches.values():
            held.add(gpus, lasting / gpus)
        return held

    def _lent(self, guest: _Running) -> None:
        """Update what guests hold by a loan of this moment."""
        for bin_, held in [*self._held.items()]:
            lasts = self._lasts(guest.job.pool.name, guest.bin, 0.0, self._windows[bin_])
            if held.batch == guest.batch:
                held.gpus += guest.job.width
                held.lasting += guest.job.width * lasts
            elif guest.batch in held.batches:
                del self._held[bin_]
            else:
                held.batches.add(guest.batch)
                held.add(guest.job.width, lasts)

    def _lasts(self, pool: str, bin_: int, age: float, after: float) -> float:
        """Return the chance that a job which has run for `age` still runs `after` seconds later."""
        survival = self._survival(pool, bin_)
        return exp(self._at(survival, age + after) - self._at(survival, age))

    def _survival(self, pool: str, bin_: int) -> list[float]:
        """Return the logarithm of the chance to outlast each window; first that of 0 seconds."""
        found = self._survivals.get((pool, bin_))
        if found is None:
            found = self._survivals[pool, bin_] = [0.0]
            own, all_ = (self._shares.get((each, bin_)) for each in (pool, ""))
            for window in range(len(self._windows)):
                share = OWN if window == bin_ else BEFORE if window < bin_ else BEYOND
                share = _shrunk(all_, window, share, PRIOR_OF_ALL)
                share = _shrunk(own, window, share, PRIOR)
                found.append(found[-1] + log(share))
        return found

    def _at(self, survival: Sequence[float], seconds: float) -> float:
        """Return the logarithm of survival at a time."""
        window = bisect_left(self._windows, seconds)
        if window == len(self._windows):
            return survival[-1]
        begin = self._windows[window - 1] if window else min(SHORTEST, self._windows[0])
        if seconds <= begin:
            return survival[window]
        part = log(seconds / begin) / log(self._windows[window] / begin)
        return survival[window] + part * (survival[window + 1] - survival[window])

    def memory(self) -> EndsSnapshot:
        """Return what `resume` needs."""
        running = [
            (number, each.bin, each.start, each.outlasted, number in self._guests)
            for number, each in self._running.items()
        ]
        shares = [(pool, bin_, [*each]) for (pool, bin_), each in self._shares.items()]
        return EndsSnapshot(running, shares)

    def resume(self, kept: EndsSnapshot, jobs: dict[int, JobStateView]) -> None:
        """Restore jobs and measurements. Raises KeyError for an unknown job."""
        self._running, self._guests, self._next = {}, {}, []
        self._shares = {(pool, bin_): [*each] for pool, bin_, each in kept.shares}
        self._survivals, self._held = {}, {}
        for number, bin_, start, outlasted, guest in kept.running:
            found = self._running[number] = _Running(jobs[number], bin_, start)
            found.outlasted = outlasted
            if guest:
                self._guests[number] = found
            if outlasted < len(self._windows):
                heappush(self._next, (start + self._windows[outlasted], number))

    def check(self, guests: Sequence[JobStateView]) -> None:
        """Assert that these are the guests, and that each job waits for its next window."""
        assert sorted(self._guests) == sorted(job.arrival for job in guests)
        assert all(self._running[number] is each for number, each in self._guests.items())
        waits = set(self._next)
        for number, each in self._running.items():
            due = each.outlasted < len(self._windows)
            assert not due or (each.start + self._windows[each.outlasted], number) in waits
        assert all(0.0 <= lasted <= all_ for each in self._shares.values() for lasted, all_ in each)


def _shrunk(
    shares: list[tuple[float, float]] | None, window: int, share: float, weight: float
) -> float:
    """Return a measured share; `share` counts as much as `weight` jobs."""
    lasted, all_ = shares[window] if shares is not None else (0.0, 0.0)
    return (lasted + weight * share) / (all_ + weight)
