"""Load as a calibrated quantile of the peak of GPUs that new jobs hold at once (§5.2, §5.4).

TotalNewLoad adds up all arrivals in a window, although a job that ends makes room for the next. A
lender needs back no more GPUs than its new jobs hold at the same time: the peak. In windows of
hours the peak is much lower, and reserving it gives the same guarantee as reserving the sum: if a
pool's new jobs always fit next to its old ones, none of them has to queue.

A quantile is computed from a pool's own windows alone once there are enough for it: as many as the
quantile needs, none of which overlap, and at most one an hour. Before that, the forecast also uses
pools of public logs and the other pools of the site (`predictors.loads.kindred`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Self

import numpy as np
from numpy.typing import NDArray

from predictors.loads.differences import differences
from predictors.loads.kindred import Kindred
from sia.forecasts import Loads, PredictorContext, QuantileLimit
from sia.limits import MAX_GROUP, TICK
from sia.model import Job, Load
from sia.wording import as_typed

QUANTILE = 0.95
"""The share of windows whose peak should not exceed the forecast. On Philly, 0.98 gains less; 0.9
and 0.8 slow ten times as many jobs (docs/results/forecasts.md)."""

MEMORY = 14 * 86400.0
"""Look-back in seconds: two weeks contain each weekday twice."""

APART = 4
"""Windows begin at least a fourth of their length apart; those in between would be almost equal."""

FARTHEST = 24
"""Maximum ticks between the starts of two windows (two hours), so that a day has enough windows."""

HOUR = 12
"""Ticks of an hour."""

REFRESH = 12
"""Ticks between two updates of a pool: within an hour, two weeks of history change little."""


def apart(ticks: int) -> int:
    """Return the ticks between the starts of two windows of this length."""
    return min(max(1, ticks // APART), FARTHEST)


def remembered(ticks: int) -> int:
    """Return the number of windows of this length that are remembered."""
    return int(MEMORY / TICK / apart(ticks))


def highest(windows: Sequence[float]) -> float:
    """Return the highest quantile that can be stated for windows of all these lengths (seconds).

    The highest peak of n windows is the quantile n / (n + 1); see `_Past.quantile`.
    """
    fewest = min(remembered(ceil(window / TICK)) for window in windows)
    return fewest / (fewest + 1)


def independent(windows: NDArray[np.int64], ticks: int) -> NDArray[np.float64]:
    """Return the number of independent windows among `windows` overlapping ones of `ticks` ticks.

    Windows of less than an hour that are in the same hour count as one, because a pool that is
    quiet in one of them is rarely busy in the next.
    """
    return windows.astype(np.float64) * (apart(ticks) / max(ticks, HOUR))


class Peaks:
    """The peak, for each pool and recent mark, of the GPUs of jobs that came after the mark.

    Jobs count from arrival to end. An event costs O(marks kept), in numpy.
    """

    def __init__(self, pools: Sequence[str], kept: int) -> None:
        """Keep the newest `kept` marks. Initially there is none."""
        self.newest = -1
        self._marks = kept
        self._rows = {pool: row for row, pool in enumerate(pools)}
        self._held = np.zeros((len(pools), kept), np.int64)
        self._peak = np.zeros((len(pools), kept), np.int64)
        self._came: dict[str, int] = {}  # job: the newest mark at its arrival

    def mark(self) -> int:
        """Set a mark and return its number, from 0 on."""
        self.newest += 1
        slot = self.newest % self._marks
        self._held[:, slot] = 0
        self._peak[:, slot] = 0
        return self.newest

    def since(self, mark: int) -> NDArray[np.int64]:
        """Return the peaks since a mark among the newest `kept`: GPUs (pools)."""
        return self._peak[:, mark % self._marks]

    def add(self, job: Job) -> None:
        """Add a job that came after the newest mark."""
        row = self._rows[job.pool]
        held = self._held[row]
        held += job.width
        np.maximum(self._peak[row], held, out=self._peak[row])
        self._came[job.id] = self.newest

    def remove(self, job: Job) -> None:
        """Remove a job. Unknown jobs are ignored."""
        came = self._came.pop(job.id, -1)
        before = came - max(
            self.newest - self._marks, -1
        )  # number of kept marks before its arrival
        if before > 0:
            held = self._held[self._rows[job.pool]]
            end = came % self._marks + 1
            held[max(0, end - before) : end] -= job.width
            if before > end:
                held[end - before :] -= job.width


class PeakLoads(Loads):
    """A quantile of the peaks in recent windows of the same length.

    Until a pool has enough windows of its own, the quantile is that of kindred pools; it is above
    any quota if the quota is not known. A tick costs O(pools · windows), plus O(windows remembered)
    for each twelfth of the pools.
    """

    minds_new_pools = True
    forgets = True

    summary = "the most GPUs that new jobs held at once in recent windows"
    takes_quantile = True
    usual_quantile = QUANTILE

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build a predictor without history."""
        quantile = context.quantile or cls.usual_quantile
        return cls(
            context.pools, context.windows, context.start, quantile, context.since, context.quotas
        )

    @classmethod
    def quantile_limit(cls, windows: Sequence[float]) -> QuantileLimit:
        """Return the highest quantile for which the memory is long enough."""
        why = f"{as_typed(MEMORY)} hold few windows of {as_typed(windows[-1])}"
        return QuantileLimit(floor(1000 * highest(windows)) / 1000, why)

    def __init__(
        self,
        pools: Sequence[str],
        windows: Sequence[float],
        start: float,
        quantile: float = QUANTILE,
        since: Mapping[str, float] | None = None,
        quotas: Mapping[str, int] | None = None,
    ) -> None:
        """Start to observe at `start` (seconds). Windows are in seconds.

        `since` has the second from which on a pool exists, if later. `quotas` are in GPUs.

        Raises ValueError unless 0 < quantile < 1 and quantile ≤ `highest(windows)`.
        """
        if not 0 < quantile < 1:
            raise ValueError(f"quantile must be between 0 and 1 (got {quantile})")
        if quantile > highest(windows):
            raise ValueError(f"quantile must be at most {highest(windows)} (got {quantile})")
        self._pools = pools
        self._rows = {pool: row for row, pool in enumerate(pools)}
        lengths = [ceil(window / TICK) for window in windows]
        self._first = ceil(start / TICK)  # the tick of the first mark
        self._peaks = Peaks(pools, max(lengths) + 1)
        began = [max(start, (since or {}).get(pool, start)) for pool in pools]
        first = np.ceil(np.array(began) / TICK)
        self._quotas = np.array([(quotas or {}).get(pool, 0) for pool in pools], np.int64)
        self._past = [
            _Past(first.copy(), self._quotas.copy(), ticks, quantile) for ticks in lengths
        ]
        public = [past for past in self._past if past.public] or self._past
        hours = [past for past in public if past.ticks >= HOUR]
        self._guide = (hours or public[-1:])[0]  # by these windows pools are compared
        self._forgotten = (
            max(lengths) + FARTHEST + ceil(MEMORY / TICK)
        )  # ticks after which nothing is remembered
        self._last = np.zeros((len(pools), len(windows)), np.int64)
        self._asked: int | None = None  # the tick of the last answer
        self._now_due: set[int] = set()  # rows of pools whose turn is at the next query

    def submitted(self, now: float, job: Job) -> None:
        """Add a job."""
        self._advance(now)
        self._peaks.add(job)

    def finished(self, now: float, job: Job) -> None:
        """Remove a job."""
        self._advance(now)
        self._peaks.remove(job)

    def withdrawn(self, now: float, job: Job) -> None:
        """Remove a job."""
        self.finished(now, job)

    def forget(self, pool: str, before: float) -> None:
        """Drop the windows of a pool that began before that second."""
        row = self._rows[pool]
        for past in self._past:
            past.forget(row, ceil(before / TICK))
        self._now_due.add(row)

    def requota(self, now: float, pool: str, quota: int) -> None:
        """Change the quota of a pool (in GPUs) for the comparison with other pools."""
        row = self._rows[pool]
        if self._quotas[row] == quota:
            return
        self._advance(now)
        self._quotas[row] = quota
        for past in self._past:
            past.requota(row, quota)
        self._now_due.add(row)

    def changes(self, now: float) -> list[Load]:
        """Return the loads that changed since the last tick."""
        self._advance(now)
        tick = floor(now / TICK)
        if tick == self._asked and not self._now_due:
            return []
        rows = self._due(tick)
        self._asked = tick
        before, self._last = self._last, self._foresee(rows, self._last)
        return differences(self._pools, before, self._last)

    def _foresee(self, rows: NDArray[np.intp], before: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the loads of all pools; those of pools that are not in `rows` are as before."""
        if not len(rows):
            return before
        loads = before.copy()
        earned = np.ones(len(rows), bool)
        for past in self._past:
            earned &= past.earned(rows)
        new = rows[~earned]
        likeness = np.zeros((len(self._pools), 0))  # by row
        if len(new):
            found = self._guide.likeness(new)
            likeness = np.zeros((len(self._pools), found.shape[1]))
            likeness[new] = found
        for window, past in enumerate(self._past):
            loads[rows, window] = past.state(rows, likeness)
        self._now_due.clear()
        return loads

    def _due(self, tick: int) -> NDArray[np.intp]:
        """Return the rows of the pools to update: at first all, then each once in `REFRESH` ticks.

        Pools that have changed are updated at once.
        """
        rows = np.arange(len(self._pools))
        if self._asked is None or tick - self._asked >= REFRESH:
            return rows
        due = (rows - self._asked - 1) % REFRESH < tick - self._asked
        due[[*self._now_due]] = True
        return rows[due]

    def _advance(self, now: float) -> None:
        """Set marks for all ticks before now, and record the windows that end there."""
        peaks = self._peaks
        missing = ceil(now / TICK) - 1 - self._first - peaks.newest
        if missing > self._forgotten:  # skip most ticks of a long pause
            self._first += missing - self._forgotten
            missing = self._forgotten
        for _ in range(missing):
            mark = peaks.mark()
            for past in self._past:
                begun = mark - past.ticks
                if begun >= 0 and not (self._first + begun) % past.apart:
                    past.add(self._first + begun, peaks.since(begun))


class _Past:
    """The peaks of the last windows of one length, and the forecasts from them."""

    def __init__(
        self, first: NDArray[np.float64], quotas: NDArray[np.int64], ticks: int, quantile: float
    ) -> None:
        """Take each pool's first tick, and its quota in GPUs; 0 if that is not known."""
        self.ticks = ticks
        self.apart = apart(ticks)
        self._kept = remembered(ticks)
        self._quantile = quantile
        counts = independent(np.arange(self._kept + 1), ticks)
        enough = counts * (1.0 - quantile) >= quantile - 1e-9
        self._enough = int(enough.argmax()) if enough.any() else self._kept  # windows of a pool
        self._first = first
        self._peaks = np.zeros((len(first), self._kept), np.int32)
        self._ranks = np.zeros(len(first), np.int32)  # what `_ranked` has found last
        self._seen = 0
        self._own = np.zeros(len(first), np.int64)  # windows in which the pool existed
        self._latest = 0  # the tick at which the latest window began
        self._kindred = Kindred(quotas, ticks, quantile)

    def add(self, begun: int, peaks: NDArray[np.int64]) -> None:
        """Add the windows that began at tick `begun` and are over."""
        slot, self._latest = self._seen % self._kept, begun
        full = self._own == self._kept
        if full.any():
            self._kindred.count(self._peaks[:, slot], full, -1)
        self._peaks[:, slot] = np.minimum(peaks, MAX_GROUP)
        self._seen += 1
        existed = self._first <= begun
        self._kindred.count(self._peaks[:, slot], existed)
        self._own = np.minimum(self._own + existed, self._kept)

    def forget(self, row: int, first: int) -> None:
        """Drop a pool's windows that began before tick `first`. O(windows remembered)."""
        left = max(0, (self._latest - first) // self.apart + 1)
        if left < self._own[row]:
            self._own[row] = left
            self._kindred.recount(row, self._peaks[row, self._newest(left)])
        self._first[row] = max(self._first[row], first)

    def requota(self, row: int, quota: int) -> None:
        """Take another quota of a pool in GPUs. O(windows remembered)."""
        peaks = self._peaks[row, self._newest(int(self._own[row]))]
        self._kindred.requota(row, quota, peaks)

    def _newest(self, count: int) -> NDArray[np.int64]:
        """Return the indices of the newest `count` windows."""
        return np.arange(self._seen - count, self._seen) % self._kept

    def earned(self, pools: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which of these pools have enough windows of their own."""
        earned: NDArray[np.bool_] = self._own[pools] >= self._enough
        return earned

    def state(self, pools: NDArray[np.intp], likeness: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the GPUs that a fraction `quantile` of future windows will not exceed: (pools).

        For pools with too few windows, other pools are weighted by `likeness`, which has a row for
        each pool of the site.
        """
        own, earned = self._own[pools], self.earned(pools)
        stated = np.zeros(len(pools), np.int64)
        for count in {*own[earned].tolist()}:
            of = earned & (own == count)
            stated[of] = self._ranked(pools[of], count)
        if not earned.all():
            new = pools[~earned]
            stated[~earned] = self._kindred.state(new, self.worth(), likeness[new])
        return stated

    def common(self, pools: NDArray[np.intp]) -> NDArray[np.int32]:
        """Return the peaks of the newest windows that all of these pools have: (pools, windows)."""
        count = int(self._own[pools].min())
        if count == self._kept:
            return self._peaks[pools]
        return self._peaks[np.ix_(pools, self._newest(count))]

    @property
    def public(self) -> bool:
        """Whether such windows of public pools are known."""
        return self._kindred.public

    def worth(self) -> NDArray[np.float64]:
        """Return the number of independent windows of each pool."""
        return independent(self._own, self.ticks)

    def likeness(self, pools: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the probability that each of these pools is like each other; see `Kindred`."""
        return self._kindred.likeness(pools, self.worth())

    def _ranked(self, pools: NDArray[np.intp], count: int) -> NDArray[np.int32]:
        """Return the quantile of the last `count` windows of these pools.

        The rank is one higher than for the same share of the past, because the next window is one
        more.
        """
        place = ceil((count + 1) * self._quantile) - 1
        of = self._peaks[pools]
        if count < self._kept:
            of = of[:, self._newest(count)]
        # Mostly the quantile is what it was, and to count takes less than to rank.
        peaks = self._ranks[pools]
        below = np.count_nonzero(of < peaks[:, None], axis=1)
        up_to = np.count_nonzero(of <= peaks[:, None], axis=1)
        others = (place < below) | (place >= up_to)
        if others.any():
            peaks[others] = np.partition(of[others], place)[:, place]
            self._ranks[pools] = peaks
        return peaks
