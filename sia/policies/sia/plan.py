"""The logical resource-time plan (§5.1)."""

from __future__ import annotations

from sortedcontainers import SortedList


class ReservationProfile:
    """The number of reserved GPUs over time, stored as changes by time in seconds."""

    def __init__(self) -> None:
        """Start without reservations."""
        self._changes: dict[float, int] = {}
        self._times: SortedList[float] = SortedList()
        self._unsorted: list[float] = []  # times of changes since the last query

    def reserve(self, gpus: int, start: float, end: float) -> None:
        """Reserve GPUs for [start, end). O(1); sorting is deferred to the next query.

        The end is given instead of a duration, so that the reservation ends at exactly the same
        float as its job. Raises ValueError for an empty reservation.
        """
        if not start < end or gpus <= 0:
            raise ValueError(f"empty reservation of {gpus} GPUs from {start} to {end}")
        self._change(start, gpus)
        self._change(end, -gpus)

    def max_reservation(self, start: float, end: float) -> int:
        """Return the maximum of reserved GPUs in [start, end).

        O(changes before the end), plus O(log n) for each change since the last query.
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
        """Remove all reservations."""
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
        """Assert that the number is never negative and ends at zero."""
        assert sorted([*self._times, *self._unsorted]) == sorted(self._changes)
        level = 0
        for time in sorted(self._changes):
            level += self._changes[time]
            assert level >= 0
        assert level == 0
