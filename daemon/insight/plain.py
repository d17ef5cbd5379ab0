"""When a job starts, as anybody would say it who knows its pool: no worlds are asked. Pure."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from math import floor

RECENT = 2000
"""Newest jobs of a pool that are gone by."""

LEAST = 10
"""Jobs of a pool before which nothing is said: of fewer nobody can say what one in ten does."""

Quantiles = tuple[float | None, float | None]
"""p50 and p90, in seconds; None where nobody knows."""


class Plain:
    """What a pool's newest jobs say of the next."""

    def __init__(self) -> None:
        """None came yet."""
        self._ran: dict[str, _Ran] = {}
        self._waits: dict[str, _Waits] = {}

    def ended(self, pool: str, ran: float, width: int) -> None:
        """A job ran so long (seconds) on so many GPUs. O(1)."""
        self._ran.setdefault(pool, _Ran()).add(ran, width)

    def started(self, pool: str, waited: float) -> None:
        """A job starts, after so long; who did not wait says nothing of who does. O(log)."""
        if waited > 0:
            self._waits.setdefault(pool, _Waits()).add(waited)

    def wait(self, pool: str, position: int, quota: int) -> float | None:
        """Mean run time · mean width / quota, for it and each before it; None where not known."""
        ran = self._ran.get(pool)
        if ran is None or len(ran.newest) < LEAST or quota < 1:
            return None
        return position * ran.mean() / quota

    def waits(self, pool: str, here: float) -> Quantiles:
        """How long others still waited that had waited for so long."""
        waits = self._waits.get(pool)
        return (None, None) if waits is None else waits.beyond(here)


class _Ran:
    """How long the newest ran, and on how many GPUs, with their sums, which are exact."""

    def __init__(self) -> None:
        self.newest: deque[tuple[int, int]] = deque()  # milliseconds, GPUs
        self._sums = [0, 0]

    def add(self, ran: float, width: int) -> None:
        self._count((round(1000 * ran), width), 1)
        if len(self.newest) > RECENT:
            self._count(self.newest.popleft(), -1)

    def _count(self, job: tuple[int, int], sign: int) -> None:
        if sign > 0:
            self.newest.append(job)
        for i, value in enumerate(job):
            self._sums[i] += sign * value

    def mean(self) -> float:
        """Mean seconds · mean GPUs."""
        count = len(self.newest)
        return self._sums[0] / 1000 / count * self._sums[1] / count


class _Waits:
    """The newest of them, in their order too."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, waited: float) -> None:
        if len(self._newest) >= RECENT:
            del self._sorted[bisect_right(self._sorted, self._newest.popleft()) - 1]
        self._newest.append(waited)
        insort(self._sorted, waited)

    def beyond(self, here: float) -> Quantiles:
        first = bisect_right(self._sorted, here)
        if len(self._sorted) - first < LEAST:
            return None, None
        return self._at(first, 0.5) - here, self._at(first, 0.9) - here

    def _at(self, first: int, share: float) -> float:
        """A quantile of those from the first on; between two it is read off in proportion."""
        place = first + share * (len(self._sorted) - 1 - first)
        low = floor(place)
        high = min(low + 1, len(self._sorted) - 1)
        return self._sorted[low] + (place - low) * (self._sorted[high] - self._sorted[low])
