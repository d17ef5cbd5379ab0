"""NewLoadEstimate (§5.4): the highest load of any recent window of the same length."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Self

from sia.forecasts import Loads, PredictorContext
from sia.limits import MAX_GROUP, RECENT
from sia.model import Job, Load


class _Peak:
    """The maximum of GPUs requested within `window` seconds, over the last `recent` windows.

    The sum grows only at arrivals, so its values just after arrivals contain its maximum. A value
    is dropped when a later one is at least as large. O(1) amortised for each arrival.
    """

    __slots__ = ("_arrived", "_peaks", "_span", "_total", "_window")

    def __init__(self, window: float, recent: int) -> None:
        self._window = window
        self._span = window * recent
        self._arrived: deque[tuple[float, int]] = deque()
        self._total = 0
        self._peaks: deque[tuple[float, int]] = deque()

    def add(self, now: float, gpus: int) -> float:
        """Count an arrival, and return when its value will be forgotten."""
        arrived, peaks = self._arrived, self._peaks
        while arrived and arrived[0][0] <= now - self._window:
            self._total -= arrived.popleft()[1]
        arrived.append((now, gpus))
        self._total += gpus
        while peaks and peaks[-1][1] <= self._total:
            peaks.pop()
        peaks.append((now, self._total))
        return now + self._span

    def value(self, now: float) -> int:
        peaks = self._peaks
        while peaks and peaks[0][0] + self._span <= now:
            peaks.popleft()
        return peaks[0][1] if peaks else 0


class SlidingMaximum(Loads):
    """TotalNewLoad as the sliding maximum, as if jobs always arrive.

    A window longer than the observed time has a forecast above any quota, so that nothing is lent
    without evidence.
    """

    summary = "the highest load seen in recent windows"

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build a predictor without history."""
        return cls(context.pools, context.windows, context.start, context.recent)

    @classmethod
    def describe(cls, quantile: float | None, recent: int) -> str:
        """Describe the predictor, with the number of windows that it remembers."""
        return f"{cls.summary}, over {recent} windows"

    def __init__(
        self, pools: Sequence[str], windows: Sequence[float], start: float, recent: int = RECENT
    ) -> None:
        """Start to observe at `start` (seconds). Windows are in seconds."""
        self._windows = windows
        self._peaks = {pool: [_Peak(w, recent) for w in windows] for pool in pools}
        self._last = {pool: [0] * len(windows) for pool in pools}
        self._start = start
        self._due: list[tuple[float, str, int]] = []  # when a value may decrease without an event
        for pool in pools:
            for window, length in enumerate(windows):
                self._due += [(start, pool, window), (start + length, pool, window)]
        heapify(self._due)

    def submitted(self, now: float, job: Job) -> None:
        """Record an arrival. O(windows · log n)."""
        for window, peak in enumerate(self._peaks[job.pool]):
            heappush(self._due, (peak.add(now, job.width), job.pool, window))
            heappush(self._due, (now, job.pool, window))

    def estimate(self, now: float, pool: str, window: int) -> int:
        """Return the GPUs that may arrive in a pool within a window."""
        if now < self._start + self._windows[window]:
            return MAX_GROUP
        return self._peaks[pool][window].value(now)

    def changes(self, now: float) -> list[Load]:
        """Return the loads that changed since the last call."""
        touched: dict[tuple[str, int], None] = {}
        while self._due and self._due[0][0] <= now:
            _, pool, window = heappop(self._due)
            touched[pool, window] = None
        return [
            Load(pool, window, gpus)
            for pool, window in touched
            if self._differs(pool, window, gpus := self.estimate(now, pool, window))
        ]

    def _differs(self, pool: str, window: int, gpus: int) -> bool:
        differs = self._last[pool][window] != gpus
        self._last[pool][window] = gpus
        return differs
