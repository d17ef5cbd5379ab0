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

from collections import OrderedDict, deque
from collections.abc import Sequence
from heapq import heappop, heappush
from math import ceil, floor, inf

import numpy as np
from numpy.typing import NDArray

from predictors.peaks import Peaks, apart
from predictors.said import differences
from sia.forecasts import Loads
from sia.limits import MAX_GROUP, MAX_SLOWED_PCT, SLOWED, TICK
from sia.model import Job, Load, Pool

KEPT = 0.5 ** (1 / 10_000)
"""What is left of a job's weight in the budget at each later one of its pool: with a budget of one
in a thousand, fewer than ten thousand jobs would not show whether it is kept."""


class _Twin:
    """A job as it would be if its pool shared nothing. Times are seconds."""

    __slots__ = ("began", "job", "over", "ran", "started")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.began: float | None = None  # virtually
        self.started: float | None = None  # really
        self.ran: float | None = None  # how long, once that is known
        self.over = False  # when it is gone virtually is known


class VirtualClock:
    """When each job of a pool starts if the pool shares nothing: first come, first served.

    The clock stands still where what comes next depends on how long a job will run: one that was
    slowed is at that point of its life later than its virtual self. A job that is withdrawn leaves
    at that time virtually too, whether it waits or runs there. One wider than the quota is left
    out, and so is whatever was there before the clock. O(log n) an event.
    """

    def __init__(self, quota: int) -> None:
        """Begin with nothing in the pool."""
        self.started_jobs = 0.0  # both really and virtually; older ones fade
        self.slowed_jobs = 0.0  # of those, the ones that started later than virtually
        self._quota = self._free = quota
        self._time = -inf
        self._twins: dict[str, _Twin] = {}  # of jobs that wait or run virtually
        self._queue: OrderedDict[str, _Twin] = OrderedDict()  # those that wait, as they came
        self._due: OrderedDict[str, float] = OrderedDict()  # began, but do not run: since when
        self._leaves: list[tuple[float, str]] = []  # virtual ones that are known
        self._behind: list[tuple[float, str]] = []  # began - started of slowed ones, if not

    def late(self, now: float) -> bool:
        """Whether a job waits that would run by now. After `advance`."""
        return next(iter(self._due.values()), inf) + SLOWED < now

    def quiet(self, now: float) -> float:
        """Until when nothing changes by itself. After `advance`."""
        if self.late(now):
            return inf
        leave = self._leaves[0][0] if self._leaves else inf
        return min(next(iter(self._due.values()), inf) + SLOWED, leave - self._lag())

    def submitted(self, now: float, job: Job) -> None:
        """It waits from now on."""
        if job.width <= self._quota:
            self.advance(now)
            self._twins[job.id] = self._queue[job.id] = _Twin(job)
            self._begin()

    def started(self, now: float, job: Job) -> None:
        """It really runs from now on."""
        twin = self._twins.get(job.id)
        if twin is not None:
            twin.started = now
            began = self._due.pop(job.id, None)
            if began is not None:
                self._follow(twin, began, now)
            self.advance(now)

    def finished(self, now: float, job: Job) -> None:
        """It is really over."""
        twin = self._twins.get(job.id)
        if twin is not None:
            assert twin.started is not None, f"{job.id} ended without having started"
            twin.ran = now - twin.started
            if twin.began is not None:
                self._leave(twin, twin.began + twin.ran)
            self.advance(now)

    def withdrawn(self, now: float, job: Job) -> None:
        """It is gone, and its virtual self with it."""
        twin = self._twins.get(job.id)
        if twin is not None:
            self._due.pop(job.id, None)
            self._leave(twin, now)
            self.advance(now)

    def advance(self, now: float) -> None:
        """Let virtual time pass, as far as it is known what happens."""
        while self._leaves and self._leaves[0][0] <= self._known(now):
            leave, job_id = heappop(self._leaves)
            self._time = max(self._time, leave)
            twin = self._twins.pop(job_id)
            if twin.began is None:
                del self._queue[job_id]
            else:
                self._free += twin.job.width
            self._begin()
        self._time = max(self._time, self._known(now))

    def _known(self, now: float) -> float:
        """Until when nothing can happen that is not known."""
        return min(now + self._lag(), next(iter(self._due.values()), inf))

    def _lag(self) -> float:
        """How far behind its real self a virtual job is whose end is not known; at most 0."""
        behind = self._behind
        while behind and ((twin := self._twins.get(behind[0][1])) is None or twin.over):
            heappop(behind)
        return behind[0][0] if behind else 0.0

    def _begin(self) -> None:
        """Start the jobs that come next and fit, at the virtual time it is."""
        while self._queue:
            twin = next(iter(self._queue.values()))
            if twin.job.width > self._free:
                return
            del self._queue[twin.job.id]
            self._free -= twin.job.width
            twin.began = began = max(self._time, twin.job.submit)
            if twin.over:
                continue
            if twin.started is None:
                self._due[twin.job.id] = began
            else:
                self._follow(twin, began, twin.started)

    def _follow(self, twin: _Twin, began: float, started: float) -> None:
        """Its virtual self ends when as much time has passed since its own start."""
        if twin.ran is not None:
            self._leave(twin, began + twin.ran)
        elif began < started:
            heappush(self._behind, (began - started, twin.job.id))
        self._judge(twin.job, began, started)

    def _leave(self, twin: _Twin, when: float) -> None:
        twin.over = True
        heappush(self._leaves, (when, twin.job.id))

    def _judge(self, job: Job, began: float, started: float) -> None:
        self.started_jobs = self.started_jobs * KEPT + 1.0
        self.slowed_jobs = self.slowed_jobs * KEPT + (started > began + SLOWED)

    def check(self) -> None:
        """Assert that every job is where it should be; O(n)."""
        began = {job_id: twin for job_id, twin in self._twins.items() if twin.began is not None}
        running = sum(twin.job.width for twin in began.values())
        assert self._free == self._quota - running >= 0, "GPUs are lost"
        assert self._queue.keys() == self._twins.keys() - began.keys(), "the queue is another"
        due = {i for i, twin in began.items() if twin.started is None and not twin.over}
        assert self._due.keys() == due, "what is due is another"
        assert [*self._due.values()] == sorted(self._due.values()), "what is due is out of order"
        assert {i for _, i in self._leaves} == {i for i, twin in self._twins.items() if twin.over}


class Guard(Loads):
    """A forecast under watch: what it says, or more than any quota where a pool must not lend.

    It is not told of quotas that change. A clock goes on with the first quota: where a pool has
    shrunk it finds jobs late that the pool alone would not have started either, and lends less than
    it might; where a pool has grown it misses some that are late, and only `Misses` watches them.
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
        self._clocks = [VirtualClock(pool.quota) for pool in pools]
        self._look = np.full(len(pools), -inf)  # when to look at each clock again
        self._late = np.zeros(len(pools), bool)
        self._spent = np.zeros(len(pools), bool)  # budgets
        self._misses = Misses(self._names, windows, start)
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
        self._clock(job).started(now, job)

    def finished(self, now: float, job: Job) -> None:
        """Tell all three."""
        self._loads.finished(now, job)
        self._clock(job).finished(now, job)
        self._misses.remove(job)

    def withdrawn(self, now: float, job: Job) -> None:
        """Tell all three."""
        self._loads.withdrawn(now, job)
        self._clock(job).withdrawn(now, job)
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

    def _clock(self, job: Job) -> VirtualClock:
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
            self._look[row] = clock.quiet(now)
        late = np.zeros(len(self._groups), bool)  # groups
        late[self._groups[self._late]] = True
        kept: NDArray[np.bool_] = self._spent | late[self._groups]
        return kept

    def check(self) -> None:
        """Assert that the clocks are right."""
        for clock in self._clocks:
            clock.check()


class Misses:
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
