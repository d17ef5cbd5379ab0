"""The share controller: lends less where forecasts were wrong or the promise is at risk (§5.3).

It stands between a forecast and the scheduler. What a pool may not lend is said to be needed: a
load beyond every quota. Three things make a pool keep its GPUs:

- a forecast that fell short: that window of the pool stays shut for as long again, as errors come
  in clusters (§5.4.1);
- a job that should run by now and does not: no pool of its group lends while it waits;
- more slowed jobs than the budget allows, of the pool's recent ones.

What should run by now is known from each pool's virtual clock: first come, first served in its own
quota, with the run times that turned out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from math import ceil, floor, inf

import numpy as np
from numpy.typing import NDArray

from predictors.peaks import Peaks, apart
from sia.forecasts import Loads
from sia.limits import MAX_GROUP, MAX_SLOWED_PCT, SLOWED, TICK
from sia.model import Job, Load, Pool

KEPT = 0.5 ** (1 / 10_000)
"""What is left of a job's weight in the budget at each later one of its pool: with a budget of one
in a thousand, fewer than ten thousand jobs would not show whether it is kept."""


class VirtualClock:
    """When each job of a pool starts if the pool shares nothing: first come, first served.

    The clock stands still where what comes next depends on how long a job will run: one that was
    slowed is at that point of its life later than its virtual self. O(log n) an event.
    """

    def __init__(self, quota: int) -> None:
        """Begin with nothing in the pool."""
        self.started_jobs = 0.0  # really, after their virtual start was known; older ones fade
        self.slowed_jobs = 0.0  # of those, the ones that started later than virtually
        self._free = quota
        self._time = -inf
        self._queue: dict[str, Job] = {}  # jobs that wait virtually, in order of arrival
        self._virtual: dict[str, tuple[float, Job]] = {}  # starts of those that run virtually
        self._due: dict[str, float] = {}  # of those, the ones that do not run yet: virtual starts
        self._starts: dict[str, float] = {}  # real ones, of jobs not over virtually
        self._durations: dict[str, float] = {}  # of jobs over really, not virtually
        self._ends: list[tuple[float, str]] = []  # virtual ones that are known
        self._behind: list[tuple[float, str]] = []  # virtual start - real start of the others

    def late(self, now: float) -> bool:
        """Whether a job waits that would run by now. After `advance`."""
        return next(iter(self._due.values()), inf) + SLOWED < now

    def submitted(self, now: float, job: Job) -> None:
        """It waits from now on."""
        self.advance(now)
        self._queue[job.id] = job
        self.advance(now)

    def started(self, now: float, job: Job) -> None:
        """It really runs from now on."""
        self._starts[job.id] = now
        if self._due.pop(job.id, None) is not None:
            self._follow(job.id)
        self.advance(now)

    def finished(self, now: float, job: Job) -> None:
        """It is really over."""
        self._durations[job.id] = now - self._starts.get(job.id, now)
        if job.id in self._virtual:
            heappush(self._ends, (self._virtual[job.id][0] + self._durations[job.id], job.id))
        self.advance(now)

    def withdrawn(self, now: float, job: Job) -> None:
        """It is gone, and its virtual self with it."""
        self.advance(now)
        self._due.pop(job.id, None)
        self._starts.pop(job.id, None)
        if self._queue.pop(job.id, None) is None and job.id in self._virtual:
            self._durations[job.id] = 0.0
            heappush(self._ends, (self._time, job.id))
        self.advance(now)

    def advance(self, now: float) -> None:
        """Let virtual time pass, as far as it is known what happens."""
        self._begin()
        while self._ends and self._ends[0][0] <= self._known(now):
            end, job_id = heappop(self._ends)
            self._time = max(self._time, end)
            self._free += self._virtual.pop(job_id)[1].width
            self._starts.pop(job_id, None)
            del self._durations[job_id]
            self._begin()
        self._time = max(self._time, self._known(now))

    def _known(self, now: float) -> float:
        """Until when nothing can end that is not known to."""
        behind = self._behind
        while behind and (behind[0][1] not in self._virtual or behind[0][1] in self._durations):
            heappop(behind)
        due = next(iter(self._due.values()), inf)
        return min(now, due, now + behind[0][0] if behind else inf)

    def _begin(self) -> None:
        """Start the jobs that come next and fit, at the virtual time it is."""
        for job_id, job in [*self._next()]:
            start = max(self._time, job.submit)
            del self._queue[job_id]
            self._free -= job.width
            self._virtual[job_id] = start, job
            if job_id in self._durations:
                heappush(self._ends, (start + self._durations[job_id], job_id))
                self._judge(start, self._starts[job_id])
            elif job_id in self._starts:
                self._follow(job_id)
            else:
                self._due[job_id] = start

    def _next(self) -> Iterator[tuple[str, Job]]:
        free = self._free
        for job_id, job in self._queue.items():
            free -= job.width
            if free < 0:
                return
            yield job_id, job

    def _follow(self, job_id: str) -> None:
        """Its virtual self ends when as much time has passed since its own start."""
        start, real = self._virtual[job_id][0], self._starts[job_id]
        heappush(self._behind, (start - real, job_id))
        self._judge(start, real)

    def _judge(self, virtual: float, real: float) -> None:
        self.started_jobs = self.started_jobs * KEPT + 1.0
        self.slowed_jobs = self.slowed_jobs * KEPT + (real > virtual + SLOWED)


class Guard(Loads):
    """A forecast under watch: what it says, or more than any quota where a pool must not lend."""

    def __init__(
        self,
        loads: Loads,
        pools: Sequence[Pool],
        windows: Sequence[float],
        start: float,
        max_slowed_pct: float = MAX_SLOWED_PCT,
    ) -> None:
        """Watch `loads` from `start` (seconds) on; windows are seconds."""
        self._loads = loads
        self._budget = max_slowed_pct / 100
        self._names = [pool.name for pool in pools]
        self._rows = {pool.name: row for row, pool in enumerate(pools)}
        shared = {pool.name: pool.group if pool.share else f"{pool.name} alone" for pool in pools}
        self._groups = {name: [r for r, p in enumerate(pools) if shared[p.name] == group]
                        for name, group in shared.items()}  # fmt: skip
        self._clocks = {pool.name: VirtualClock(pool.quota) for pool in pools}
        self._misses = Misses(self._names, windows, start)
        shape = len(pools), len(windows)
        self._foretold = np.zeros(shape, np.int64)
        self._said = np.zeros(shape, np.int64)
        self._kept = np.zeros(len(pools), bool)  # pools that keep all they have
        self._tick: int | None = None

    def submitted(self, now: float, job: Job) -> None:
        """Tell the forecast, the pool's clock and the record of misses."""
        self._loads.submitted(now, job)
        self._clocks[job.pool].submitted(now, job)
        self._misses.add(now, job)

    def started(self, now: float, job: Job, run_time: float) -> None:
        """Tell the forecast and the pool's clock."""
        self._loads.started(now, job, run_time)
        self._clocks[job.pool].started(now, job)

    def finished(self, now: float, job: Job) -> None:
        """Tell all three."""
        self._loads.finished(now, job)
        self._clocks[job.pool].finished(now, job)
        self._misses.remove(now, job)

    def withdrawn(self, now: float, job: Job) -> None:
        """Tell all three."""
        self._loads.withdrawn(now, job)
        self._clocks[job.pool].withdrawn(now, job)
        self._misses.remove(now, job)

    def changes(self, now: float) -> list[Load]:
        """What is said otherwise. O(pools · windows) when anything changes."""
        changed = self._loads.changes(now)
        for pool, window, gpus in changed:
            self._foretold[self._rows[pool], window] = gpus
        tick = floor(now / TICK)
        kept = self._keep(now)
        if not changed and tick == self._tick and (kept == self._kept).all():
            return []
        self._tick, self._kept = tick, kept
        shut = self._misses.shut(now, self._foretold) | kept[:, None]
        loads = np.where(shut, MAX_GROUP, self._foretold)
        pools, windows = np.nonzero(loads != self._said)
        self._said = loads
        return [
            Load(self._names[pool], window, int(loads[pool, window]))
            for pool, window in zip(pools.tolist(), windows.tolist(), strict=True)
        ]

    def _keep(self, now: float) -> NDArray[np.bool_]:
        """Pools that lend nothing at the moment."""
        kept = np.zeros(len(self._names), bool)
        for name, clock in self._clocks.items():
            clock.advance(now)
            if clock.late(now):
                kept[self._groups[name]] = True
            elif clock.slowed_jobs > self._budget * clock.started_jobs:
                kept[self._rows[name]] = True
        return kept


class Misses:
    """Where a forecast fell short of what came, by pool and window."""

    def __init__(self, pools: Sequence[str], windows: Sequence[float], start: float) -> None:
        """Begin to observe at `start` (seconds); windows are seconds."""
        self._ticks = [ceil(window / TICK) for window in windows]
        self._peaks = Peaks(pools, start, max(self._ticks))
        self._until = np.full((len(pools), len(windows)), -inf)  # ticks
        self._foretold: list[deque[tuple[int, NDArray[np.int64]]]] = [deque() for _ in windows]

    def add(self, now: float, job: Job) -> None:
        """A job came."""
        self._advance(now)
        self._peaks.add(job)

    def remove(self, now: float, job: Job) -> None:
        """A job is gone."""
        self._advance(now)
        self._peaks.remove(job)

    def shut(self, now: float, foretold: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which windows of which pools (pools, windows); `foretold` is what is foretold now."""
        self._advance(now)
        tick = floor(now / TICK)
        if tick >= self._peaks.first:
            for window, ticks in enumerate(self._ticks):
                asked = self._foretold[window]
                if not tick % apart(ticks) and not (asked and asked[-1][0] == tick):
                    asked.append((tick, foretold[:, window].copy()))
        shut: NDArray[np.bool_] = self._until > tick
        return shut

    def _advance(self, now: float) -> None:
        peaks = self._peaks
        while peaks.tick < ceil(now / TICK) - 1:
            peaks.advance()
            for window, ticks in enumerate(self._ticks):
                asked = self._foretold[window]
                while asked and asked[0][0] <= peaks.tick - ticks:
                    begun, foretold = asked.popleft()
                    if begun == peaks.tick - ticks:
                        short = peaks.since(begun) > foretold
                        self._until[short, window] = peaks.tick + ticks
