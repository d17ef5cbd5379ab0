"""How long those waited in a pool that did, lately: it says something of the next. Pure."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from math import floor

RECENT = 2000
"""Newest jobs of a pool that are gone by."""

LEAST = 10
"""Jobs before which nothing is said: of fewer nobody can say what one in ten does."""

Quantiles = tuple[float | None, float | None]
"""p50 and p90, in seconds; None where nobody knows."""

UNKNOWN: Quantiles = (None, None)


class WaitHistory:
    """Of all pools."""

    def __init__(self) -> None:
        """Nobody waited yet."""
        self._pools: dict[str, _Pool] = {}

    def started(self, pool: str, waited: float) -> None:
        """A job starts, after so long; who did not wait says nothing of who does. O(jobs kept)."""
        if waited > 0:
            self._pools.setdefault(pool, _Pool()).add(waited)

    def beyond(self, pool: str, here: float) -> Quantiles:
        """How much longer those waited that had waited for so long. O(log jobs)."""
        waits = self._pools.get(pool)
        return UNKNOWN if waits is None else waits.beyond(here)


class _Pool:
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
            return UNKNOWN
        return self._at(first, 0.5) - here, self._at(first, 0.9) - here

    def _at(self, first: int, share: float) -> float:
        """A quantile of those from the first on; between two it is read off in proportion."""
        place = first + share * (len(self._sorted) - 1 - first)
        low = floor(place)
        high = min(low + 1, len(self._sorted) - 1)
        return self._sorted[low] + (place - low) * (self._sorted[high] - self._sorted[low])
