"""The logical resource-time plan (§5.1): which jobs are expected to hold how many GPUs until when.

Each policy has one `GroupPlan` for each sharing group. It writes what it reserves and what it
intends to start; pages, answers and other readers see the same object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf, nextafter
from typing import NamedTuple

from sortedcontainers import SortedDict, SortedList

from sia.contract.views import GroupStateView, JobStateView, PoolStateView
from sia.limits import UNKNOWN_RUN_TIME


class PlannedStart(NamedTuple):
    """A start that a policy intends. Times are in seconds."""

    start: float
    end: float
    gpus: int
    job_id: str


class PlannedOutage(NamedTuple):
    """GPUs that will be out of service, such as in a maintenance window."""

    start: float
    end: float
    gpus: int


class PromisedSpan(NamedTuple):
    """The number of GPUs that all promised jobs need together in a period. Times are in seconds."""

    start: float
    end: float
    gpus: int


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

    def steps(self) -> Iterator[tuple[float, int]]:
        """Yield each time at which the number changes, and the number from then on. O(n log n)."""
        level = 0
        for time in sorted(self._changes):
            if self._changes[time]:
                level += self._changes[time]
                yield time, level

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


class GroupPlan:
    """The plan of one sharing group.

    Attributes:
        held: By pool, the GPUs reserved for it in each window of the options.
        reserved: The sum of `held` over the pools, by window.
        profile: The policy's reservations over time, if it makes others than those by window.
    """

    __slots__ = ("_group", "_starts", "held", "profile", "reserved")

    def __init__(self, group: GroupStateView, windows: int) -> None:
        """Start without reservations and planned starts."""
        self._group = group
        self.held: dict[PoolStateView, list[int]] = {pool: [0] * windows for pool in group.pools}
        self.reserved = [0] * windows
        self.profile = ReservationProfile()
        self._starts: SortedDict[tuple[float, str], PlannedStart] = SortedDict()

    def intend(self, job: JobStateView, start: float, end: float, gpus: int) -> None:
        """Plan a start. O(log n). Raises ValueError if it ends before it starts."""
        if not start < end or gpus <= 0:
            raise ValueError(f"job {job.job.id}: a plan of {gpus} GPUs from {start} to {end}")
        self._starts[start, job.job.id] = PlannedStart(start, end, gpus, job.job.id)

    def forget(self, job_id: str, start: float) -> None:
        """Drop a planned start, if there is one. O(log n)."""
        self._starts.pop((start, job_id), None)

    def clear_starts(self) -> None:
        """Drop all planned starts."""
        self._starts.clear()

    @property
    def starts(self) -> list[PlannedStart]:
        """The planned starts, earliest first. O(n)."""
        return list(self._starts.values())

    def until(
        self, now: float, running: Iterable[JobStateView], outages: Iterable[PlannedOutage] = ()
    ) -> ReservationProfile:
        """Return the GPUs that are expected to be in use from `now` on. O((n + m) log (n + m)).

        These are the GPUs of running jobs, of planned starts and of future outages. A running job
        counts until its estimated end; if this has passed, until just after `now`, because the job
        may end at any time; if its run time is unknown, for ever.
        """
        profile = ReservationProfile()
        for job in running:
            if job.stream is not None and job.pool.group is self._group:
                end = inf if job.run_time >= UNKNOWN_RUN_TIME else job.end(job.run_time)
                profile.reserve(job.width, now, max(end, nextafter(now, inf)))
        for planned in self._starts.values():
            begin = max(now, planned.start)
            profile.reserve(planned.gpus, begin, max(planned.end, nextafter(begin, inf)))
        for outage in outages:
            if outage.end > now and outage.gpus > 0:
                profile.reserve(outage.gpus, max(now, outage.start), outage.end)
        return profile

    def check(self) -> None:
        """Assert that the sums match the pools, and that planned starts are in order. O(n)."""
        for window, reserved in enumerate(self.reserved):
            assert reserved == sum(held[window] for held in self.held.values()), self._group.name
        self.profile.check()
        assert all(key == (each.start, each.job_id) for key, each in self._starts.items())
