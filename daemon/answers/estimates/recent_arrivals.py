"""Which jobs came lately, and which may come next: drawn from those days, hour for hour. Pure.

What is to come in six hours of a day is what came in the same six hours of another day, one for
each pool and drawn by lot: bursts stay bursts, and nights are nights.
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
"""Seconds drawn together: shorter than a working day, longer than what one burst brings about."""

MEMORY = 14 * DAY
"""Seconds looked back on: two weeks show each weekday twice."""

MOST_CAME = 100_000
"""Jobs of a pool that are remembered, the newest: a job every twelve seconds for two weeks."""


class RecentJob(NamedTuple):
    """A job that came. Times are seconds; `ran` is None while nobody knows."""

    job: Job
    thought: float
    """How long it was thought to run when it came."""
    ran: float | None = None


class _Pool:
    """The jobs of one pool in their order."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.jobs: list[RecentJob] = []

    def add(self, came: RecentJob) -> None:
        self.times.append(max(came.job.submit, self.times[-1] if self.times else came.job.submit))
        self.jobs.append(came)

    def forget(self, before: float) -> int:
        """Drop what came before; how many these are."""
        gone = max(bisect_left(self.times, before), len(self.times) - MOST_CAME)
        if gone > len(self.times) // 2:  # seldom: a list moves all that stays
            del self.times[:gone], self.jobs[:gone]
            return gone
        return 0


class RecentArrivals:
    """Jobs as they come and end."""

    def __init__(self) -> None:
        """None came yet."""
        self._pools: dict[str, _Pool] = {}
        self._where: dict[str, tuple[str, int]] = {}  # of jobs alive: pool, number in it
        self._dropped: dict[str, int] = {}  # of each pool, how many
        self._begin: float | None = None

    @property
    def begin(self) -> float | None:
        """When the first of them came; None before."""
        return self._begin

    def submitted(self, job: Job, thought: float) -> None:
        """A job came. O(1), amortised."""
        if self._begin is None:
            self._begin = job.submit
        pool = self._pools.setdefault(job.pool, _Pool())
        dropped = self._dropped.get(job.pool, 0) + pool.forget(job.submit - MEMORY)
        self._dropped[job.pool] = dropped
        self._where[job.id] = job.pool, dropped + len(pool.jobs)
        pool.add(RecentJob(job, thought))

    def ended(self, job_id: str, ran: float | None) -> None:
        """A job is over: it ran so long, or never did. O(1)."""
        name, number = self._where.pop(job_id, ("", -1))
        place = number - self._dropped.get(name, 0)
        if place >= 0 and ran is not None:
            pool = self._pools[name]
            pool.jobs[place] = pool.jobs[place]._replace(ran=ran)

    def next(
        self, world: int, begin: float, end: float, now: float
    ) -> Iterator[tuple[float, RecentJob]]:
        """What may come in [begin, end) in one of many possible worlds, seen from now, by pool.

        Always the same for the same blocks of time, worlds and past. O(jobs that come).
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
    """How far before it a block lies that stands for this one; whole days where there are some."""
    begin = number * BLOCK
    nearest = ceil((begin + BLOCK - now) / DAY)  # it is over
    farthest = floor((begin - first) / DAY)
    if nearest <= farthest:
        return DAY * (nearest + lot % (farthest - nearest + 1))
    least = begin + BLOCK - now
    return least + (lot % 1024) / 1024 * max(0.0, begin - first - least)
