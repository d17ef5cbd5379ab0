"""Remember recent arrivals, and draw future arrivals from them by block bootstrap. Pure.

The arrivals of a six-hour block are those of the same six hours of an earlier day. The day is drawn
for each pool and block, which preserves bursts and the difference between day and night.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from math import ceil, floor
from typing import NamedTuple

from predictors.random_forecast import draw
from sia.model import Job

DAY = 86400.0

BLOCK = 6 * 3600.0
"""Length of a block in seconds: shorter than a working day, longer than the effects of a burst."""

MEMORY = 14 * DAY
"""Seconds of history: two weeks contain each weekday twice."""

MOST_CAME = 100_000
"""Maximum number of remembered jobs per pool, the newest: one every twelve seconds for two
weeks."""


class RecentJob(NamedTuple):
    """A job that arrived. Times are seconds; `ran` is None until the run time is known."""

    job: Job
    thought: float
    """Estimated run time at submission."""
    ran: float | None = None


class _Pool:
    """The jobs of one pool in order of arrival."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.jobs: list[RecentJob] = []

    def add(self, came: RecentJob) -> None:
        self.times.append(max(came.job.submit, self.times[-1] if self.times else came.job.submit))
        self.jobs.append(came)

    def forget(self, before: float) -> int:
        """Drop jobs that arrived before this time; return their number."""
        gone = max(bisect_left(self.times, before), len(self.times) - MOST_CAME)
        if gone > len(self.times) // 2:  # rarely: a deletion moves later elements
            del self.times[:gone], self.jobs[:gone]
            return gone
        return 0


class RecentArrivals:
    """Recent arrivals of all pools, with their run times."""

    def __init__(self) -> None:
        """Start with no job."""
        self._pools: dict[str, _Pool] = {}
        self._where: dict[str, tuple[str, int]] = {}  # by active job: pool, number in the pool
        self._dropped: dict[str, int] = {}  # by pool: number of dropped jobs
        self._begin: float | None = None

    @property
    def begin(self) -> float | None:
        """Time of the first arrival; None before it."""
        return self._begin

    def submitted(self, job: Job, run_time: float) -> None:
        """Record an arrival. Amortized O(1)."""
        if self._begin is None:
            self._begin = job.submit
        pool = self._pools.setdefault(job.pool, _Pool())
        dropped = self._dropped.get(job.pool, 0) + pool.forget(job.submit - MEMORY)
        self._dropped[job.pool] = dropped
        self._where[job.id] = job.pool, dropped + len(pool.jobs)
        pool.add(RecentJob(job, run_time))

    def ended(self, job_id: str, ran: float | None) -> None:
        """Record the run time of a job that has left; None if it never ran. O(1)."""
        name, number = self._where.pop(job_id, ("", -1))
        place = number - self._dropped.get(name, 0)
        if place >= 0 and ran is not None:
            pool = self._pools[name]
            pool.jobs[place] = pool.jobs[place]._replace(ran=ran)

    def next(
        self, world: int, begin: float, end: float, now: float
    ) -> Iterator[tuple[float, RecentJob]]:
        """Yield simulated arrivals in [begin, end) of one world, as seen from `now`, by pool.

        The same blocks, worlds and history give the same arrivals. O(arrivals).
        """
        first = self._begin
        if first is None or now - first < BLOCK:
            return
        first = max(first, now - MEMORY)
        for number in range(floor(begin / BLOCK), ceil(end / BLOCK)):
            since, until = max(begin, number * BLOCK), min(end, (number + 1) * BLOCK)
            for name, pool in self._pools.items():
                back = _back(draw("came", world, name, number), number, first, now)
                i = bisect_left(pool.times, since - back)
                while i < len(pool.times) and pool.times[i] < until - back:
                    yield pool.times[i] + back, pool.jobs[i]
                    i += 1


def _back(lot: int, number: int, first: float, now: float) -> float:
    """Return by how many seconds the drawn block is earlier: whole days if possible."""
    begin = number * BLOCK
    nearest = ceil((begin + BLOCK - now) / DAY)  # the block must have ended
    farthest = floor((begin - first) / DAY)
    if nearest <= farthest:
        return DAY * (nearest + lot % (farthest - nearest + 1))
    least = begin + BLOCK - now
    return least + (lot % 1024) / 1024 * max(0.0, begin - first - least)
