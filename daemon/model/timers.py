"""Timers on a heap; cancelled ones are removed lazily."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

FEW = 64
"""Number of cancelled timers below which the heap is not rebuilt."""


class Timer(NamedTuple):
    """A time (seconds) at which something is due. Ties are ordered by kind, then by name."""

    time: float
    kind: str
    name: str
    attempt: int = 0


class Timers:
    """A timer queue with at most one active timer for each kind and name."""

    def __init__(self) -> None:
        """Create an empty queue."""
        self._heap: list[Timer] = []
        self._set: dict[tuple[str, str], Timer] = {}

    def __len__(self) -> int:
        """Return the size of the heap, cancelled timers included."""
        return len(self._heap)

    def set(self, timer: Timer) -> None:
        """Set a timer; it replaces the one of its kind and name. O(log n)."""
        key = timer.kind, timer.name
        if self._set.get(key) != timer:
            self._set[key] = timer
            heappush(self._heap, timer)
            self._sort_out()

    def drop(self, kind: str, name: str) -> None:
        """Cancel a timer if it is set. O(log n) amortized."""
        self._set.pop((kind, name), None)
        self._sort_out()

    def _sort_out(self) -> None:
        """Remove cancelled timers from the front, and all of them once they dominate the heap."""
        heap = self._heap
        while heap and self._set.get(heap[0][1:3]) != heap[0]:
            heappop(heap)
        if len(heap) > FEW + 2 * len(self._set):
            self._heap = list(self._set.values())
            heapify(self._heap)

    @property
    def next(self) -> float:
        """Time of the first timer; infinite without any. O(1)."""
        return self._heap[0].time if self._heap else inf

    def due(self, now: float) -> Timer | None:
        """Remove and return the first timer that is due; None if none is. O(log n)."""
        if not self._heap or self._heap[0].time > now:
            return None
        timer = heappop(self._heap)
        del self._set[timer.kind, timer.name]
        self._sort_out()
        return timer
