"""What will be due when: a heap, of which those that are called off are left out."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

FEW = 64
"""Timers that are not worth sorting out."""


class Timer(NamedTuple):
    """Something to look at, at a time (seconds). Ties go by kind, then by name."""

    time: float
    kind: str
    name: str
    attempt: int = 0


class Timers:
    """The next ones first; of each kind and name the one that was set last."""

    def __init__(self) -> None:
        """Begin with none."""
        self._heap: list[Timer] = []
        self._set: dict[tuple[str, str], Timer] = {}

    def __len__(self) -> int:
        """So many are held, those that are called off and not yet sorted out included."""
        return len(self._heap)

    def set(self, timer: Timer) -> None:
        """Instead of the one of its kind and name, if there is one. O(log n)."""
        key = timer.kind, timer.name
        if self._set.get(key) != timer:
            self._set[key] = timer
            heappush(self._heap, timer)
            self._sort_out()

    def drop(self, kind: str, name: str) -> None:
        """Call one off, if there is one. O(log n), spread over all calls."""
        self._set.pop((kind, name), None)
        self._sort_out()

    def _sort_out(self) -> None:
        """Keep no more that are void than there are others, and none in front."""
        heap = self._heap
        while heap and self._set.get(heap[0][1:3]) != heap[0]:
            heappop(heap)
        if len(heap) > FEW + 2 * len(self._set):
            self._heap = list(self._set.values())
            heapify(self._heap)

    @property
    def next(self) -> float:
        """When the first is due; infinite without any. O(1)."""
        return self._heap[0].time if self._heap else inf

    def due(self, now: float) -> Timer | None:
        """The first that is due, and it is no more. O(log n)."""
        if not self._heap or self._heap[0].time > now:
            return None
        timer = heappop(self._heap)
        del self._set[timer.kind, timer.name]
        self._sort_out()
        return timer
