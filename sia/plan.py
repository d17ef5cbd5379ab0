"""The logical resource-time plan (§5.1)."""

from __future__ import annotations

from sortedcontainers import SortedDict


class Plan:
    """How many GPUs are promised at each moment, from a given one on.

    Kept as the changes of that number, by time; times are seconds.
    """

    def __init__(self) -> None:
        """Start with nothing reserved."""
        self._changes: SortedDict[float, int] = SortedDict()

    def reserve(self, gpus: int, start: float, end: float) -> None:
        """Mark GPUs as busy for [start, end). O(log n).

        By its end rather than by its duration, so that a reservation ends at the very float at
        which the job behind it does.
        """
        if not start < end or gpus <= 0:
            raise ValueError(f"a reservation of {gpus} GPUs from {start} to {end}")
        self._change(start, gpus)
        self._change(end, -gpus)

    def max_reservation(self, start: float, end: float) -> int:
        """The most GPUs reserved at once in [start, end). O(log n + changes before the end)."""
        level = most = 0
        for time, change in self._changes.items():
            if time >= end:
                break
            if time > start and level > most:
                most = level
            level += change
        return max(most, level)

    def clear(self) -> None:
        """Release every reservation."""
        self._changes.clear()

    def _change(self, time: float, gpus: int) -> None:
        change = self._changes.get(time, 0) + gpus
        if change:
            self._changes[time] = change
        else:
            del self._changes[time]

    def check(self) -> None:
        """Assert that the number never falls below zero, and that it ends at zero."""
        level = 0
        for change in self._changes.values():
            assert change != 0
            level += change
            assert level >= 0
        assert level == 0
