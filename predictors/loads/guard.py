"""The share controller, which reduces lending when forecasts or promises fail (§5.3).

It wraps a forecast. A pool that must not lend gets a forecast load above every quota. There are
three reasons:

- The forecast was too low. The pool then does not lend in that window for as long again, because
  errors come in clusters (§5.4.1).
- A job that should be running is pending. No pool of its group lends meanwhile.
- More of the pool's recent jobs were slowed than the budget allows.

Each pool's virtual clock determines which jobs should be running: first come, first served within
the pool's quota, with real run times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil, floor, inf, nextafter

import numpy as np
from numpy.typing import NDArray

from predictors.loads.differences import differences
from predictors.loads.peaks import Peaks, apart
from sia.forecasts import Loads
from sia.limits import MAX_GROUP, MAX_SLOWED_PCT, SLOWED, TICK
from sia.model import Job, Load, Pool
from sia.virtual.virtual_clock import VirtualClock

KEPT = 0.5 ** (1 / 10_000)
"""Factor on the weight of a pool's earlier jobs in the budget with each new one. With a budget of
one in a thousand, fewer than ten thousand jobs would not show whether it is met."""


class PoolClock(VirtualClock):
    """A virtual clock that counts slowed jobs. It ignores jobs wider than the quota."""

    started_jobs: float = 0.0
    """Jobs that started really and virtually, with decaying weights."""
    slowed_jobs: float = 0.0
    """The jobs among them that really started later than virtually."""

    def submitted(self, now: float, job: Job, *, judged: bool = True) -> None:
        """Add a pending job."""
        if job.width <= self.told:
            VirtualClock.submitted(self, now, job, judged=judged)

    def advance(self, now: float) -> None:
        """Advance virtual time to `now` inclusive; everything up to `now` has been reported."""
        VirtualClock.advance(self, nextafter(now, inf))
        self.ready.clear()

    def quiet_until(self, now: float) -> float:
        """Return when the state may change without a report. Call after `advance`."""
        if self.late(now):
            return inf
        return min(self._first_due() + SLOWED, self.quiet())

    def _judge(self, job_id: str, began: float, started: float) -> None:
        self.started_jobs = self.started_jobs * KEPT + 1.0
        self.slowed_jobs = self.slowed_jobs * KEPT + (started > began + SLOWED)


class GuardedLoads(Loads):
    """A forecast that states more than any quota for pools that must not lend.

    A replay does not tell it of changed quotas; a clock then keeps the first quota. If a pool
    shrinks, its clock finds jobs late that would not have started alone either, and the pool lends
    less than it could. If a pool grows, its clock misses late jobs; `ShortfallCounts` still counts
    them.
    """

    def __init__(
        self,
        loads: Loads,
        pools: Sequence[Pool],
        windows: Sequence[float],
        start: float,
        max_slowed_pct: float = MAX_SLOWED_PCT,
    ) -> None:
        """Watch `loads` from `start` on (seconds). Windows are in seconds.

        Raises ValueError unless 0 ≤ max_slowed_pct ≤ 100.
        """
        if not 0 <= max_slowed_pct <= 100:
            raise ValueError(f"percentage must be between 0 and 100 (got {max_slowed_pct})")
        self._loads = loads
        self._budget = max_slowed_pct / 100
        self._names = [pool.name for pool in pools]
        self._rows = {pool.name: row for row, pool in enumerate(pools)}
        groups = [pool.sharing_group for pool in pools]
        numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        self._groups = np.array([numbers[group] for group in groups], np.intp)
        self._clocks = [PoolClock.of(pool.quota) for pool in pools]
        self._look = np.full(len(pools), -inf)  # when to update each clock
        self._late = np.zeros(len(pools), bool)
        self._spent = np.zeros(len(pools), bool)  # whether the budget is spent
        self._misses = ShortfallCounts(self._names, windows, start)
        shape = len(pools), len(windows)
        self._foretold = np.zeros(shape, np.int64)
        self._last = np.zeros(shape, np.int64)
        self._shut = np.zeros(shape, bool)

    def submitted(self, now: float, job: Job) -> None:
        """Record an arrival."""
        self._loads.submitted(now, job)
        self._clock(job).submitted(now, job)
        self._misses.add(now, job)

    def started(self, now: float, job: Job, run_time: float) -> None:
        """Record a start, with the run-time estimate in seconds."""
        self._loads.started(now, job, run_time)
        self._clock(job).started(now, job.id)

    def finished(self, now: float, job: Job) -> None:
        """Record an end."""
        self._loads.finished(now, job)
        self._clock(job).finished(now, job.id)
        self._misses.remove(job)

    def withdrawn(self, now: float, job: Job) -> None:
        """Record that a job was cancelled."""
        self._loads.withdrawn(now, job)
        self._clock(job).withdrawn(now, job.id)
        self._misses.remove(job)

    def forget(self, pool: str, before: float) -> None:
        """Drop what the forecast has observed of a pool before that second."""
        self._loads.forget(pool, before)

    def requota(self, now: float, pool: str, quota: int) -> None:
        """Record a pool's quota in GPUs, for its clock too."""
        self._loads.requota(now, pool, quota)
        row = self._rows[pool]
        if self._clocks[row].told != quota:
            self._clocks[row].requota(now, quota)
            self._look[row] = -inf

    def unasked(self, now: float) -> None:
        """Record a tick without a query, for the forecast only."""
        self._loads.unasked(now)

    def changes(self, now: float) -> list[Load]:
        """Return the changed loads. O(pools · windows), in numpy."""
        changed = self._loads.changes(now)
        for pool, window, gpus in changed:
            self._foretold[self._rows[pool], window] = gpus
        shut = self._misses.shut(now, self._foretold) | self._keep(now)[:, None]
        if not changed and (shut == self._shut).all():
            return []
        self._shut = shut
        loads = np.where(shut, MAX_GROUP, self._foretold)
        before, self._last = self._last, loads
        return differences(self._names, before, loads)

    def _clock(self, job: Job) -> PoolClock:
        """Return the clock of a job's pool, and mark it for an update."""
        row = self._rows[job.pool]
        self._look[row] = -inf
        return self._clocks[row]

    def _keep(self, now: float) -> NDArray[np.bool_]:
        """Return the pools that must not lend at the moment."""
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
        """Assert the invariants of the clocks."""
        for clock in self._clocks:
            clock.check()


class ShortfallCounts:
    """Detects forecasts that were too low, by pool and window.

    A forecast is compared with the peak of its window once the window is over. At most one window
    begins in each quarter of the window length (`peaks.apart`).
    """

    def __init__(self, pools: Sequence[str], windows: Sequence[float], start: float) -> None:
        """Start to observe at `start` (seconds). Windows are in seconds."""
        self._windows = windows
        self._ticks = [ceil(window / TICK) for window in windows]
        self._peaks = Peaks(pools, max(self._ticks) + 1)
        self._tick = floor(start / TICK) - 1  # the tick of the last query
        self._slots = [-inf] * len(windows)  # the last slot in which a window began
        self._until = np.full((len(pools), len(windows)), -inf)  # seconds
        self._foretold: list[deque[tuple[float, int, NDArray[np.int64]]]] = [
            deque() for _ in windows
        ]  # time, mark, GPUs (pools)

    def add(self, now: float, job: Job) -> None:
        """Record an arrival."""
        self._judge(now)
        self._peaks.add(job)

    def remove(self, job: Job) -> None:
        """Record that a job is gone, which changes no peak."""
        self._peaks.remove(job)

    def shut(self, now: float, foretold: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which windows of which pools must not be used for lending: (pools, windows).

        `foretold` are the current forecasts in GPUs: (pools, windows).
        """
        self._judge(now)
        tick = floor(now / TICK)
        if tick > self._tick:
            self._tick = tick
            mark = self._peaks.mark()
            for window, ticks in enumerate(self._ticks):
                slot = tick // apart(ticks)
                if slot > self._slots[window]:  # there may be ticks without a query
                    self._slots[window] = slot
                    self._foretold[window].append((now, mark, foretold[:, window].copy()))
        shut: NDArray[np.bool_] = self._until > now
        return shut

    def _judge(self, now: float) -> None:
        """Compare the windows that are over."""
        for window, length in enumerate(self._windows):
            asked = self._foretold[window]
            while asked and asked[0][0] + length < now:
                when, mark, foretold = asked.popleft()
                short = self._peaks.since(mark) > foretold
                self._until[short, window] = when + 2 * length
