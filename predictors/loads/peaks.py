"""Load as a calibrated quantile: how many GPUs new jobs may come to hold at once (§5.2, §5.4).

TotalNewLoad adds up all that arrives in a window, though a job that ends makes room for the next. A
lender needs back no more than its new jobs are in the system with at the same time: the peak. In
windows of hours that is far less, and holding it back keeps every promise that the sum would keep:
a pool whose new jobs fit beside those it has never queues any.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor
from typing import Self

import numpy as np
from numpy.typing import NDArray

from predictors.loads.said import differences
from sia.forecasts import Loads, PredictorContext, QuantileLimit
from sia.limits import MAX_GROUP, TICK
from sia.model import Job, Load
from sia.wording import as_typed

QUANTILE = 0.95
"""The share of windows that should bring no more than what is said. On Philly 0.98 gains less, 0.9
and 0.8 slow ten times as many jobs (docs/forecasts.md)."""

MEMORY = 14 * 86400.0
"""Seconds looked back on: two weeks show each weekday twice."""

APART = 4
"""Windows begin at least a quarter of their length apart: those between say nearly the same."""

FARTHEST = 24
"""Ticks between two windows at most (two hours), or a day would hardly be seen."""

REFRESH = 12
"""Ticks between two looks at a pool's past: an hour changes little of two weeks."""


def apart(ticks: int) -> int:
    """Ticks from one window of so many ticks to the next that is looked at."""
    return min(max(1, ticks // APART), FARTHEST)


def remembered(ticks: int) -> int:
    """Windows of so many ticks that are looked back on."""
    return int(MEMORY / TICK / apart(ticks))


def highest(windows: Sequence[float]) -> float:
    """The highest quantile that windows of all these lengths (seconds) can come to state.

    Of n windows the highest peak is the quantile n / (n + 1): see `_Past.quantile`.
    """
    fewest = min(remembered(ceil(window / TICK)) for window in windows)
    return fewest / (fewest + 1)


class Peaks:
    """The most GPUs that the jobs of each pool held at once that came after each recent mark.

    Jobs count from their arrival to their end. An event costs O(marks kept), in numpy.
    """

    def __init__(self, pools: Sequence[str], kept: int) -> None:
        """Keep so many marks, the newest; there is none at first."""
        self.newest = -1
        self._kept = kept
        self._rows = {pool: row for row, pool in enumerate(pools)}
        self._held = np.zeros((len(pools), kept), np.int64)
        self._peak = np.zeros((len(pools), kept), np.int64)
        self._came: dict[str, int] = {}  # job: the last mark before it

    def mark(self) -> int:
        """Set a mark: its number, from 0 on."""
        self.newest += 1
        slot = self.newest % self._kept
        self._held[:, slot] = 0
        self._peak[:, slot] = 0
        return self.newest

    def since(self, mark: int) -> NDArray[np.int64]:
        """The peak of those who came after a mark that is kept: GPUs (pools)."""
        return self._peak[:, mark % self._kept]

    def add(self, job: Job) -> None:
        """A job came, after the newest mark."""
        row = self._rows[job.pool]
        held = self._held[row]
        held += job.width
        np.maximum(self._peak[row], held, out=self._peak[row])
        self._came[job.id] = self.newest

    def remove(self, job: Job) -> None:
        """A job is gone; one that was never added is not missed."""
        came = self._came.pop(job.id, -1)
        before = came - max(self.newest - self._kept, -1)  # marks still kept that it came after
        if before > 0:
            held = self._held[self._rows[job.pool]]
            end = came % self._kept + 1
            held[max(0, end - before) : end] -= job.width
            if before > end:
                held[end - before :] -= job.width


class PeakLoads(Loads):
    """A quantile of the peaks that recent windows of the same length brought.

    What it says is beyond any quota until enough windows have gone by for that quantile. A tick
    costs O(pools · windows), and O(windows it remembers) for each twelfth of the pools.
    """

    summary = "the most GPUs that new jobs held at once in recent windows"
    takes_quantile = True
    usual_quantile = QUANTILE

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build one that has seen nothing yet."""
        quantile = context.quantile or QUANTILE
        return cls(context.pools, context.windows, context.start, quantile)

    @classmethod
    def quantile_limit(cls, windows: Sequence[float]) -> QuantileLimit:
        """Return the highest quantile that the memory is long enough for."""
        why = f"{as_typed(MEMORY)} hold few windows of {as_typed(windows[-1])}"
        return QuantileLimit(floor(1000 * highest(windows)) / 1000, why)

    def __init__(
        self,
        pools: Sequence[str],
        windows: Sequence[float],
        start: float,
        quantile: float = QUANTILE,
    ) -> None:
        """Begin to observe at `start` (seconds); windows are seconds.

        Raises ValueError for a quantile that is not between 0 and 1, or higher than the `highest`.
        """
        if not 0 < quantile < 1:
            raise ValueError(f"a quantile is between 0 and 1, not {quantile}")
        if quantile > highest(windows):
            raise ValueError(f"the quantile {quantile} is above {highest(windows)}, the highest")
        self._pools = pools
        self._quantile = quantile
        lengths = [ceil(window / TICK) for window in windows]
        self._first = ceil(start / TICK)  # the tick of the first mark
        self._peaks = Peaks(pools, max(lengths) + 1)
        self._past = [_Past(len(pools), ticks) for ticks in lengths]
        self._forgotten = max(lengths) + FARTHEST + ceil(MEMORY / TICK)  # after so many ticks
        self._said = np.zeros((len(pools), len(windows)), np.int64)
        self._asked: int | None = None  # the tick of the last answer

    def submitted(self, now: float, job: Job) -> None:
        """Count it from now on."""
        self._advance(now)
        self._peaks.add(job)

    def finished(self, now: float, job: Job) -> None:
        """Count it no longer."""
        self._advance(now)
        self._peaks.remove(job)

    def withdrawn(self, now: float, job: Job) -> None:
        """Count it no longer."""
        self.finished(now, job)

    def changes(self, now: float) -> list[Load]:
        """What is thought otherwise since the last tick."""
        self._advance(now)
        tick = floor(now / TICK)
        if tick == self._asked:
            return []
        loads = self._said.copy()
        for rows in self._due(tick):
            for window, past in enumerate(self._past):
                loads[rows, window] = past.quantile(self._quantile, rows)
        self._asked = tick
        said, self._said = self._said, loads
        return differences(self._pools, said, loads)

    def _due(self, tick: int) -> list[slice]:
        """The pools to look at: at first all, then each once in `REFRESH` ticks."""
        if self._asked is None or tick - self._asked >= REFRESH:
            return [slice(None)]
        return [slice(turn % REFRESH, None, REFRESH) for turn in range(self._asked + 1, tick + 1)]

    def _advance(self, now: float) -> None:
        """Mark all ticks before now, and remember the windows that end there."""
        peaks = self._peaks
        missing = ceil(now / TICK) - 1 - self._first - peaks.newest
        if missing > self._forgotten:  # a silence after which nothing else is remembered
            self._first += missing - self._forgotten
            missing = self._forgotten
        for _ in range(missing):
            mark = peaks.mark()
            for past in self._past:
                begun = mark - past.ticks
                if begun >= 0 and not (self._first + begun) % past.apart:
                    past.add(peaks.since(begun))


class _Past:
    """The peaks of the last windows of one length."""

    def __init__(self, pools: int, ticks: int) -> None:
        self.ticks = ticks
        self.apart = apart(ticks)
        self._peaks = np.zeros((pools, remembered(ticks)), np.int32)
        self._seen = 0

    def add(self, peaks: NDArray[np.int64]) -> None:
        self._peaks[:, self._seen % self._peaks.shape[1]] = np.minimum(peaks, MAX_GROUP)
        self._seen += 1

    def quantile(self, quantile: float, rows: slice) -> NDArray[np.int32] | int:
        """What so many of the windows to come stay below, if they are like these: (rows).

        One place higher than the same share of the past, as the window to come is one more.
        """
        seen = min(self._seen, self._peaks.shape[1])
        place = ceil((seen + 1) * quantile) - 1
        if place >= seen:
            return MAX_GROUP
        peaks: NDArray[np.int32] = np.partition(self._peaks[rows, :seen], place)[:, place]
        return peaks
