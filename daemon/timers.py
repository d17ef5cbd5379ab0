"""What will be due when: a heap whose entries may have become void."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import NamedTuple


class Timer(NamedTuple):
    """Something to look at, at a time (seconds). Ties go by kind, then by name."""

    time: float
    kind: str
    name: str
    attempt: int = 0


class Timers:
    """The next ones first. Whoever sets one makes sure, when it is due, that it still holds."""

    def __init__(self) -> None:
        """Begin with none."""
        self._heap: list[Timer] = []

    def set(self, timer: Timer) -> None:
        """O(log n)."""
        heappush(self._heap, timer)

    @property
    def next(self) -> float:
        """When the first is due; infinite without any."""
        return self._heap[0].time if self._heap else inf

    def due(self, now: float) -> Timer | None:
        """The first that is due, and it is no more. O(log n)."""
        return heappop(self._heap) if self._heap and self._heap[0].time <= now else None
