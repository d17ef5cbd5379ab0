"""Quantiles of recent waits in each pool. Pure."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from math import floor

RECENT = 2000
"""Number of newest waits kept for each pool; the quantiles are computed from them."""

LEAST = 10
"""Minimum number of waits: with fewer there is no p90."""

Quantiles = tuple[float | None, float | None]
"""p50 and p90 in seconds; None where unknown."""

UNKNOWN: Quantiles = (None, None)


class WaitHistory:
    """Recent waits of all pools."""

    def __init__(self) -> None:
        """Start with no wait."""
        self._pools: dict[str, _Pool] = {}

    def started(self, pool: str, waited: float) -> None:
        """Record a wait in seconds; waits of 0 are ignored. O(jobs kept)."""
        if waited > 0:
            self._pools.setdefault(pool, _Pool()).add(waited)

    def beyond(self, pool: str, here: float) -> Quantiles:
        """Return quantiles of the remaining wait of jobs that waited longer than `here` seconds.

        O(log jobs).
        """
        waits = self._pools.get(pool)
        return UNKNOWN if waits is None else waits.beyond(here)


class _Pool:
    """The newest waits of one pool, by age and sorted."""

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
        """Return a quantile of the waits from index `first` on, by linear interpolation."""
        place = first + share * (len(self._sorted) - 1 - first)
        low = floor(place)
        high = min(low + 1, len(self._sorted) - 1)
        return self._sorted[low] + (place - low) * (self._sorted[high] - self._sorted[low])
