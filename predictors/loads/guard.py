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
from collections.abc import Sequence
from math import ceil, floor, inf, nextafter

import numpy as np
from numpy.typing import NDArray

from predictors.loads.peaks import Peaks, apart
from predictors.loads.said import differences
from sia.forecasts import Loads
from sia.limits import MAX_GROUP, MAX_SLOWED_PCT, SLOWED, TICK
from sia.model import Job, Load, Pool
from sia.virtual.virtual_clock import VirtualClock

KEPT = 0.5 ** (1 / 10_000)
"""What is left of a job's weight in the budget at each later one of its pool: with a budget of one
in a thousand, fewer than ten thousand jobs would not show whether it is kept."""


class PoolClock(VirtualClock):
    """A pool's clock that counts who was slowed; a job wider than the quota is left out."""

    started_jobs: float = 0.0
    """Both really and virtually; older ones fade."""
    slowed_jobs: float = 0.0
    """Of those, the ones that started later than virtually."""

    def submitted(self, now: float, job: Job, *, judged: bool = True) -> None:
        """It waits from now on."""
        if job.width <= self.told:
            VirtualClock.submitted(self, now, job, judged=judged)

    def advance(self, now: float) -> None:
        """Let virtual time pass, `now` included: all of it has been told."""
        VirtualClock.advance(self, nextafter(now, inf))
        self.ready.clear()

    def quiet_until(self, now: float) -> float:
        """Until when nothing changes by itself. After `advance`."""
        if self.late(now):
            return inf
        return min(self._first_due() + SLOWED, self.quiet())

    def _judge(self, job_id: str, began: float, started: float) -> None:
        self.started_jobs = self.started_jobs * KEPT + 1.0
        self.slowed_jobs = self.slowed_jobs * KEPT + (started > began + SLOWED)


class GuardedLoads(Loads):
    """A forecast under watch: what it says, or more than any quota where a pool must not lend.

    It is not told of quotas that change. A clock goes on with the first quota: where a pool has
    shrunk it finds jobs late that the pool alone would not have started either, and lends less than
    it might; where a pool has grown it misses some that are late; `ShortfallCounts` counts them.
    """

    def __init__(
        self,
        loads: Loads,
        pools: Sequence[Pool],
        windows: Sequence[float],
        start: float,
        max_slowed_pct: float = MAX_SLOWED_PCT,
    ) -> None:
        """Watch `loads` from `start` (seconds) on; windows are seconds.

        Raises ValueError for a budget that is no percentage.
        """
        if not 0 <= max_slowed_pct <= 100:
            raise ValueError(f"a percentage is between 0 and 100, not {max_slowed_pct}")
        self._loads = loads
        self._budget = max_slowed_pct / 100
        self._names = [pool.name for pool in pools]
        self._rows = {pool.name: row for row, pool in enumerate(pools)}
        groups = [(pool.group, "" if pool.share else pool.name) for pool in pools]
        numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        self._groups = np.array([numbers[group] for group in groups], np.intp)
        self._clocks = [PoolClock.of(pool.quota) for pool in pools]
        self._look = np.full(len(pools), -inf)  # when to look at each clock again
        self._late = np.zeros(len(pools), bool)
        self._spent = np.zeros(len(pools), bool)  # budgets
        self._misses = ShortfallCounts(self._names, windows, start)
        shape = len(pools), len(windows)
        self._foretold = np.zeros(shape, np.int64)
        self._said = np.zeros(shape, np.int64)
        self._shut = np.zeros(shape, bool)

    def submitted(self, now: float, job: Job) -> None:
        """Tell the forecast, the pool's clock and the record of misses."""
        self._loads.submitted(now, job)
        self._clock(job).submitted(now, job)
        self._misses.add(now, job)

    def started(self, now: float, job: Job, run_time: float) -> None:
        """Tell the forecast and the pool's clock."""
        self._loads.started(now, job, run_time)
        self._clock(job).started(now, job.id)

    def finished(self, now: float, job: Job) -> None:
        """Tell all three."""
        self._loads.finished(now, job)
        self._clock(job).finished(now, job.id)
        self._misses.remove(job)

    def withdrawn(self, now: float, job: Job) -> None:
        """Tell all three."""
        self._loads.withdrawn(now, job)
        self._clock(job).withdrawn(now, job.id)
        self._misses.remove(job)

    def unasked(self, now: float) -> None:
        """Tell the forecast; nobody was promised anything."""
        self._loads.unasked(now)

    def changes(self, now: float) -> list[Load]:
        """What is said otherwise. O(pools · windows), in numpy."""
        changed = self._loads.changes(now)
        for pool, window, gpus in changed:
            self._foretold[self._rows[pool], window] = gpus
        shut = self._misses.shut(now, self._foretold) | self._keep(now)[:, None]
        if not changed and (shut == self._shut).all():
            return []
        self._shut = shut
        loads = np.where(shut, MAX_GROUP, self._foretold)
        said, self._said = self._said, loads
        return differences(self._names, said, loads)

    def _clock(self, job: Job) -> PoolClock:
        """The clock of a job's pool, which is then looked at again."""
        row = self._rows[job.pool]
        self._look[row] = -inf
        return self._clocks[row]

    def _keep(self, now: float) -> NDArray[np.bool_]:
        """Pools that lend nothing at the moment."""
        for row in np.flatnonzero(self._look <= now).tolist():
            clock = self._clocks[row]
            clock.advance(now)
            self._late[row] = clock.late(now)
            self._spent[row] = clock.slowed_jobs > self._budget * clock.started_jobs
            self._look[row] = clock.quiet_until(now)
        late = np.zeros(len(self._groups), bool)  # groups
        late[self._groups[self._late]] = True
        kept: NDArray[np.bool_] = self._spent | late[self._groups]
        return kept

    def check(self) -> None:
        """Assert that the clocks are right."""
        for clock in self._clocks:
            clock.check()


class ShortfallCounts:
    """Where a forecast fell short of what came, by pool and window.

    What is foretold is held against the peak until the window from then on is over. Windows begin
    where it is first asked about in each quarter of their length (`peaks.apart`).
    """

    def __init__(self, pools: Sequence[str], windows: Sequence[float], start: float) -> None:
        """Begin to observe at `start` (seconds); windows are seconds."""
        self._windows = windows
        self._ticks = [ceil(window / TICK) for window in windows]
        self._peaks = Peaks(pools, max(self._ticks) + 1)
        self._tick = floor(start / TICK) - 1  # the last in which it was asked about
        self._slots = [-inf] * len(windows)  # when one was last opened: ticks // ticks apart
        self._until = np.full((len(pools), len(windows)), -inf)  # seconds
        self._foretold: list[deque[tuple[float, int, NDArray[np.int64]]]] = [
            deque() for _ in windows
        ]  # when, the mark, GPUs (pools)

    def add(self, now: float, job: Job) -> None:
        """A job came."""
        self._judge(now)
        self._peaks.add(job)

    def remove(self, job: Job) -> None:
        """A job is gone, which changes no peak."""
        self._peaks.remove(job)

    def shut(self, now: float, foretold: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which windows of which pools (pools, windows); `foretold` is what is foretold now."""
        self._judge(now)
        tick = floor(now / TICK)
        if tick > self._tick:
            self._tick = tick
            mark = self._peaks.mark()
            for window, ticks in enumerate(self._ticks):
                slot = tick // apart(ticks)
                if slot > self._slots[window]:  # not at each tick is anything asked
                    self._slots[window] = slot
                    self._foretold[window].append((now, mark, foretold[:, window].copy()))
        shut: NDArray[np.bool_] = self._until > now
        return shut

    def _judge(self, now: float) -> None:
        """Look at the windows that are over."""
        for window, length in enumerate(self._windows):
            asked = self._foretold[window]
            while asked and asked[0][0] + length < now:
                when, mark, foretold = asked.popleft()
                short = self._peaks.since(mark) > foretold
                self._until[short, window] = when + 2 * length
