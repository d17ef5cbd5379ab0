"""The guests of a sharing group: pending jobs that may become guests, and running ones.

A guest runs although its turn in its own pool has not come, and may be stopped at any time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Reversible, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice

from sortedcontainers import SortedList

from sia.contract.views import GroupStateView, JobStateView, PoolStateView

ONE_STOP = 8.0
"""One wide guest is stopped instead of several newer ones if this costs at most this many times as
much. On pieces of Philly this avoids one stop in twelve without more lost work."""

STOP_COST = 60.0
"""Cost of a stop of a guest in addition to its lost work, in seconds of its GPUs, for
comparisons."""


LONGER = 2.0
"""A guest makes room for a job if its expected remaining run time is at least this many times that
of the job."""

LEAST_SAVED = 600.0
"""Seconds by which the guest's expected remaining run time must exceed that of the job, because
estimates are inexact and a stop has a cost."""

MOST_LOST = 0.25
"""Largest cost of the guest's stop, as a fraction of its expected remaining run time."""

MUCH_WIDER = 4
"""Largest ratio of the guest's width to that of the job: with a wider guest too many GPUs would
become idle."""

MOST_COMPARED = 32
"""Largest number of guests that are compared with one job, which bounds the time of a pass."""


def lost_work(job: JobStateView, now: float) -> float:
    """Return the seconds of work that a stop costs a running job at this moment."""
    work, cost = job.work(now), job.job.stop_seconds
    return work if cost is None else min(cost, work)


def is_settling(job: JobStateView, now: float) -> bool:
    """Return whether a running job is within its minimum run time."""
    least = job.job.min_run_time
    return least is not None and now < job.start + least


def bin_of_least(job: JobStateView, windows: Sequence[float]) -> int:
    """Return the index of the first window that is as long as a job's minimum run time.

    Return the number of windows if none is that long, or if the job has no minimum run time.
    """
    least = job.job.min_run_time
    return len(windows) if least is None else bisect_left(windows, least)


class _Queue:
    """Pending jobs of one width by ascending rank. Jobs that left are removed at the top."""

    __slots__ = ("_first", "_order", "ranks")

    def __init__(self) -> None:
        self.ranks: dict[int, float] = {}  # by number of arrival
        self._order: list[tuple[float, int]] = []
        self._first: tuple[float, int] | None = None  # None if not known

    def add(self, job: int, rank: float) -> None:
        self.ranks[job] = rank
        entry = rank, job
        heappush(self._order, entry)
        if self._first is not None and entry < self._first:
            self._first = entry
        if len(self._order) > 2 * len(self.ranks) + 16:  # too many stale entries
            self._order = [(rank, job) for job, rank in self.ranks.items()]
            heapify(self._order)

    def first(self) -> tuple[float, int]:
        """Return rank and number of the first job; there must be one. O(log n) amortised."""
        if self._first is None:
            order, ranks = self._order, self.ranks
            while ranks.get(order[0][1]) != order[0][0]:
                heappop(order)
            self._first = order[0]
        return self._first

    def drop(self, job: int) -> None:
        """Remove a job. O(1)."""
        del self.ranks[job]
        if self._first is not None and self._first[1] == job:
            self._first = None


class Candidates:
    """Pending jobs that may become guests.

    They are stored by width, and in a group with limits on loans also by pool, because the idle
    GPUs that a job may use then depend on its pool.
    """

    def __init__(self, group: GroupStateView) -> None:
        """Start without jobs."""
        self._group = group
        self._by_pool = group.limited
        self._queues: dict[PoolStateView | None, dict[int, _Queue]] = {}
        self.jobs: dict[int, JobStateView] = {}

    def add(self, job: JobStateView, rank: float) -> None:
        """Add a pending job; the smallest rank comes first, ties by arrival. O(log n)."""
        self.jobs[job.arrival] = job
        queues = self._queues.setdefault(self._key(job.pool), {})
        queue = queues.get(job.width)
        if queue is None:
            queue = queues[job.width] = _Queue()
        queue.add(job.arrival, rank)

    def drop(self, job: JobStateView) -> bool:
        """Remove a job; return whether it was a candidate. O(1)."""
        if self.jobs.pop(job.arrival, None) is None:
            return False
        key = self._key(job.pool)
        queues = self._queues[key]
        queue = queues[job.width]
        queue.drop(job.arrival)
        if not queue.ranks:
            del queues[job.width]
            if not queues:
                del self._queues[key]
        return True

    def relimit(self) -> None:
        """Sort the jobs again if `GroupStateView.limited` has changed. O(1), else O(n)."""
        if self._by_pool is not self._group.limited:
            ranks = {
                job: rank
                for queues in self._queues.values()
                for queue in queues.values()
                for job, rank in queue.ranks.items()
            }
            self._by_pool = self._group.limited
            self._queues.clear()
            for number, rank in ranks.items():
                self.add(self.jobs[number], rank)

    def first(self, most: int) -> JobStateView | None:
        """Return the first job of at most `most` GPUs that limits allow to start, or None.

        O(different widths), and in a group with limits O(pools · different widths).
        """
        best: tuple[float, int] | None = None
        for pool, queues in self._queues.items():
            room = most if pool is None else min(most, pool.room)
            for width, queue in queues.items():
                if width <= room:
                    first = queue.first()
                    if best is None or first < best:
                        best = first
        return None if best is None else self.jobs[best[1]]

    def each_first(self) -> list[JobStateView]:
        """Return the first job of each queue, in order. O(pools · different widths)."""
        firsts = [queue.first() for queues in self._queues.values() for queue in queues.values()]
        return [self.jobs[job] for _, job in sorted(firsts)]

    def _key(self, pool: PoolStateView) -> PoolStateView | None:
        return pool if self._by_pool else None

    def check(self, expected: set[int]) -> None:
        """Assert that exactly these jobs are queued, each once, and which are first. O(n)."""
        all_queues = [queue for queues in self._queues.values() for queue in queues.values()]
        for queue in all_queues:
            first = min((rank, job) for job, rank in queue.ranks.items())
            assert queue.first() == first, self._group.name
        queued = [job for queue in all_queues for job in queue.ranks]
        assert len(queued) == len(self.jobs), self._group.name
        assert set(queued) == self.jobs.keys() == expected, self._group.name


class Guests:
    """Running guests that may be stopped, in order of their starts.

    Attributes:
        jobs: The guests by number of arrival.
        gpus: Their GPUs.
        lasting: GPUs of those that name a minimum run time.
        yielding: Numbers of those that make room for other guests.
    """

    def __init__(self) -> None:
        """Start without guests."""
        self.yielding: set[int] = set()
        self.jobs: dict[int, JobStateView] = {}
        self.gpus = 0
        self.lasting = 0
        self._by_width: dict[int, dict[int, JobStateView]] = {}
        self._ends: SortedList[tuple[float, int]] = SortedList()  # expected ends
        self._end_of: dict[int, float] = {}

    def add(self, job: JobStateView, end: float, *, yields: bool = False) -> None:
        """Add a job that has just started, with its expected end. O(log n).

        With `yields` it makes room for other guests.
        """
        number = job.arrival
        self.jobs[number] = job
        self.gpus += job.width
        if job.job.min_run_time is not None:
            self.lasting += job.width
        self._by_width.setdefault(job.width, {})[number] = job
        self._end_of[number] = end
        if yields:
            self.yielding.add(number)
            self._ends.add((end, number))

    def drop(self, job: JobStateView) -> bool:
        """Remove a job; return whether it was a guest. O(log n)."""
        number = job.arrival
        if self.jobs.pop(number, None) is None:
            return False
        self.gpus -= job.width
        if job.job.min_run_time is not None:
            self.lasting -= job.width
        alike = self._by_width[job.width]
        del alike[number]
        if not alike:
            del self._by_width[job.width]
        end = self._end_of.pop(number)
        if number in self.yielding:
            self.yielding.remove(number)
            self._ends.remove((end, number))
        return True

    def to_stop(self, gpus: int, now: float, *, settling: bool = False) -> list[JobStateView]:
        """Return guests with at least `gpus` GPUs together, or all guests if they have fewer.

        They are the newest, because these lose least; or one that is wide enough, if it does not
        lose much more than several newer ones. With `settling` only guests within their minimum
        run time are considered, otherwise only the other guests. O(guests considered + different
        widths).
        """
        if settling or self.lasting:
            able = [job for job in self.jobs.values() if is_settling(job, now) is settling]
            return self._newest(gpus, able)
        newest = self._newest(gpus, self.jobs.values())
        if len(newest) < 2:
            return newest
        wide = [
            next(reversed(jobs.values())) for width, jobs in self._by_width.items() if width >= gpus
        ]

        def cost(job: JobStateView) -> float:
            return (lost_work(job, now) + STOP_COST) * job.width

        if wide and cost(one := min(wide, key=cost)) <= ONE_STOP * sum(map(cost, newest)):
            return [one]
        return newest

    def _newest(self, gpus: int, jobs: Reversible[JobStateView]) -> list[JobStateView]:
        """Return the newest guests with `gpus` GPUs together, without unnecessary ones."""
        chosen: list[JobStateView] = []
        for job in reversed(jobs):
            if gpus <= 0:
                break
            chosen.append(job)
            gpus -= job.width
        return _needed(chosen, gpus)

    def expect(self, job: JobStateView, end: float) -> None:
        """Change the expected end of a guest, if the job is one. O(log n)."""
        before = self._end_of.get(job.arrival)
        if before is not None:
            self._end_of[job.arrival] = end
            if job.arrival in self.yielding:
                self._ends.remove((before, job.arrival))
                self._ends.add((end, job.arrival))

    def to_make_room(self, gpus: int, width: int, left: float, now: float) -> list[JobStateView]:
        """Return guests to stop for a job that lacks `gpus` of its `width` and runs `left` seconds.

        They are the guests with the longest remaining run times, all much longer than that of the
        job; [] if these do not have enough GPUs. Guests that started at this instant stay. An
        unknown run time counts as long. O(`MOST_COMPARED`).
        """
        chosen: list[JobStateView] = []
        for end, number in islice(reversed(self._ends), MOST_COMPARED):
            remaining, guest = end - now, self.jobs[number]
            if remaining < LONGER * left + LEAST_SAVED:
                break
            cost = lost_work(guest, now) + STOP_COST
            wide, fresh = guest.width > MUCH_WIDER * width, guest.start >= now
            if wide or fresh or cost > MOST_LOST * remaining:
                continue
            chosen.append(guest)
            gpus -= guest.width
            if gpus <= 0:
                return _needed(chosen, gpus)
        return []

    def memory(self) -> list[tuple[int, float]]:
        """Return the guests in order of their starts, with their expected ends. O(n)."""
        return [(number, self._end_of[number]) for number in self.jobs]

    def resume(
        self,
        memory: Iterable[tuple[int, float]],
        jobs: Mapping[int, JobStateView],
        yields: Callable[[JobStateView], bool],
    ) -> None:
        """Restore the guests. Raises KeyError for an unknown job. O(n log n)."""
        for number, end in memory:
            self.add(jobs[number], end, yields=yields(jobs[number]))

    def check(self) -> None:
        """Assert that the counts and the order of ends agree. O(n log n)."""
        assert self.gpus == sum(job.width for job in self.jobs.values())
        lasting = (job for job in self.jobs.values() if job.job.min_run_time is not None)
        assert self.lasting == sum(job.width for job in lasting)
        assert self._end_of.keys() == self.jobs.keys()
        alike = [(width, number) for width, jobs in self._by_width.items() for number in jobs]
        assert sorted(alike) == sorted((job.width, number) for number, job in self.jobs.items())
        assert [*self._ends] == sorted((self._end_of[number], number) for number in self.yielding)


def _needed(chosen: list[JobStateView], missing: int) -> list[JobStateView]:
    """Return the chosen jobs without narrow ones that wider ones after them make unnecessary.

    `missing` is 0, or minus the number of GPUs by which the jobs have more than needed.
    """
    for job in chosen[:]:
        if missing + job.width <= 0:
            chosen.remove(job)
            missing += job.width
    return chosen
