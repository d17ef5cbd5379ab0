"""The logical resource-time plan (§5.1)."""

from __future__ import annotations

from sortedcontainers import SortedList


class ReservationProfile:
    """How many GPUs are promised at each moment, from a given one on.

    Kept as the changes of that number, by time; times are seconds.
    """

    def __init__(self) -> None:
        """Start with nothing reserved."""
        self._changes: dict[float, int] = {}
        self._times: SortedList[float] = SortedList()
        self._unsorted: list[float] = []  # times of changes since it was last asked

    def reserve(self, gpus: int, start: float, end: float) -> None:
        """Mark GPUs as busy for [start, end). O(1); sorting is left to the next question.

        By its end rather than by its duration, so that a reservation ends at the very float at
        which the job behind it does.
        """
        if not start < end or gpus <= 0:
            raise ValueError(f"a reservation of {gpus} GPUs from {start} to {end}")
        self._change(start, gpus)
        self._change(end, -gpus)

    def max_reservation(self, start: float, end: float) -> int:
        """The most GPUs reserved at once in [start, end). O(changes before the end).

        And O(log n) for each change since it was last asked.
        """
        if self._unsorted:
            self._times.update(self._unsorted)
            self._unsorted.clear()
        changes = self._changes
        level = most = 0
        for time in self._times:
            if time >= end:
                break
            if time > start and level > most:
                most = level
            level += changes[time]
        return max(most, level)

    def clear(self) -> None:
        """Release every reservation."""
        self._changes.clear()
        self._times.clear()
        self._unsorted.clear()

    def _change(self, time: float, gpus: int) -> None:
        before = self._changes.get(time)
        if before is None:
            self._changes[time] = gpus
            self._unsorted.append(time)
        else:
            self._changes[time] = before + gpus

    def check(self) -> None:
        """Assert that the number never falls below zero, and that it ends at zero."""
        assert sorted([*self._times, *self._unsorted]) == sorted(self._changes)
        level = 0
        for time in sorted(self._changes):
            level += self._changes[time]
            assert level >= 0
        assert level == 0
